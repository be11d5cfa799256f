"""Fair scheduling of connections: pipelined requests of one do not delay those of the others.

A connection serves the requests it has read within the `limits` of a turn. If complete requests are
left, it is queued (`join`). In each iteration of the event loop the first queued connection takes a
turn, so that sockets and timers are handled in between. Replies of which the socket would take more
than a turn's bytes (`senders`), and requests whose work goes in slices (`slices`), have queues of
their own.
Invariants: while others are queued, a connection with new bytes serves one request and is queued;
each queue gives one turn in an iteration; connections that are not queued share the time of one.
"""

import asyncio
from collections import deque
from collections.abc import Generator
from typing import Protocol, TypeVar

from suwi.net.large_requests import LargeRequests

_Result = TypeVar("_Result")

_LARGE_REPLIES_MAX = 16
_SMALL_REPLY_SLICES = 16
"""Some two thousand items, about a hundred kilobytes."""


class Participant(Protocol):
    def take_turn(self) -> bool:
        """Serve requests or send until the turn is over; False if there was nothing to do."""


class SliceTurns:
    """One slice in each iteration of the event loop, of all requests in turn."""

    __slots__ = ("_large_replies", "_waiting", "large_request", "large_requests")

    def __init__(self) -> None:
        self.large_requests = LargeRequests()
        """Bounds what is decoded and not answered yet."""
        self.large_request = asyncio.Lock()
        """Held while a large request is decoded, which then uses many times its size."""
        self._large_replies = asyncio.Semaphore(_LARGE_REPLIES_MAX)
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def build(self, work: Generator[None, None, _Result]) -> _Result:
        """As `run`, for the reply to a client: of a few bytes that ask for everything it may be
        megabytes. Only so many large ones are built at once; those that are complete are counted
        by `UnsentBytesBudget`. `work` must wait for nothing that another reply holds up."""
        try:
            for _ in range(_SMALL_REPLY_SLICES):
                await self.next()
                try:
                    next(work)
                except StopIteration as done:
                    result: _Result = done.value
                    return result
            async with self._large_replies:
                return await self.run(work)
        finally:
            work.close()  # The client may have disconnected.

    async def run(self, work: Generator[None, None, _Result]) -> _Result:
        """Continue a generator to its end, each time in a slice of its own."""
        while True:
            await self.next()
            try:
                next(work)
            except StopIteration as done:
                result: _Result = done.value
                return result

    def next(self) -> asyncio.Future[None]:
        """Done when the caller may begin its next slice."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting.append(turn)
        if len(self._waiting) == 1:
            loop.call_soon(self._begin_one)
        return turn

    def _begin_one(self) -> None:
        waiting = self._waiting
        while waiting:
            turn = waiting.popleft()
            if not turn.done():  # else its client has disconnected
                turn.set_result(None)
                break
        if waiting:
            asyncio.get_running_loop().call_soon(self._begin_one)


class TurnQueue:
    """The first in the queue takes a turn in each iteration of the event loop."""

    __slots__ = ("_is_taking", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Participant] = deque()
        self._is_taking = False

    def join(self, participant: Participant) -> None:
        """Append to the queue."""
        self.waiting.append(participant)
        if len(self.waiting) == 1 and not self._is_taking:
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        waiting = self.waiting
        self._is_taking = True
        try:
            while waiting and not waiting.popleft().take_turn():
                pass
        finally:
            self._is_taking = False
            if waiting:
                asyncio.get_running_loop().call_soon(self._next)


class Turns(TurnQueue):
    """The connections with requests to serve; beside it those that send, and work in slices."""

    __slots__ = ("_requests_max", "_s_max", "_shared_end_s", "senders", "slices")

    def __init__(self, requests_max: int, ms_max: float) -> None:
        super().__init__()
        self.senders = TurnQueue()
        self.slices = SliceTurns()
        self._requests_max = requests_max
        self._s_max = ms_max / 1000
        self._shared_end_s: float | None = None
        """Until when connections that are not queued may serve in this iteration of the loop."""

    def limits(self, began_s: float) -> tuple[int, float]:
        """The maximum number of requests and the end time of a turn that began at `began_s`."""
        if self._is_taking:
            return self._requests_max, began_s + self._s_max
        if self.waiting:
            return 1, began_s
        if self._shared_end_s is None:
            self._shared_end_s = began_s + self._s_max
            asyncio.get_running_loop().call_soon(self._end_iteration)
        return self._requests_max, self._shared_end_s

    def _end_iteration(self) -> None:
        self._shared_end_s = None
