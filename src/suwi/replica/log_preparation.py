"""Runs long work on logs without blocking the event loop.

`run_at_once` runs as many slices as this iteration of the event loop allows; `run_in_turns` runs
the rest slice by slice, with disk jobs in threads, and the partitions take turns: short work that
has begun is completed first, so that of thousands of logs the first are soon ready.
Invariant: an iteration of the event loop runs a bounded number of slices, however many partitions
are being prepared.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from suwi.log.sliced_work import TURN, Job, Steps
from suwi.replica.log_threads import in_sync_thread

log = logging.getLogger(__name__)

_PROGRESS_EVERY_S = 5.0
_SLICES_A_TURN = 2
_SHORT_SLICES_A_TURN = 8
"""The first slices of a work cost less than the later ones: a log is opened in three."""
_SLICES_AT_ONCE_A_TURN = 16
_SLICES_OF_SHORT_WORK = 8
"""Work that needs more lets others take their turns before each further slice."""


class Turns:
    """Shares the event loop's iterations among all long work; one instance for each broker."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        """Each with the number of its slice."""
        self._is_granting = False
        self._logged_s = 0.0
        self._taken = 0
        self._is_counting = False

    def take(self) -> bool:
        """Whether this iteration of the event loop may run another slice."""
        if not self._is_counting:
            self._is_counting = True
            asyncio.get_running_loop().call_soon(self._next_turn)
        self._taken += 1
        return self._taken <= _SLICES_AT_ONCE_A_TURN

    def _next_turn(self) -> None:
        self._is_counting = False
        self._taken = 0

    async def next(self, number: int) -> None:
        """Wait for the turn of a work's slice, counted from 0: in first-in-first-out order, but
        short work that has begun gets the next turn."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        if 0 < number < _SLICES_OF_SHORT_WORK:
            self._waiting.appendleft((turn, number))
        else:
            self._waiting.append((turn, number))
        if not self._is_granting:
            self._is_granting = True
            self._logged_s = loop.time()
            loop.call_soon(self._grant)
        await turn

    def _grant(self) -> None:
        left = 1.0
        while self._waiting and left > 0:
            turn, number = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                is_short = number < _SLICES_OF_SHORT_WORK
                left -= 1 / (_SHORT_SLICES_A_TURN if is_short else _SLICES_A_TURN)
        self._is_granting = bool(self._waiting)
        if self._is_granting:
            loop = asyncio.get_running_loop()
            loop.call_soon(self._grant)
            if loop.time() - self._logged_s >= _PROGRESS_EVERY_S:
                self._logged_s = loop.time()
                log.info("preparing replica logs", extra={"waiting": len(self._waiting)})


def run_at_once(steps: Steps[None], turns: Turns) -> Job | None:
    """Run the steps that need no thread and fit into this iteration of the event loop. Returns the
    next job, or None if all steps are done."""
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
    """Run the steps from `job` to the end. Returns False if `is_wanted` became false."""
    slices = 0
    try:
        while True:
            error: Exception | None = None
            result = None
            if job is TURN:
                await turns.next(slices)
                slices += 1
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
