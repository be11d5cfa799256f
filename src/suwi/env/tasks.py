"""Background tasks under supervision: whoever owns a unit of work hears of its end.

`Tasks.start` runs a coroutine function and says what an exception that nobody foresaw does: it
stops the broker (broker-wide work), starts the work again after a pause (work that others do not
depend on), or is handed to the owner of the unit, for example a partition.
Invariant: no task started here ends with an exception that was not logged, counted and acted upon.
"""

import asyncio
import enum
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple, TypeAlias

log = logging.getLogger(__name__)

_PAUSE_S_MIN: Final = 0.1
_PAUSE_S_MAX: Final = 10.0
_HEALTHY_S: Final = 60.0
"""Work that ran for so long before it failed is started again with the shortest pause."""

Work: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


class OnFailure(enum.Enum):
    STOP_BROKER = "stop broker"
    RESTART = "restart"


STOP_BROKER: Final = OnFailure.STOP_BROKER
RESTART: Final = OnFailure.RESTART


class TaskFailure(NamedTuple):
    """Broker-wide work has failed."""

    task: str
    error: Exception

    def __str__(self) -> str:
        return f"{self.task} failed: {self.error!r}"


class Tasks:
    """The background tasks of one broker."""

    def __init__(self, on_fatal: Callable[[TaskFailure], None]) -> None:
        """`on_fatal` is told of each failure that stops the broker."""
        self.failures: Counter[str] = Counter()
        """By name of the task, for metrics."""
        self._on_fatal = on_fatal

    def start(
        self, work: Work, *, name: str, on_failure: OnFailure | Callable[[Exception], None]
    ) -> "asyncio.Task[None]":
        """The task, for its owner to cancel. It ends when the work does, or with its last failure;
        it never raises anything but CancelledError."""
        loop = asyncio.get_running_loop()
        return loop.create_task(self._supervise(work, name, on_failure), name=name)

    async def _supervise(
        self, work: Work, name: str, on_failure: OnFailure | Callable[[Exception], None]
    ) -> None:
        loop = asyncio.get_running_loop()
        pause_s = _PAUSE_S_MIN
        while True:
            began_s = loop.time()
            try:
                return await work()
            except Exception as error:
                self.count(name, error)
                if on_failure is STOP_BROKER:
                    return self._on_fatal(TaskFailure(name, error))
                if not isinstance(on_failure, OnFailure):
                    return on_failure(error)
            if loop.time() - began_s >= _HEALTHY_S:
                pause_s = _PAUSE_S_MIN
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    def count(self, name: str, error: Exception) -> None:
        """Log and count an exception that nobody foresaw; also for a part of a task's work that
        fails alone, such as one partition's."""
        self.failures[name] += 1
        log.error("task failed", extra={"task": name, "reason": repr(error)}, exc_info=error)


async def cancel_and_wait(*tasks: "asyncio.Task[Any] | None") -> None:
    """End tasks; returns when they have ended. None is no task."""
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
