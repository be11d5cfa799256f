"""Fair scheduling of connections: pipelined requests and large replies of one do not delay others.

A connection serves the requests it has read within the `limits` of a turn. If complete requests are
left, or bytes of replies that the socket would take, it is queued (`join`). In each iteration of
the event loop the first in the queue takes a turn, so that sockets and timers are handled in
between.
Requests whose work goes in slices have a queue of their own (`slices`).
Invariants: while others are queued, a connection with new bytes serves one request and is queued;
in each iteration at most one turn is taken and one slice begins.
"""

import asyncio
from collections import deque
from typing import Protocol


class Participant(Protocol):
    def take_turn(self) -> bool:
        """Serve requests or send until the turn is over; False if there was nothing to do."""


class SliceTurns:
    """One slice in each iteration of the event loop, of all requests in turn."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

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


class Turns:
    __slots__ = ("_is_taking", "_requests_max", "_s_max", "slices", "waiting")

    def __init__(self, requests_max: int, ms_max: float) -> None:
        self.waiting: deque[Participant] = deque()
        self.slices = SliceTurns()
        self._requests_max = requests_max
        self._s_max = ms_max / 1000
        self._is_taking = False

    def limits(self, began_s: float) -> tuple[int, float]:
        """The maximum number of requests and the end time of a turn that began at `began_s`."""
        if self.waiting and not self._is_taking:
            return 1, began_s
        return self._requests_max, began_s + self._s_max

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
