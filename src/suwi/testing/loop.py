"""An event loop that runs several brokers as if each had its own process.

Callbacks, tasks and sockets belong to the process in whose context they were created, so a process
can be frozen (`freeze`, as SIGSTOP) or killed (`kill`, as SIGKILL) while the others run.
Connections between brokers go through the loop's `network`. The code of the brokers is unchanged:
it uses an asyncio loop.
Invariant: no code of a process runs while it is frozen, or after it was killed.
"""

import asyncio
import socket
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import Any, TypeVarTuple, Unpack

from suwi.sim.incarnation import Incarnation, current
from suwi.sim.network import SimTransport
from suwi.sim.tasks import TaskList, is_revocation
from suwi.testing.network import ClusterNetwork, Sockets

_Ts = TypeVarTuple("_Ts")


class ClusterLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._sockets = Sockets()
        super().__init__(self._sockets)
        self.network = ClusterNetwork(self, self._sockets)
        self._tasks_of_processes = TaskList()
        self._parked: dict[Incarnation, list[_ProcessCallback]] = {}
        """The callbacks that were due while their process was frozen, in order."""
        self.set_task_factory(self._make_task)
        self.set_exception_handler(self._report)
        self._has_killed_processes = False

    # -- processes -----------------------------------------------------------------------------

    def kill(self, incarnation: Incarnation) -> None:
        """Unwind the tasks of a revoked incarnation; none of its callbacks runs any more."""
        self._has_killed_processes = True
        self._schedule_parked(incarnation)
        self._tasks_of_processes.abandon(incarnation)

    def freeze(self, incarnation: Incarnation) -> None:
        """SIGSTOP: no code of the process runs; the kernel still receives bytes for it."""
        incarnation.frozen = True
        self._sockets.freeze(incarnation)

    def thaw(self, incarnation: Incarnation) -> None:
        incarnation.frozen = False
        self._sockets.thaw(incarnation)
        self._schedule_parked(incarnation)

    def park(self, owner: Incarnation, callback: "_ProcessCallback") -> None:
        self._parked.setdefault(owner, []).append(callback)

    def _schedule_parked(self, owner: Incarnation) -> None:
        for callback in self._parked.pop(owner, ()):
            super().call_soon(callback, context=callback.context)

    def _report(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        is_leftover = "task" not in context and "never retrieved" in str(context.get("message"))
        if is_revocation(context.get("exception")) or (is_leftover and self._has_killed_processes):
            return  # leftovers of a killed process are expected
        self.default_exception_handler(context)

    # -- owners of callbacks -------------------------------------------------------------------

    def call_soon(
        self, callback: Callable[[Unpack[_Ts]], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.Handle:
        context = copy_context() if context is None else context
        owner = context.get(current)
        if owner is None:
            return super().call_soon(callback, *args, context=context)
        owned = _ProcessCallback(self, owner, callback, args, context)
        owned.handle = super().call_soon(owned, context=context)
        return owned.handle

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        context = copy_context() if context is None else context
        owner = context.get(current)
        if owner is None:
            return super().call_at(when, callback, *args, context=context)
        owned = _ProcessCallback(self, owner, callback, args, context)
        owned.handle = timer = super().call_at(when, owned, context=context)
        return timer

    def _add_callback(self, handle: Any) -> None:
        # Events of sockets, for which there is no public hook.
        self.call_soon(_run_unless_cancelled, handle, context=handle._context)

    def _make_task(
        self,
        _loop: asyncio.AbstractEventLoop,
        coroutine: Any,
        *,
        context: Context | None = None,
        name: str | None = None,
        **options: Any,
    ) -> "asyncio.Task[Any]":
        context = copy_context() if context is None else context
        owner = context.get(current)
        if owner is None:
            options["name"] = name
            return asyncio.Task(coroutine, loop=self, context=context, **options)
        if owner.revoked:
            coroutine.close()
            owner.check()
        return self._tasks_of_processes.make(coroutine, self, name, context, options)

    # -- owners of sockets ---------------------------------------------------------------------

    async def create_server(self, protocol_factory: Any, *args: Any, **options: Any) -> Any:
        owner = current.get()
        server = await super().create_server(protocol_factory, *args, **options)
        if owner is not None:
            owner.check()
            self._sockets.of[owner].servers.append(server)
            for port in dict.fromkeys(each.getsockname()[1] for each in server.sockets):
                self.network.serve(protocol_factory, server, port)
        return server

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> Any:
        owner, peer = current.get(), self.network.host_of_port.get(port)
        if owner is not None:
            owner.check()
            # TLS needs sockets, so faults of links do not affect it.
            if peer is not None and options.get("ssl") is None:
                return await self.network.connect(protocol_factory, peer, port)
        return await super().create_connection(protocol_factory, host, port, **options)

    # The loop accepts connections and creates transports only here; there is no public hook.

    def _accept_connection2(self, factory: Any, connection: socket.socket, *args: Any) -> Any:
        owner = current.get()
        if owner is not None:
            self._sockets.of[owner].accepted.add(connection)
        return super()._accept_connection2(factory, connection, *args)  # type: ignore[misc]

    def _make_socket_transport(self, *args: Any, **options: Any) -> asyncio.Transport:
        return self._owned(super()._make_socket_transport(*args, **options))  # type: ignore[misc]

    def _make_ssl_transport(self, *args: Any, **options: Any) -> asyncio.Transport:
        return self._owned(super()._make_ssl_transport(*args, **options))  # type: ignore[misc]

    def _owned(self, transport: asyncio.Transport) -> asyncio.Transport:
        owner = current.get()
        if owner is not None:
            self._sockets.of[owner].transports.add(transport)
        return transport


@dataclass(slots=True, eq=False)
class _ProcessCallback:
    """A callback of a process. It waits while the process is frozen and never runs after a kill."""

    _loop: ClusterLoop
    _owner: Incarnation
    _callback: Callable[..., object]
    _args: tuple[Any, ...]
    context: Context
    handle: asyncio.Handle | None = None
    """Returned to the caller, which may cancel it."""

    def __call__(self) -> None:
        if self.handle is not None and self.handle.cancelled():
            return
        if self._owner.frozen and not self._owner.revoked:
            self._loop.park(self._owner, self)
        elif not self._owner.revoked or self._closes_a_socket():
            self._callback(*self._args)

    def _closes_a_socket(self) -> bool:
        """As the final callbacks of a transport do, in the place of the kernel."""
        transport = getattr(self._callback, "__self__", None)
        is_simulated = isinstance(transport, SimTransport)
        return isinstance(transport, asyncio.BaseTransport) and not is_simulated


def _run_unless_cancelled(handle: Any) -> None:
    if not handle.cancelled():
        handle._callback(*handle._args)
