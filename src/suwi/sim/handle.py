"""A scheduled callback, with what the loop needs to know about it at every step."""

import asyncio
import functools
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any

from suwi.sim.incarnation import current


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
