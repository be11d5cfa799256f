"""The tasks of a simulated loop, in the order of their creation.

asyncio keeps its tasks in a set; cancelling, unwinding and reporting need an order that does not
depend on addresses.
"""

import asyncio
import os
from asyncio import Task
from collections.abc import Iterator
from contextvars import Context
from typing import Any

from suwi.sim.incarnation import Incarnation, Revoked, current

_PRUNE_MIN = 256


class SimTask(Task[Any]):
    """Its hash does not depend on its address: `TaskGroup` cancels its tasks from a set."""

    def __init__(self, coroutine: Any, serial: int, **options: Any) -> None:
        self._serial = serial
        super().__init__(coroutine, **options)

    def __hash__(self) -> int:
        return self._serial


class TaskList:
    def __init__(self) -> None:
        self._tasks: list[tuple[Task[Any], Context]] = []
        self._prune_at = _PRUNE_MIN
        self._made = 0

    def next_name(self, coroutine: Any) -> str:
        """A name for an unnamed task: asyncio's own counter continues from run to run."""
        function = getattr(coroutine, "__qualname__", None) or type(coroutine).__qualname__
        return f"{function}-{self._made + 1}"

    def make(
        self,
        coroutine: Any,
        loop: asyncio.AbstractEventLoop,
        name: str | None,
        context: Context,
        options: dict[str, Any],
    ) -> Task[Any]:
        name = name or self.next_name(coroutine)
        self._made += 1
        task = SimTask(coroutine, self._made, loop=loop, name=name, context=context, **options)
        self._tasks.append((task, context))
        if len(self._tasks) >= self._prune_at:
            self._tasks = [
                each for each in self._tasks if not each[0].done() or _failed_unnoticed(each[0])
            ]
            self._prune_at = max(_PRUNE_MIN, 2 * len(self._tasks))
        return task

    def running(self) -> list[Task[Any]]:
        """The tasks that have not ended, of processes that are neither killed nor frozen."""
        return [
            task
            for task, context in self._tasks
            if not task.done() and not _is_stopped(context.get(current))
        ]

    def first_failure(self) -> BaseException | None:
        """The exception of the first task of a live process that failed unnoticed."""
        for task, context in self._tasks:
            owner = context.get(current)
            if _failed_unnoticed(task) and not (owner is not None and owner.revoked):
                error = task.exception()
                if not is_revocation(error):
                    return error
        return None

    def describe_waiting(self) -> Iterator[str]:
        for task, context in self._tasks:
            owner = context.get(current)
            if not task.done() and not (owner is not None and owner.revoked):
                where = f" of {owner.name}" if owner is not None else ""
                yield f"task {task.get_name()}{where} at {_position(task.get_coro())}"

    def abandon(self, incarnation: Incarnation) -> None:
        for task, context in list(self._tasks):
            if not task.done() and context.get(current) is incarnation:
                _abandon(task, context)

    def abandon_all(self) -> None:
        for task, context in self._tasks:
            if not task.done():
                _abandon(task, context)
            elif _failed_unnoticed(task):
                task.exception()
        self._tasks.clear()


def is_revocation(error: BaseException | None) -> bool:
    """Whether an exception only says that its process was killed."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_revocation(each) for each in error.exceptions)
    return isinstance(error, Revoked)


def _is_stopped(owner: Incarnation | None) -> bool:
    return owner is not None and (owner.revoked or owner.frozen)


def _failed_unnoticed(task: Task[Any]) -> bool:
    # The condition under which asyncio logs "exception was never retrieved".
    return task.done() and bool(getattr(task, "_log_traceback", False))


def _abandon(task: Task[Any], context: Context) -> None:
    """Unwind a task's coroutine now; whoever awaits the task sees it cancelled."""
    coroutine: Any = task.get_coro()
    try:
        context.run(coroutine.close)
    except (SystemExit, KeyboardInterrupt):
        raise
    except RuntimeError:
        if getattr(coroutine, "cr_running", False):
            return  # It kills its own process, and ends at its next await.
    except BaseException:  # A killed process cannot report errors of its `finally` blocks.
        pass
    asyncio.Future.cancel(task)


def _position(coroutine: Any) -> str:
    """Where a coroutine waits: its innermost line outside asyncio."""
    position = getattr(coroutine, "__qualname__", "?")
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None)
        if frame is None:
            break
        path = frame.f_code.co_filename
        if os.path.dirname(path) != os.path.dirname(asyncio.__file__):
            position = f"{os.path.basename(path)}:{frame.f_lineno} in {frame.f_code.co_name}"
        coroutine = getattr(coroutine, "cr_await", None)
    return position
