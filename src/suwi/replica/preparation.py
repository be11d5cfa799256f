"""Driving long work on a partition's log without holding up the event loop.

`run_at_once` does what the present turn of the loop has room for; `run_in_turns` does the rest, a
slice at a time, one partition after the other, with the jobs for the disk in threads.
Invariant: however many partitions are prepared at once, a turn of the loop has a bounded number of
slices.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from suwi.log.steps import TURN, Job, Steps
from suwi.log.sync_threads import in_sync_thread

log = logging.getLogger(__name__)

_PROGRESS_EVERY_S = 5.0
_SLICES_A_TURN = 2
_SLICES_AT_ONCE_A_TURN = 16


class Turns:
    """Shares the turns of the loop among all that have long work to do; one for each broker."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_granting = False
        self._told_s = 0.0
        self._taken = 0
        self._is_counting = False

    def take(self) -> bool:
        """Whether this turn of the loop has room for another slice."""
        if not self._is_counting:
            self._is_counting = True
            asyncio.get_running_loop().call_soon(self._next_turn)
        self._taken += 1
        return self._taken <= _SLICES_AT_ONCE_A_TURN

    def _next_turn(self) -> None:
        self._is_counting = False
        self._taken = 0

    async def next(self) -> None:
        """Wait for a turn; first come, first served."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting.append(turn)
        if not self._is_granting:
            self._is_granting = True
            self._told_s = loop.time()
            loop.call_soon(self._grant)
        await turn

    def _grant(self) -> None:
        granted = 0
        while self._waiting and granted < _SLICES_A_TURN:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                granted += 1
        self._is_granting = bool(self._waiting)
        if self._is_granting:
            loop = asyncio.get_running_loop()
            loop.call_soon(self._grant)
            if loop.time() - self._told_s >= _PROGRESS_EVERY_S:
                self._told_s = loop.time()
                log.info("replicas getting ready", extra={"waiting": len(self._waiting)})


def run_at_once(steps: Steps[None], turns: Turns) -> Job | None:
    """Run what needs no thread and fits into this turn of the loop; what is to be done next, or
    None: all is done."""
    try:
        job = TURN
        while job is TURN and turns.take():
            job = next(steps)
    except StopIteration:
        return None
    return job


async def run_in_turns(
    steps: Steps[None], job: Job, turns: Turns, is_wanted: Callable[[], bool]
) -> bool:
    """Go on from `job` to the end; False where it was no longer wanted in between."""
    try:
        while True:
            error: Exception | None = None
            result = None
            if job is TURN:
                await turns.next()
            else:
                try:
                    result = await in_sync_thread(job)
                except Exception as raised:
                    error = raised
            if not is_wanted():
                return False
            job = steps.send(result) if error is None else steps.throw(error)
    except StopIteration:
        return True
    finally:
        steps.close()
