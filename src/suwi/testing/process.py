"""One life of one broker among several in a real process, as if it had a process of its own.

A `Process` knows what belongs to it: sockets, connections and the callbacks that wait while it is
frozen. Whatever it does carries it in its context (`suwi.sim.incarnation.current`).
"""

import asyncio
import socket
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any
from weakref import WeakSet

from suwi.sim.incarnation import Incarnation, current


class Process(Incarnation):
    def __init__(self, node: int, life: int) -> None:
        super().__init__(f"broker-{node}", life)
        self.node = node
        self.context = copy_context()
        self.context.run(current.set, self)
        self.servers: list[asyncio.AbstractServer] = []
        self.transports: WeakSet[asyncio.Transport] = WeakSet()
        self.accepted: WeakSet[socket.socket] = WeakSet()
        """Of connections to it; for a moment they have no transport yet."""
        self.parked: list[Turn] = []
        """What would have run, had it not been frozen; in order."""

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function as part of this process."""
        return self.context.copy().run(function, *args)


def running_process() -> Process | None:
    """The process that is running; None for the test kit itself."""
    owner = current.get()
    return owner if isinstance(owner, Process) else None


def owner_of(context: Context | None) -> Process | None:
    if context is None:
        return running_process()
    owner = context.get(current)
    return owner if isinstance(owner, Process) else None


class Turn:
    """A callback of a process: runs, waits while the process is frozen, or never if it is dead."""

    __slots__ = ("_args", "_callback", "_owner", "context", "handle")

    def __init__(
        self,
        owner: Process,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context,
    ) -> None:
        self.context = context
        self.handle: asyncio.Handle | None = None
        """What whoever made the call can cancel."""
        self._owner = owner
        self._callback = callback
        self._args = args

    def __call__(self) -> None:
        owner = self._owner
        if self.handle is not None and self.handle.cancelled():
            return
        if owner.revoked:
            # What a transport does at its end is the kernel's work: it closes the socket.
            if isinstance(getattr(self._callback, "__self__", None), asyncio.BaseTransport):
                self._callback(*self._args)
        elif owner.frozen:
            owner.parked.append(self)
        else:
            self._callback(*self._args)
