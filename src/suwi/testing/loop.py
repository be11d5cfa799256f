"""An event loop that runs several brokers as if each had a process of its own.

Callbacks, tasks and sockets belong to the `Process` in whose context they were made, so one can
be frozen (`freeze`, as SIGSTOP) or killed (`kill`, as SIGKILL) while the others go on. Connections
that brokers open to each other lead through the loop's `network`. The brokers' code knows nothing
of this: it sees an asyncio loop.
Invariant: nothing of a process runs while it is frozen, nor ever after its death.
"""

import asyncio
import selectors
import socket
import struct
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any, TypeVarTuple, Unpack

from suwi.sim.tasks import TaskList, is_revocation
from suwi.testing.network import Network
from suwi.testing.process import Process, Turn, owner_of, running_process

_Ts = TypeVarTuple("_Ts")

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class _Sockets(selectors.DefaultSelector):
    """Knows which process waits for which socket, and where the loop is at rest.

    `between_rounds`: done when the loop has nothing in its hands. Inside a round it may hold
    events of sockets that it has not come to yet, and those would slip through.
    """

    def __init__(self) -> None:
        super().__init__()
        self.between_rounds: deque[Callable[[], None]] = deque()
        self._owners: dict[int, Process] = {}
        self._frozen: dict[Process, list[selectors.SelectorKey]] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = super().register(fileobj, events, data)
        owner = running_process()
        if owner is not None:
            self._owners[key.fd] = owner
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        key = super().unregister(fileobj)
        self._owners.pop(key.fd, None)
        return key

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        while self.between_rounds:
            self.between_rounds.popleft()()
            timeout = 0  # It may have given the loop something to do.
        return super().select(timeout)

    def freeze(self, process: Process) -> None:
        fds = [fd for fd, owner in self._owners.items() if owner is process]
        self._frozen.setdefault(process, []).extend(self.unregister(fd) for fd in fds)

    def thaw(self, process: Process) -> None:
        for key in self._frozen.pop(process, []):
            process.call(self.register, key.fileobj, key.events, key.data)

    def forget(self, process: Process) -> None:
        self._frozen.pop(process, None)


class _Nobody(asyncio.Protocol):
    """What the connections of the dead talk to."""


class ClusterLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._sockets = _Sockets()
        super().__init__(self._sockets)
        self.network = Network(self)
        self._processes = TaskList()
        self.set_task_factory(self._make_task)
        self.set_exception_handler(self._report)
        self._has_killed = False

    # -- life and death ------------------------------------------------------------------------

    async def freeze(self, process: Process) -> None:
        """SIGSTOP: it does nothing and notices nothing; the kernel takes bytes for it."""

        def freeze() -> None:
            process.frozen = True
            self._sockets.freeze(process)

        await self._at_rest(freeze)

    async def thaw(self, process: Process) -> None:
        def thaw() -> None:
            process.frozen = False
            self._sockets.thaw(process)
            self._give_turns(process)
            self.network.pump()

        await self._at_rest(thaw)

    async def kill(self, process: Process) -> None:
        """SIGKILL: peers see their connections reset."""

        def kill() -> None:
            process.revoke()
            self._end(process)

        await self._at_rest(kill)

    async def cut_off(self, process: Process) -> None:
        """Its machine dies: peers see nothing at all, until `bury`."""

        def cut_off() -> None:
            process.revoke()
            self._sockets.freeze(process)
            for transport in list(process.transports):
                transport.set_protocol(_Nobody())
            self._unwind(process)

        await self._at_rest(cut_off)

    async def bury(self, process: Process) -> None:
        """Its machine is back: whoever still talks to the dead learns that they are dead."""
        await self._at_rest(lambda: self._end(process))

    def _end(self, process: Process) -> None:
        # Connections first: what `finally` blocks still do must reach nobody.
        for server in process.servers:
            server.close()
        process.servers.clear()
        for transport in list(process.transports):
            _reset(transport)
        process.transports.clear()
        for connection in list(process.accepted):
            connection.close()
        process.accepted.clear()
        self._sockets.forget(process)
        self._unwind(process)

    def _unwind(self, process: Process) -> None:
        self._has_killed = True
        self.network.died(process)
        self._give_turns(process)
        self._processes.abandon(process)

    def _give_turns(self, process: Process) -> None:
        """To what was held back while the process was frozen."""
        parked, process.parked = process.parked, []
        for turn in parked:
            super().call_soon(turn, context=turn.context)

    def _report(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        is_dropped = "task" not in context and "never retrieved" in str(context.get("message"))
        if is_revocation(context.get("exception")) or (is_dropped and self._has_killed):
            return  # What the dead left behind is nobody's to handle.
        self.default_exception_handler(context)

    async def _at_rest(self, action: Callable[[], None]) -> None:
        done: asyncio.Future[None] = self.create_future()

        def act() -> None:
            try:
                action()
            except Exception as error:
                done.set_exception(error)
            else:
                done.set_result(None)

        self._sockets.between_rounds.append(act)
        await done

    # -- whose callback is it? -----------------------------------------------------------------

    def call_soon(
        self, callback: Callable[[Unpack[_Ts]], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.Handle:
        owner = owner_of(context)
        if owner is None:
            return super().call_soon(callback, *args, context=context)
        context = copy_context() if context is None else context
        turn = Turn(owner, callback, args, context)
        turn.handle = super().call_soon(turn, context=context)
        return turn.handle

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        owner = owner_of(context)
        if owner is None:
            return super().call_at(when, callback, *args, context=context)
        context = copy_context() if context is None else context
        turn = Turn(owner, callback, args, context)
        timer = super().call_at(when, turn, context=context)
        turn.handle = timer
        return timer

    def _make_task(
        self,
        _loop: asyncio.AbstractEventLoop,
        coroutine: Any,
        *,
        context: Context | None = None,
        name: str | None = None,
        **options: Any,
    ) -> "asyncio.Task[Any]":
        owner = owner_of(context)
        if context is None:  # An empty one is false, too.
            context = copy_context()
        if owner is None:
            options["name"] = name
            return asyncio.Task(coroutine, loop=self, context=context, **options)
        if owner.revoked:
            coroutine.close()
            owner.check()
        return self._processes.make(coroutine, self, name, context, options)

    # -- whose socket is it? -------------------------------------------------------------------

    async def create_server(self, *args: Any, **options: Any) -> Any:
        owner = running_process()
        server = await super().create_server(*args, **options)
        if owner is not None:
            owner.check()
            owner.servers.append(server)
            self.network.listens(owner, [each.getsockname()[1] for each in server.sockets])
        return server

    async def create_connection(self, protocol_factory: Any, *args: Any, **options: Any) -> Any:
        owner = running_process()
        connect = super().create_connection
        if owner is None:
            return await connect(protocol_factory, *args, **options)
        owner.check()
        return await self.network.connect(connect, owner, protocol_factory, *args, **options)

    # The only ways in which the loop itself accepts and makes transports; there is no public hook.

    def _accept_connection2(self, factory: Any, connection: socket.socket, *args: Any) -> Any:
        owner = running_process()
        if owner is not None:
            owner.accepted.add(connection)
        return super()._accept_connection2(factory, connection, *args)  # type: ignore[misc]

    def _make_socket_transport(self, *args: Any, **options: Any) -> asyncio.Transport:
        return _owned(super()._make_socket_transport(*args, **options))  # type: ignore[misc]

    def _make_ssl_transport(self, *args: Any, **options: Any) -> asyncio.Transport:
        return _owned(super()._make_ssl_transport(*args, **options))  # type: ignore[misc]


def _owned(transport: asyncio.Transport) -> asyncio.Transport:
    owner = running_process()
    if owner is not None:
        owner.transports.add(transport)
    return transport


def _reset(transport: asyncio.Transport) -> None:
    """Close a connection as the kernel does for a process that was killed."""
    sock = transport.get_extra_info("socket")
    if sock is not None and not transport.is_closing():
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    transport.set_protocol(_Nobody())
    transport.abort()
