"""Long work on the event loop, a slice in each of its iterations.

Slices are counted in items, not in time, so that simulation runs are deterministic.
"""

import asyncio
from collections.abc import AsyncIterator, Generator, Iterable, Sequence
from typing import Any, Final, TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_FREED_AT_ONCE: Final = 4_000


def run_to_end(slices: Generator[None, None, _Result]) -> _Result:
    """All slices of a generator in this call, for work that is small or need not be divided."""
    try:
        while True:
            next(slices)
    except StopIteration as done:
        result: _Result = done.value
        return result


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
