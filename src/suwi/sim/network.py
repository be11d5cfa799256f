"""The simulated network: hosts, their listeners, and the links between them.

The event loop enters at `listen` and `connect`, tests at `cut`, `refuse`, `partition`, `heal`,
`slow`, `reset` and, through their machines, `kill` and `power_off`. It needs an event loop, which
may be a real one: the brokers of `suwi.testing` reach each other over it.
The incarnation that is running (`incarnation.current`) determines which host a call comes from; the
test itself is the host `outside`. A host's name is its address.
"""

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Iterable
from contextvars import Context, copy_context
from typing import Any

from suwi.sim.incarnation import Incarnation, current
from suwi.sim.random import SimRandom
from suwi.sim.transport import Address, Signal, SimTransport

OUTSIDE = "outside"
LOOPBACK = frozenset(("localhost", "127.0.0.1", "::1"))
WILDCARD = frozenset(("", "0.0.0.0", "::"))
CONNECT_WAITS_S = (1, 2, 4, 8, 16, 32, 64)
"""How long Linux waits after each unanswered attempt; after the last the connect times out."""


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
        self.server: asyncio.AbstractServer | None = None
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
            server = self.server if isinstance(self.server, SimServer) else None
            end.start(self._factory(), server)


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


class Host:
    def __init__(self, name: str) -> None:
        self.name = name
        self.is_up = True
        self.slow_s = 0.0
        self.listeners: dict[int, Listener] = {}
        self._next_port = 40_000

    def free_port(self) -> int:
        self._next_port += 1
        return self._next_port


class SimNetwork:
    def __init__(self, loop: asyncio.AbstractEventLoop, random: SimRandom) -> None:
        self.loop = loop
        self.window_bytes = 128 * 1024
        """How many bytes a connection buffers that its reader has not read."""
        self.delay_ms = (0.05, 1.0)
        """The least and the greatest delay between hosts whose link has no delay of its own."""
        self.chop_chance = 0.3
        """The probability that bytes written together arrive in pieces."""
        self.orderly_end_chance = 0.5
        """The probability that connections of a killed process end without a reset."""
        self.retransmission_s_max = 1.0
        """How long after a link is restored what was lost on it arrives, at most."""
        self.connect_waits_s: Iterable[float] = CONNECT_WAITS_S
        self._random = random
        self._context = Context()  # The network belongs to no process.
        self._hosts: dict[str, Host] = {}
        self._cuts: set[tuple[str, str]] = set()
        self._refusals: set[tuple[str, str]] = set()
        self._link_delays_ms: dict[tuple[str, str], tuple[float, float]] = {}
        self._ends: dict[SimTransport, None] = {}  # Ordered, unlike a set.
        self.add_host(OUTSIDE)

    # Hosts and links, as tests change them.

    def add_host(self, name: str) -> Host:
        return self._hosts.setdefault(name, Host(name))

    def cut(self, source: str, target: str) -> None:
        """Nothing sent from `source` reaches `target`; the other direction stays open."""
        self._cuts.add((source, target))

    def refuse(self, source: str, target: str) -> None:
        """A firewall resets connections of `source` to `target`, and refuses new ones."""
        self._refusals.add((source, target))
        for end in list(self._ends):
            if end.is_caller and (end.host, end.peer_host) == (source, target) and not end.closed:
                end.refuse()
                end.peer.refuse()

    def partition(self, *sides: Iterable[str]) -> None:
        """Cut every link between hosts of different sides, in both directions."""
        parts = [frozenset(side) for side in sides]
        for part in parts:
            for other in parts:
                if part is not other:
                    self._cuts.update((a, b) for a in part for b in other)

    def heal(self, a: str | None = None, b: str | None = None) -> None:
        """Restore the links between two hosts, all links of one, or all; TCP then retransmits."""
        ends = {host for host in (a, b) if host is not None}
        self._cuts = {link for link in self._cuts if not ends.issubset(link)}
        self._refusals = {link for link in self._refusals if not ends.issubset(link)}
        self._send_again()

    def slow(self, host: str, delay_ms: float) -> None:
        """Everything from or to this host takes this much longer; 0 ends it."""
        self._hosts[host].slow_s = delay_ms / 1000

    def set_delay(self, source: str, target: str, low_ms: float, high_ms: float) -> None:
        self._link_delays_ms[source, target] = (low_ms, high_ms)

    def reset(self, a: str, b: str | None = None) -> int:
        """Break the connections between two hosts, or all of one; both ends see a reset."""
        broken = 0
        for end in list(self._ends):
            if end.host == a and b in (None, end.peer_host) and not end.closed:
                end.refuse()
                end.peer.refuse()
                broken += 1
        return broken

    def connections(self, host: str) -> int:
        return sum(end.host == host and not end.closed for end in self._ends)

    # The end of processes and machines.

    def kill(self, incarnation: Incarnation) -> None:
        """A process is killed: its kernel closes what it had open."""
        self._close_listeners(incarnation)
        for end in list(self._ends):
            if end.incarnation is incarnation:
                orderly = not end.has_unread() and self._random.chance(self.orderly_end_chance)
                end.shut(Signal.EOF if orderly else Signal.RESET)

    def power_off(self, name: str) -> None:
        """A machine loses power: it sends nothing more, not even that its connections are gone."""
        host = self._hosts[name]
        host.is_up = False
        host.listeners.clear()
        for end in list(self._ends):
            if end.host == name:
                end.shut(None)

    def power_on(self, name: str) -> None:
        """The machine is on again: it refuses connections that it does not know."""
        self._hosts[name].is_up = True
        self._send_again()

    def close(self) -> None:
        """The end of the simulation: close everything."""
        for end in list(self._ends):
            end.shut(None)

    def _close_listeners(self, incarnation: Incarnation) -> None:
        host = self._hosts[incarnation.host]
        for listener in list(host.listeners.values()):
            if listener.incarnation is incarnation:
                listener.stop()

    def _send_again(self) -> None:
        for end in list(self._ends):
            end.send_again()

    # Entry points of the event loop.

    def listen(
        self, factory: Callable[[], asyncio.BaseProtocol], hosts: list[str], port: int
    ) -> Listener:
        host = self._hosts[_calling_host()]
        for name in hosts:
            if name not in WILDCARD and name not in LOOPBACK and name != host.name:
                raise _error(errno.EADDRNOTAVAIL, (name, port))
        port = port or host.free_port()
        if port in host.listeners:
            raise _error(errno.EADDRINUSE, (host.name, port))
        return Listener(
            host.listeners,
            factory,
            (current.get(), copy_context()),
            addresses=[(name or "0.0.0.0", port) for name in hosts],
            loopback_only=all(name in LOOPBACK for name in hosts),
        )

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[SimTransport, asyncio.BaseProtocol]:
        source = _calling_host()
        target = source if host in LOOPBACK else host
        if target not in self._hosts:
            raise socket.gaierror(socket.EAI_NONAME, f"no such host: {host}")
        for wait_s in self.connect_waits_s:
            await asyncio.sleep(self.delay_s(source, target))
            answered = not self.is_cut(source, target)
            listener = self._hosts[target].listeners.get(port)
            await asyncio.sleep(self.delay_s(target, source))
            if answered and not self.is_cut(target, source):
                is_refused = (source, target) in self._refusals
                if is_refused or listener is None or not listener.accepts_from(source, target):
                    raise _error(errno.ECONNREFUSED, (host, port))
                return self._establish(factory, source, target, port, listener)
            await asyncio.sleep(wait_s)
        raise _error(errno.ETIMEDOUT, (host, port))

    def _establish(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        source: str,
        target: str,
        port: int,
        listener: Listener,
    ) -> tuple[SimTransport, asyncio.BaseProtocol]:
        here: Address = (source, self._hosts[source].free_port())
        there: Address = (target, port)
        protocol = factory()
        near = SimTransport(self, (current.get(), copy_context()), here, there)
        far = SimTransport(self, (listener.incarnation, listener.context.copy()), there, here)
        near.is_caller = True
        near.join(far)
        far.join(near)
        self._ends[near] = self._ends[far] = None
        self.loop.call_soon(listener.accept, far, context=far.context)
        near.start(protocol)
        return near, protocol

    # Entry points of transports.

    def is_cut(self, source: str, target: str) -> bool:
        if source == target:
            return False
        if (source, target) in self._cuts:
            return True
        return not (self._hosts[source].is_up and self._hosts[target].is_up)

    def delay_s(self, source: str, target: str) -> float:
        if source == target:
            return self._random.uniform(0.0, 0.000_05)
        low_ms, high_ms = self._link_delays_ms.get((source, target), self.delay_ms)
        slow_s = self._hosts[source].slow_s + self._hosts[target].slow_s
        return self._random.uniform(low_ms, high_ms) / 1000 + slow_s

    def retransmission_s(self) -> float:
        return self._random.uniform(0.0, self.retransmission_s_max)

    def chop(self, size_bytes: int) -> int:
        """How many of these bytes arrive together."""
        if size_bytes < 2 or not self._random.chance(self.chop_chance):
            return size_bytes
        longest = size_bytes - 1 if self._random.chance(0.5) else min(size_bytes - 1, 16)
        return self._random.between(1, longest)

    def call_at(self, when: float, callback: Callable[..., None], *arguments: Any) -> None:
        self.loop.call_at(when, callback, *arguments, context=self._context)

    def forget_if_over(self, *ends: SimTransport) -> None:
        if all(end.closed and not end.has_messages_on_the_wire() for end in ends):
            for end in ends:
                self._ends.pop(end, None)


def _calling_host() -> str:
    incarnation = current.get()
    if incarnation is None:
        return OUTSIDE
    incarnation.check()
    return incarnation.host


def _error(code: int, address: Address) -> OSError:
    return OSError(code, f"{os.strerror(code)}: {address[0]}:{address[1]}")
