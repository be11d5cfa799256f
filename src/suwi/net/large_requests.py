"""Bounds the memory of large requests of clients: from their decoding to their reply.

Decoded, a request uses many times its size: up to a kilobyte for an item of a few bytes. So a large
request waits at `acquire` before it is decoded, in the order of arrival, until those before it
leave room. Small requests and those of brokers do not: replication must never wait for clients.

Whatever completes a request must not wait for it:
- `Later`, such as JoinGroup, waits for other clients; its side effects are done and what it keeps
  is bounded by its coordinator. It gives its share back when it begins to wait, and so does a
  produce request after its append.
- A fetch that waits for records lends its share (`Share.lend`): if another request needs it, the
  longest waiting fetch responds with what there is.
- Everything else waits for brokers and the metadata store only. It keeps its share until its reply,
  but not longer than `HELD_S_MAX`: some requests say themselves how long they wait.

Invariant: the shares are at most `items_max` together, or there is one share only.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from suwi.wire.versions import REQUEST_ITEMS_MAX

_ITEMS_MAX: Final = 4 * REQUEST_ITEMS_MAX
_ITEM_BYTES: Final = 4
"""Few items are smaller."""
HELD_S_MAX: Final = 10.0


def items_of(size_bytes: int) -> int:
    """How many items a request of this size may have."""
    return min(size_bytes // _ITEM_BYTES, REQUEST_ITEMS_MAX)


class Share:
    """What one request may use."""

    __slots__ = ("_items", "_of", "_timer")

    def __init__(self, of: "LargeRequests", items: int) -> None:
        self._of = of
        self._items = items
        self._timer = asyncio.get_running_loop().call_later(HELD_S_MAX, self.release)

    def reduce(self, items: int) -> None:
        """The request has only so many items."""
        items = min(items, self._items)
        returned, self._items = self._items - items, items
        self._of._returned(returned)

    def lend(self, give_way: Callable[[], None]) -> None:
        """`give_way` is called at most once, if another request waits for this share."""
        if self._items:
            self._of._lenders[self] = give_way
            self._of._serve()

    def release(self) -> None:
        """May be called again."""
        self._timer.cancel()
        self._of._lenders.pop(self, None)
        self.reduce(0)


class LargeRequests:
    __slots__ = ("_items_max", "_lenders", "_used", "_waiting")

    def __init__(self, items_max: int = _ITEMS_MAX) -> None:
        self._items_max = items_max
        self._used = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._lenders: dict[Share, Callable[[], None]] = {}
        """In the order in which they began to wait."""

    async def acquire(self, items: int) -> Share:
        """Wait for a share. One of nothing is there at once."""
        if items and (self._waiting or not self._fits(items)):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((items, turn))
            self._serve()
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._returned(items)
                raise
        else:
            self._used += items
        return Share(self, items)

    def _fits(self, items: int) -> bool:
        return self._used == 0 or self._used + items <= self._items_max

    def _returned(self, items: int) -> None:
        self._used -= items
        self._serve()

    def _serve(self) -> None:
        waiting = self._waiting
        while waiting:
            items, turn = waiting[0]
            if turn.done():  # Its client has disconnected.
                waiting.popleft()
            elif self._fits(items):
                waiting.popleft()
                self._used += items
                turn.set_result(None)
            else:
                if self._lenders:
                    self._lenders.pop(next(iter(self._lenders)))()
                return
