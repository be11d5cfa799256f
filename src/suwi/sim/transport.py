"""One end of a simulated connection: `asyncio.Transport` with flow control, as over a socket.

`write` passes bytes to the network while the window lasts and buffers the rest; `arrive` takes what
the network delivers. Protocol callbacks run in the context of the process that owns the end, so a
frozen process answers nothing and its peers fill their windows.
Invariant: bytes arrive in order and complete, up to the point where the connection breaks.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context
from enum import Enum, auto
from typing import Any, Protocol

from suwi.sim.incarnation import Incarnation

_READ_BYTES_MAX = 256 * 1024
_HIGH_WATER_BYTES = 64 * 1024


class Signal(Enum):
    """What is sent on a connection besides bytes."""

    EOF = auto()
    RESET = auto()


Message = bytes | Signal
Address = tuple[str, int]


class Network(Protocol):
    """What the ends of connections ask of the network."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def window_bytes(self) -> int: ...

    def chop(self, size_bytes: int) -> int: ...

    def delay_s(self, source: str, target: str) -> float: ...

    def retransmission_s(self) -> float: ...

    def is_cut(self, source: str, target: str) -> bool: ...

    def call_at(self, when: float, callback: Callable[..., None], *arguments: Any) -> None: ...

    def forget_if_over(self, *ends: "SimTransport") -> None: ...


class SimTransport(asyncio.Transport):
    """Not created directly: `SimNetwork.connect` creates both ends."""

    peer: "SimTransport"

    def __init__(
        self,
        network: Network,
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

    def join(self, peer: "SimTransport") -> None:
        self.peer = peer

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
