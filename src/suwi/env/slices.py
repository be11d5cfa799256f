"""Long work on the event loop, a slice in each of its iterations.

Work in slices is a generator (`Slices`): it yields after each slice, and its result is what it
returns. Slices are counted in items, not in time, so that simulation runs are deterministic.
"""

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Sequence
from itertools import islice
from typing import Any, Final, TypeAlias, TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

Slices: TypeAlias = Generator[None, None, _Result]
"""Work in slices. Whoever runs it lets other work run between two slices."""

_STEPS_PER_SLICE: Final = 5_000
"""About five milliseconds if each takes one microsecond."""
_SORTED_AT_ONCE: Final = 4_000
_FREED_AT_ONCE: Final = 4_000


class Pace:
    """Counts steps of about a microsecond, and says when a slice is over."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = _STEPS_PER_SLICE

    def is_over(self, steps: int) -> bool:
        self._left -= steps
        if self._left > 0:
            return False
        self._left = _STEPS_PER_SLICE
        return True


def run_to_end(slices: Slices[_Result]) -> _Result:
    """All slices in this call, for work that is small or need not be divided."""
    try:
        while True:
            next(slices)
    except StopIteration as done:
        result: _Result = done.value
        return result


def rest_of(slices: Slices[None]) -> Slices[None] | None:
    """Runs the first slice. Returns the generator if there are more, otherwise None."""
    for _ in slices:
        return slices
    return None


def sort(items: Iterable[_Item], key: Callable[[_Item], Any], pace: Pace) -> Slices[list[_Item]]:
    """Sorts parts and merges them, because `sorted` cannot be interrupted."""
    rest, parts = iter(items), []
    while part := sorted(islice(rest, _SORTED_AT_ONCE), key=key):
        parts.append(part)
        if pace.is_over(len(part)):
            yield
    if len(parts) <= 1:
        return parts[0] if parts else []
    ordered = []
    for item in heapq.merge(*parts, key=key):
        ordered.append(item)
        if pace.is_over(2):
            yield
    return ordered


async def in_slices(items: Iterable[_Item], size: int) -> AsyncIterator[_Item]:
    """Each item; the event loop runs after every `size` of them.

    State may change then: `items` must not iterate over what changes.
    """
    for number, item in enumerate(items, 1):
        yield item
        if number % size == 0:
            await asyncio.sleep(0)


def free_in_slices(items: Sequence[Any] | dict[Any, Any]) -> None:
    """Empty a large list or dict that nobody needs any more: freeing it at once takes long, too."""
    if len(items) <= _FREED_AT_ONCE:
        return
    if isinstance(items, list):
        del items[-_FREED_AT_ONCE:]
    elif isinstance(items, dict):
        for _ in range(_FREED_AT_ONCE):
            items.popitem()
    else:
        return  # It cannot be changed.
    asyncio.get_running_loop().call_soon(free_in_slices, items)
