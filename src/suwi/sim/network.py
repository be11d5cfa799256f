"""The simulated network: hosts, their listeners, and the links between them.

The event loop enters at `listen` and `connect`, tests at `cut`, `refuse`, `partition`, `heal`,
`slow`, `reset` and, through their machines, `kill` and `power_off`. It needs an event loop, which
may be a real one: the brokers of `suwi.testing` reach each other over it.
The incarnation that is running (`incarnation.current`) determines which host a call comes from; the
test itself is the host `outside`. A host's name is its address.
Invariant: bytes arrive in order and complete, up to the point where the connection breaks.
"""

import asyncio
import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context, copy_context
from enum import Enum, auto
from typing import Any

from suwi.sim.incarnation import Incarnation, current
from suwi.sim.random import SimRandom

OUTSIDE = "outside"
LOOPBACK = frozenset(("localhost", "127.0.0.1", "::1"))
WILDCARD = frozenset(("", "0.0.0.0", "::"))
CONNECT_WAITS_S = (1, 2, 4, 8, 16, 32, 64)
"""How long Linux waits after each unanswered attempt; after the last the connect times out."""

_READ_BYTES_MAX = 256 * 1024
_HIGH_WATER_BYTES = 64 * 1024


class Signal(Enum):
    """What is sent on a connection besides bytes."""

    EOF = auto()
    RESET = auto()


Message = bytes | Signal
Address = tuple[str, int]


class SimTransport(asyncio.Transport):
    """One end of a connection, with flow control, as over a socket. `connect` creates both ends.

    `write` passes bytes to the network while the window lasts and buffers the rest; `arrive` takes
    what the network delivers. Protocol callbacks run in the context of the process that owns the
    end, so a frozen process answers nothing and its peers fill their windows.
    """

    peer: "SimTransport"

    def __init__(
        self,
        network: "SimNetwork",
        owner: tuple[Incarnation | None, Context],
        sockname: Address,
        peername: Address,
    ) -> None:
        super().__init__({"sockname": sockname, "peername": peername, "socket": None})
        self._network = network
        self._loop = network.loop
        self.incarnation, self.context = owner
        self.host, self.peer_host = sockname[0], peername[0]
        self.is_caller = False
        """This end opened the connection, the other end accepted it."""
        self.sim_label = f"{sockname[0]}:{sockname[1]}-{peername[0]}:{peername[1]}"
        self._protocol: asyncio.BaseProtocol | None = None
        self._server: Any = None
        # Sending.
        self._buffer = bytearray()
        self._unread_bytes = 0
        self._last_arrival = 0.0
        self._on_the_wire: deque[Message] = deque()
        self._arrivals_missed = 0
        self._acks_missed_bytes = 0
        self._high, self._low = _HIGH_WATER_BYTES, _HIGH_WATER_BYTES // 4
        self._write_paused = False
        self._eof_written = False
        self._eof_sent = False
        # Receiving.
        self._inbox = bytearray()
        self._inbox_end: Signal | None = None
        self._read_paused = False
        self._read_scheduled = False
        # The end.
        self._closing = False
        self._lost = False
        self.closed = False

    # The owner's side: connection and protocol.

    def start(self, protocol: asyncio.BaseProtocol, server: Any = None) -> None:
        self._protocol = protocol
        self._server = server
        if server is not None:
            server.attach(self)
        protocol.connection_made(self)
        self._schedule_read()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        self._schedule_read()

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        if not self._buffer:
            self._lose(None)

    def abort(self) -> None:
        self._break(None)

    # The owner's side: reading.

    def is_reading(self) -> bool:
        return not self._closing and not self._read_paused

    def pause_reading(self) -> None:
        self._read_paused = True

    def resume_reading(self) -> None:
        self._read_paused = False
        self._schedule_read()

    def _schedule_read(self) -> None:
        wanted = self._protocol is not None and not (self._read_paused or self._closing)
        if wanted and not self._read_scheduled and (self._inbox or self._inbox_end):
            self._read_scheduled = True
            self._loop.call_soon(self._read, context=self.context)

    def _read(self) -> None:
        self._read_scheduled = False
        if self._read_paused or self._closing:
            return
        if self._inbox:
            self._deliver()
        elif self._inbox_end is Signal.RESET:
            self._break(ConnectionResetError("connection reset by peer"))
        elif self._inbox_end is Signal.EOF:
            self._inbox_end = None
            assert isinstance(self._protocol, asyncio.Protocol | asyncio.BufferedProtocol)
            if not self._protocol.eof_received():
                self.close()
        self._schedule_read()

    def _deliver(self) -> None:
        protocol = self._protocol
        if isinstance(protocol, asyncio.BufferedProtocol):
            with memoryview(protocol.get_buffer(-1)) as buffer:
                size_bytes = min(len(buffer), len(self._inbox))
                if not size_bytes:
                    raise RuntimeError("get_buffer() returned an empty buffer")
                buffer[:size_bytes] = self._inbox[:size_bytes]
            self._take(size_bytes)
            protocol.buffer_updated(size_bytes)
        else:
            assert isinstance(protocol, asyncio.Protocol)
            data = bytes(self._inbox[:_READ_BYTES_MAX])
            self._take(len(data))
            protocol.data_received(data)

    def _take(self, size_bytes: int) -> None:
        del self._inbox[:size_bytes]
        self.peer._acknowledge(size_bytes)

    # The owner's side: writing.

    def write(self, data: Any) -> None:
        if self._eof_written:
            raise RuntimeError("Cannot call write() after write_eof()")
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"data must be bytes-like, not {type(data).__name__}")
        if self._lost or self._closing or not data:
            return
        self._buffer += data
        self._push()
        if self._inbox_end is Signal.RESET:
            self._break(BrokenPipeError("broken pipe"))
        else:
            self._pause_if_full()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        if self._eof_written or self._closing:
            return
        self._eof_written = True
        if not self._buffer:
            self._send_eof()

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return len(self._buffer)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = _HIGH_WATER_BYTES if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high}) must be >= low ({low}) must be >= 0")
        self._high, self._low = high, low
        self._pause_if_full()

    def _pause_if_full(self) -> None:
        if len(self._buffer) > self._high and not self._write_paused:
            self._write_paused = True
            assert self._protocol is not None
            self._protocol.pause_writing()

    def _push(self) -> None:
        """Pass the kernel what it accepts."""
        window_bytes = self._network.window_bytes
        while self._buffer and self._unread_bytes < window_bytes:
            room_bytes = min(len(self._buffer), window_bytes - self._unread_bytes)
            size_bytes = self._network.chop(room_bytes)
            chunk = bytes(self._buffer[:size_bytes])
            del self._buffer[:size_bytes]
            self._unread_bytes += size_bytes
            self._send(chunk)

    def _write_ready(self) -> None:
        if self._lost:
            return
        if self._inbox_end is Signal.RESET:
            self._break(BrokenPipeError("broken pipe"))
            return
        self._push()
        if self._write_paused and len(self._buffer) <= self._low:
            self._write_paused = False
            assert self._protocol is not None
            self._protocol.resume_writing()
        if not self._buffer and not self._lost:
            if self._closing:
                self._lose(None)
            elif self._eof_written:
                self._send_eof()

    def _send_eof(self) -> None:
        if not self._eof_sent:
            self._eof_sent = True
            self._send(Signal.EOF)

    # The owner's side: the end.

    def _break(self, error: Exception | None) -> None:
        self._buffer.clear()
        self._closing = True
        self._lose(error)

    def _lose(self, error: Exception | None) -> None:
        if not self._lost:
            self._lost = True
            self._loop.call_soon(self._call_connection_lost, error, context=self.context)

    def _call_connection_lost(self, error: Exception | None) -> None:
        try:
            if self._protocol is not None:
                self._protocol.connection_lost(error)
        finally:
            # As in a kernel: closing with unread bytes is a reset.
            self.shut(Signal.RESET if self._inbox else Signal.EOF)

    def shut(self, signal: Signal | None) -> None:
        """The kernel closes this end and notifies the peer, unless the machine lost its power."""
        if self.closed:
            return
        self.closed = self._closing = self._lost = True
        self._buffer.clear()
        self._inbox.clear()
        if signal is None:
            self.lose_sent()
        elif signal is Signal.EOF:
            self._send_eof()
        elif self._inbox_end is not Signal.RESET:
            self._send(signal)
        if self._server is not None:
            self._server.detach(self)
        self._network.forget_if_over(self, self.peer)

    # The network's side.

    def has_messages_on_the_wire(self) -> bool:
        return bool(self._on_the_wire)

    def has_unread(self) -> bool:
        return bool(self._inbox)

    def lose_sent(self) -> None:
        """What has been sent and not arrived is lost: nobody retransmits it."""
        self._on_the_wire.clear()

    def _send(self, message: Message) -> None:
        now = self._loop.time()
        if self.incarnation is not None:
            now = max(now, self.incarnation.stalled_until)
        delay_s = self._network.delay_s(self.host, self.peer_host)
        self._last_arrival = max(now + delay_s, self._last_arrival)
        self._on_the_wire.append(message)
        self._network.call_at(self._last_arrival, self._bring_next)

    def _bring_next(self) -> None:
        """Deliver in the order of sending, whichever message this arrival was scheduled for."""
        if self._network.is_cut(self.host, self.peer_host):
            self._arrivals_missed += 1
        elif self._on_the_wire:
            self.peer.arrive(self._on_the_wire.popleft())

    def send_again(self) -> None:
        """The link is restored: retransmit what was lost on it, and acknowledge what was read."""
        if self._arrivals_missed and not self._network.is_cut(self.host, self.peer_host):
            missed, self._arrivals_missed = self._arrivals_missed, 0
            retransmission = self._loop.time() + self._network.retransmission_s()
            self._last_arrival = max(retransmission, self._last_arrival)
            for _ in range(missed):
                self._network.call_at(self._last_arrival, self._bring_next)
        if self._acks_missed_bytes and not self._network.is_cut(self.peer_host, self.host):
            size_bytes, self._acks_missed_bytes = self._acks_missed_bytes, 0
            self._acknowledge(size_bytes)

    def arrive(self, message: Message) -> None:
        if self.closed:
            if isinstance(message, bytes):
                self.peer.refuse()
        elif self._inbox_end is Signal.RESET:
            pass  # Bytes after a reset belong to no connection.
        elif isinstance(message, bytes):
            self._inbox += message
        else:
            self._inbox_end = message
            if message is Signal.RESET and self._buffer:
                # A writer that waits for room is notified even while it does not read.
                self._loop.call_soon(self._write_ready, context=self.context)
        self._network.forget_if_over(self, self.peer)
        self._schedule_read()

    def refuse(self) -> None:
        """The peer's kernel does not know this connection any more."""
        if not self.closed:
            delay_s = self._network.delay_s(self.peer_host, self.host)
            self._network.call_at(self._loop.time() + delay_s, self._arrive_refusal)

    def _arrive_refusal(self) -> None:
        # If the way back is cut the refusal is lost; the next bytes cause another.
        if not self._network.is_cut(self.peer_host, self.host):
            self.arrive(Signal.RESET)

    def _acknowledge(self, size_bytes: int) -> None:
        """The peer has read this much: there is room for more."""
        if self._network.is_cut(self.peer_host, self.host):
            self._acks_missed_bytes += size_bytes
        elif not self._buffer:
            self._unread_bytes -= size_bytes  # Nobody waits for it, so it needs no event.
        else:
            delay_s = self._network.delay_s(self.peer_host, self.host)
            self._network.call_at(self._loop.time() + delay_s, self._acknowledged, size_bytes)

    def _acknowledged(self, size_bytes: int) -> None:
        self._unread_bytes -= size_bytes
        if not self._lost:
            self._loop.call_soon(self._write_ready, context=self.context)


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
        for listener in list(self._hosts[incarnation.host].listeners.values()):
            if listener.incarnation is incarnation:
                listener.stop()
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
        near.peer, far.peer = far, near
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
