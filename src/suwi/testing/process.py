"""A simulated process of one broker; several run in one real process.

A `Process` has references to what it owns: sockets, connections, and the callbacks that wait while
it is frozen. Its code runs in a context with the process (`suwi.sim.incarnation.current`).
"""

import asyncio
import socket
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any
from weakref import WeakSet

from suwi.sim.incarnation import Incarnation, current


class Process(Incarnation):
    def __init__(self, node: int, number: int) -> None:
        super().__init__(f"broker-{node}", number)
        self.node = node
        self.context = copy_context()
        self.context.run(current.set, self)
        self.servers: list[asyncio.AbstractServer] = []
        self.transports: WeakSet[asyncio.Transport] = WeakSet()
        self.accepted: WeakSet[socket.socket] = WeakSet()
        """Sockets of accepted connections, which at first have no transport."""
        self.parked: list[ProcessCallback] = []
        """The callbacks that were due while it was frozen, in order."""

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function in the context of this process."""
        return self.context.copy().run(function, *args)


def running_process() -> Process | None:
    """The process whose code is running; None for the test kit itself."""
    owner = current.get()
    return owner if isinstance(owner, Process) else None


def owner_of(context: Context | None) -> Process | None:
    if context is None:
        return running_process()
    owner = context.get(current)
    return owner if isinstance(owner, Process) else None


class ProcessCallback:
    """A callback of a process. It waits while the process is frozen and never runs after a kill."""

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
        """Returned to the caller, which may cancel it."""
        self._owner = owner
        self._callback = callback
        self._args = args

    def __call__(self) -> None:
        owner = self._owner
        if self.handle is not None and self.handle.cancelled():
            return
        if owner.revoked:
            # The final callbacks of a transport close the socket, which the kernel would do.
            if isinstance(getattr(self._callback, "__self__", None), asyncio.BaseTransport):
                self._callback(*self._args)
        elif owner.frozen:
            owner.parked.append(self)
        else:
            self._callback(*self._args)
