"""Supervised background tasks: the failure of each task is handled by a policy.

`Tasks.start` runs a coroutine function and specifies what an unexpected exception does: it stops
the broker (broker-wide work), restarts the work after a pause (work that others do not depend on),
or calls a handler of the owner, for example a partition.
Invariant: no task started here ends with an exception that was not logged, counted and handled.
"""

import asyncio
import enum
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple, TypeAlias

from suwi.env import SystemClock
from suwi.env.problems import ProblemKind, Problems

log = logging.getLogger(__name__)

_PAUSE_S_MIN: Final = 0.1
_PAUSE_S_MAX: Final = 10.0
QUIET_MS: Final = 600_000
"""Work whose failures are further apart fails now and then, which is no problem of the broker."""
_HEALTHY_S: Final = 60.0
"""Work that ran at least this long before it failed is restarted with the shortest pause."""

Work: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


class OnFailure(enum.Enum):
    STOP_BROKER = "stop broker"
    RESTART = "restart"


STOP_BROKER: Final = OnFailure.STOP_BROKER
RESTART: Final = OnFailure.RESTART


class TaskFailure(NamedTuple):
    """A failure of broker-wide work."""

    task: str
    error: Exception

    def __str__(self) -> str:
        return f"{self.task} failed: {self.error!r}"


class Tasks:
    """The background tasks of one broker."""

    def __init__(
        self, on_fatal: Callable[[TaskFailure], None], problems: Problems | None = None
    ) -> None:
        """`on_fatal` is called with each failure that stops the broker; `problems` gets work that
        fails again and again."""
        self.problems = problems or Problems(SystemClock())
        self.failures: Counter[str] = Counter()
        """By task name, for metrics."""
        self._on_fatal = on_fatal

    def start(
        self, work: Work, *, name: str, on_failure: OnFailure | Callable[[Exception], None]
    ) -> "asyncio.Task[None]":
        """Returns the task, for its owner to cancel. It ends with the work, or with its last
        failure; it raises nothing but CancelledError."""
        loop = asyncio.get_running_loop()
        return loop.create_task(self._supervise(work, name, on_failure), name=name)

    async def _supervise(
        self, work: Work, name: str, on_failure: OnFailure | Callable[[Exception], None]
    ) -> None:
        loop = asyncio.get_running_loop()
        pause_s = _PAUSE_S_MIN
        while True:
            started_s = loop.time()
            try:
                return await work()
            except Exception as error:
                self.count(name, error)
                if on_failure is STOP_BROKER:
                    return self._on_fatal(TaskFailure(name, error))
                if not isinstance(on_failure, OnFailure):
                    return on_failure(error)
            if loop.time() - started_s >= _HEALTHY_S:
                pause_s = _PAUSE_S_MIN
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    def count(self, name: str, error: Exception, *, is_reported: bool = False) -> None:
        """Log and count an unexpected exception; also for one part of a task's work that fails
        alone, such as one partition. `is_reported`: the caller reports a problem of its own."""
        self.failures[name] += 1
        if not is_reported:
            kind = ProblemKind.TASK_FAILING
            self.problems.report_if_repeated(kind, name, repr(error), QUIET_MS)
        log.error("task failed", extra={"task": name, "reason": repr(error)}, exc_info=error)


def loop_s() -> float:
    """On the clock of the event loop."""
    return asyncio.get_running_loop().time()


def clock_of(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """The same clock for a loop that is known, as fast as it can be read: on each request."""
    is_usual = type(loop).time is asyncio.BaseEventLoop.time
    return time.monotonic if is_usual else loop.time


async def cancel_and_wait(*tasks: "asyncio.Task[Any] | None") -> None:
    """Cancel tasks and wait until they have ended. None is skipped."""
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    if running:  # Without a task `gather` looks for an event loop, and may create one.
        await asyncio.gather(*running, return_exceptions=True)


async def wait_for_event(event: asyncio.Event, timeout_s: float) -> bool:
    """Wait until the event is set, at most `timeout_s`. Returns whether it is."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True
