"""An event loop that runs several brokers as if each had its own process.

Callbacks, tasks and sockets belong to the `Process` in whose context they were created, so a
process can be frozen (`freeze`, as SIGSTOP) or killed (`kill`, as SIGKILL) while the others run.
Connections between brokers go through the loop's `network`. The code of the brokers is unchanged:
it uses an asyncio loop.
Invariant: no code of a process runs while it is frozen, or after it was killed.
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
from suwi.testing.process import Process, ProcessCallback, owner_of, running_process

_Ts = TypeVarTuple("_Ts")

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class _Sockets(selectors.DefaultSelector):
    """Records which process owns which socket, and runs actions between iterations of the loop.

    `between_iterations`: actions to run between iterations. Within an iteration the loop may have
    events of sockets that it has not processed yet, which would still be delivered.
    """

    def __init__(self) -> None:
        super().__init__()
        self.between_iterations: deque[Callable[[], None]] = deque()
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
        while self.between_iterations:
            self.between_iterations.popleft()()
            timeout = 0  # the action may have scheduled callbacks
        return super().select(timeout)

    def freeze(self, process: Process) -> None:
        fds = [fd for fd, owner in self._owners.items() if owner is process]
        self._frozen.setdefault(process, []).extend(self.unregister(fd) for fd in fds)

    def thaw(self, process: Process) -> None:
        for key in self._frozen.pop(process, []):
            process.call(self.register, key.fileobj, key.events, key.data)

    def forget(self, process: Process) -> None:
        self._frozen.pop(process, None)


class _IgnoringProtocol(asyncio.Protocol):
    """The protocol of a killed process's connections: it ignores everything."""


class ClusterLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._sockets = _Sockets()
        super().__init__(self._sockets)
        self.network = Network(self)
        self._processes = TaskList()
        self.set_task_factory(self._make_task)
        self.set_exception_handler(self._report)
        self._has_killed_processes = False

    # -- freeze and kill -----------------------------------------------------------------------

    async def freeze(self, process: Process) -> None:
        """SIGSTOP: no code of the process runs; the kernel still receives bytes for it."""

        def freeze() -> None:
            process.frozen = True
            self._sockets.freeze(process)

        await self._between_iterations(freeze)

    async def thaw(self, process: Process) -> None:
        def thaw() -> None:
            process.frozen = False
            self._sockets.thaw(process)
            self._schedule_parked(process)
            self.network.deliver_due()

        await self._between_iterations(thaw)

    async def kill(self, process: Process) -> None:
        """SIGKILL: the connections of peers are reset."""

        def kill() -> None:
            process.revoke()
            self._close_sockets_and_tasks(process)

        await self._between_iterations(kill)

    async def cut_off(self, process: Process) -> None:
        """The machine fails: peers notice nothing until `release_sockets`."""

        def cut_off() -> None:
            process.revoke()
            self._sockets.freeze(process)
            for transport in list(process.transports):
                transport.set_protocol(_IgnoringProtocol())
            self._end_tasks(process)

        await self._between_iterations(cut_off)

    async def release_sockets(self, process: Process) -> None:
        """The machine is back: the connections to the old process are reset."""
        await self._between_iterations(lambda: self._close_sockets_and_tasks(process))

    def _close_sockets_and_tasks(self, process: Process) -> None:
        # Connections first: what `finally` blocks still send must not reach peers.
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
        self._end_tasks(process)

    def _end_tasks(self, process: Process) -> None:
        self._has_killed_processes = True
        self.network.process_ended(process)
        self._schedule_parked(process)
        self._processes.abandon(process)

    def _schedule_parked(self, process: Process) -> None:
        """Schedule the callbacks that were held back while the process was frozen."""
        parked, process.parked = process.parked, []
        for callback_of_process in parked:
            super().call_soon(callback_of_process, context=callback_of_process.context)

    def _report(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        is_leftover = "task" not in context and "never retrieved" in str(context.get("message"))
        if is_revocation(context.get("exception")) or (is_leftover and self._has_killed_processes):
            return  # leftovers of a killed process are expected
        self.default_exception_handler(context)

    async def _between_iterations(self, action: Callable[[], None]) -> None:
        done: asyncio.Future[None] = self.create_future()

        def act() -> None:
            try:
                action()
            except Exception as error:
                done.set_exception(error)
            else:
                done.set_result(None)

        self._sockets.between_iterations.append(act)
        await done

    # -- owners of callbacks -------------------------------------------------------------------

    def call_soon(
        self, callback: Callable[[Unpack[_Ts]], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.Handle:
        owner = owner_of(context)
        if owner is None:
            return super().call_soon(callback, *args, context=context)
        context = copy_context() if context is None else context
        callback_of_process = ProcessCallback(owner, callback, args, context)
        callback_of_process.handle = super().call_soon(callback_of_process, context=context)
        return callback_of_process.handle

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
        callback_of_process = ProcessCallback(owner, callback, args, context)
        timer = super().call_at(when, callback_of_process, context=context)
        callback_of_process.handle = timer
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
        if context is None:  # `or` would also replace an empty context
            context = copy_context()
        if owner is None:
            options["name"] = name
            return asyncio.Task(coroutine, loop=self, context=context, **options)
        if owner.revoked:
            coroutine.close()
            owner.check()
        return self._processes.make(coroutine, self, name, context, options)

    # -- owners of sockets ---------------------------------------------------------------------

    async def create_server(self, *args: Any, **options: Any) -> Any:
        owner = running_process()
        server = await super().create_server(*args, **options)
        if owner is not None:
            owner.check()
            owner.servers.append(server)
            self.network.register_ports(owner, [each.getsockname()[1] for each in server.sockets])
        return server

    async def create_connection(self, protocol_factory: Any, *args: Any, **options: Any) -> Any:
        owner = running_process()
        connect = super().create_connection
        if owner is None:
            return await connect(protocol_factory, *args, **options)
        owner.check()
        return await self.network.connect(connect, owner, protocol_factory, *args, **options)

    # The loop accepts connections and creates transports only here; there is no public hook.

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
    """Close a connection as the kernel does for a killed process."""
    sock = transport.get_extra_info("socket")
    if sock is not None and not transport.is_closing():
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    transport.set_protocol(_IgnoringProtocol())
    transport.abort()
