"""Fair turns: no connection's pipelined requests hold up those of the others.

A connection serves what it has just read within the `limits` of a turn; where whole requests are
left, they wait, and the connection stands in a queue (`join`). Each time the loop goes round, the
first of the queue takes a turn, so that sockets and timers come in between.
Invariant: while anybody waits, who comes with new bytes has one request served and joins the end.
"""

import asyncio
from collections import deque
from typing import Protocol


class Participant(Protocol):
    def take_turn(self) -> bool:
        """Serve requests until the turn is over; False where there was nothing to do."""


class Turns:
    __slots__ = ("_is_taking", "_requests_max", "_s_max", "waiting")

    def __init__(self, requests_max: int, ms_max: float) -> None:
        self.waiting: deque[Participant] = deque()
        self._requests_max = requests_max
        self._s_max = ms_max / 1000
        self._is_taking = False

    def limits(self, began_s: float) -> tuple[int, float]:
        """How many requests a turn that began at that time may serve, and until when."""
        if self.waiting and not self._is_taking:
            return 1, began_s
        return self._requests_max, began_s + self._s_max

    def join(self, participant: Participant) -> None:
        """Take a turn when all who wait already have had theirs."""
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
