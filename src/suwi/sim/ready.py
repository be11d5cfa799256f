"""Scheduled callbacks (`SimHandle`), and which of those that are ready runs next (`Ready`)."""

import asyncio
import functools
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any, Literal

from suwi.sim.incarnation import Incarnation, current
from suwi.sim.random import SimRandom

Schedule = Literal["random", "fifo"]


class SimHandle(asyncio.TimerHandle):
    """What `call_soon` and `call_at` return. Independent of the base class's own fields."""

    __slots__ = (
        "_on_cancel",
        "args",
        "callback",
        "context",
        "is_cancelled",
        "owner",
        "task",
        "time",
    )

    def __init__(
        self,
        time: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context | None,
        on_cancel: Callable[[], None] | None = None,
    ) -> None:
        self.time = time
        self.callback: Callable[..., object] = callback
        self.args = args
        self.context = copy_context() if context is None else context
        self.is_cancelled = False
        self.owner = self.context.get(current)
        target = getattr(callback, "__self__", None)
        self.task = target if isinstance(target, asyncio.Task) else None
        self._on_cancel = on_cancel

    def __repr__(self) -> str:
        return f"<SimHandle {' '.join(self.describe())} at {self.time}>"

    def __hash__(self) -> int:
        return object.__hash__(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def when(self) -> float:
        return self.time

    def cancel(self) -> None:
        if not self.is_cancelled:
            self.is_cancelled = True
            self.callback, self.args = _nothing, ()
            if self._on_cancel is not None:
                self._on_cancel()

    def cancelled(self) -> bool:
        return self.is_cancelled

    def get_context(self) -> Context:
        return self.context

    def describe(self) -> tuple[str, str]:
        """The kind and the label of the callback, for traces: names, never addresses."""
        if self.task is not None:
            return "task", self.task.get_name()
        callback: Any = self.callback
        while isinstance(callback, functools.partial):
            callback = callback.func
        name = getattr(callback, "__qualname__", None) or type(callback).__qualname__
        label = getattr(getattr(callback, "__self__", None), "sim_label", None)
        return "call", f"{name} {label}" if label else name


def _nothing() -> None: ...


class Ready:
    """The callbacks that are ready. With `random`, any task may run next; plain callbacks of one
    process keep the order asyncio promises them. Without, all run in the order of their arrival.

    `call_soon(a)` before `call_soon(b)` means a before b, and code may rely on it. That two tasks
    wake in the order in which their futures were set is not guaranteed, and no code may rely on it.
    """

    def __init__(self, random: SimRandom | None) -> None:
        self._is_fifo = random is None  # There is one queue then, so nothing to choose.
        self._random = (random or SimRandom()).random
        self._choices: list[SimHandle | deque[SimHandle]] = []
        self._queues: dict[Incarnation | None, deque[SimHandle]] = {}

    def __len__(self) -> int:
        return len(self._choices)

    def add(self, handle: SimHandle) -> None:
        if handle.task is not None and not self._is_fifo:
            self._choices.append(handle)
            return
        owner = None if self._is_fifo else handle.owner
        queue = self._queues.get(owner)
        if queue is None:
            queue = self._queues[owner] = deque()
        if not queue:
            self._choices.append(queue)
        queue.append(handle)

    def pop(self) -> SimHandle:
        choices = self._choices
        chosen = int(self._random() * len(choices)) if len(choices) > 1 else 0
        choice = choices[chosen]
        if isinstance(choice, deque):
            handle = choice.popleft()
            if choice:
                return handle
        else:
            handle = choice
        choices[chosen] = choices[-1]
        choices.pop()
        return handle
