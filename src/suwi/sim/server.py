"""What `create_server` returns: listeners on the simulated network, and their connections."""

import asyncio
from collections.abc import Callable
from contextvars import Context

from suwi.sim.incarnation import Incarnation
from suwi.sim.transport import Address, Signal, SimTransport


class Listener:
    """One port of one host. Connections are accepted in the context that created it."""

    def __init__(
        self,
        table: "dict[int, Listener]",
        factory: Callable[[], asyncio.BaseProtocol],
        owner: tuple[Incarnation | None, Context],
        *,
        addresses: list[Address],
        loopback_only: bool,
    ) -> None:
        self._table = table
        self._factory = factory
        self.incarnation, self.context = owner
        self.addresses = addresses
        self._loopback_only = loopback_only
        self.server: SimServer | None = None
        table[addresses[0][1]] = self

    def is_closed(self) -> bool:
        return self._table.get(self.addresses[0][1]) is not self

    def accepts_from(self, source: str, target: str) -> bool:
        serving = self.server is not None and self.server.is_serving()
        is_near = not self._loopback_only or source == target
        return serving and is_near and not self.is_closed()

    def stop(self) -> None:
        if not self.is_closed():
            del self._table[self.addresses[0][1]]

    def accept(self, end: SimTransport) -> None:
        if self.is_closed():
            end.shut(Signal.RESET)
        elif not end.closed:
            end.start(self._factory(), self.server)


class SimSocket:
    """The part of a listening socket that code uses."""

    def __init__(self, address: Address) -> None:
        self._address = address

    def getsockname(self) -> Address:
        return self._address

    def fileno(self) -> int:
        return -1


class SimServer(asyncio.AbstractServer):
    def __init__(self, loop: asyncio.AbstractEventLoop, listener: Listener) -> None:
        self._loop = loop
        self._listener = listener
        self._serving = False
        self._closed = False
        self._ends: dict[SimTransport, None] = {}
        self._waiters: list[asyncio.Future[None]] = []
        self._forever: asyncio.Future[None] | None = None
        listener.server = self

    @property
    def sockets(self) -> tuple[SimSocket, ...]:
        if self._closed:
            return ()
        return tuple(SimSocket(address) for address in self._listener.addresses)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def is_serving(self) -> bool:
        return self._serving

    async def start_serving(self) -> None:
        self._serving = not self._closed

    async def serve_forever(self) -> None:
        if self._closed:
            raise RuntimeError("server is closed")
        await self.start_serving()
        self._forever = self._loop.create_future()
        try:
            await self._forever
        except asyncio.CancelledError:
            self.close()
            await self.wait_closed()
            raise

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._serving = False
        self._listener.stop()
        if self._forever is not None and not self._forever.done():
            self._forever.cancel()
        self._wake()

    def close_clients(self) -> None:
        for end in list(self._ends):
            end.close()

    def abort_clients(self) -> None:
        for end in list(self._ends):
            end.abort()

    async def wait_closed(self) -> None:
        """Returns when the server is closed and its last connection lost, as since Python 3.12."""
        if self._closed and not self._ends:
            return
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        await waiter

    def attach(self, end: SimTransport) -> None:
        self._ends[end] = None

    def detach(self, end: SimTransport) -> None:
        self._ends.pop(end, None)
        self._wake()

    def _wake(self) -> None:
        if self._closed and not self._ends:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
