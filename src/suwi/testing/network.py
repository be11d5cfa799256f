"""The network between the brokers of one cluster, with slow and cut links.

A broker's connection to another broker goes through a `_Gate`, which delays the data of both
directions. The accepting side needs no gate. Connections of clients are not affected.
Invariant: the bytes of a connection arrive complete and in order, or not at all.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextvars import Context
from typing import Any, TypeAlias

from suwi.testing.process import Process

Connect = Callable[..., Awaitable[tuple[Any, Any]]]
_Protocol: TypeAlias = asyncio.Protocol | asyncio.BufferedProtocol


class Network:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._nodes: dict[int, int] = {}
        """The broker that listens on each port."""
        self._cuts: set[frozenset[int]] = set()
        self._delays_s: dict[int, float] = {}
        self._gates: dict[_Gate, None] = {}
        self._healed = asyncio.Event()

    # -- faults --------------------------------------------------------------------------------

    def cut(self, side: Iterable[int], others: Iterable[int]) -> None:
        """Stop all traffic between the two sides, without closing connections."""
        others = set(others)
        self._cuts |= {frozenset((a, b)) for a in side for b in others if a != b}

    def heal(self) -> None:
        """Remove all cuts. Data in transit arrives, as with TCP retransmission."""
        self._cuts.clear()
        healed, self._healed = self._healed, asyncio.Event()
        healed.set()
        self.deliver_due()

    def slow(self, node: int, delay_s: float) -> None:
        """Delay all traffic of a broker by `delay_s`."""
        self._delays_s[node] = delay_s
        self.deliver_due()

    def is_cut(self, a: int, b: int) -> bool:
        return frozenset((a, b)) in self._cuts

    def delay_s(self, a: int, b: int) -> float:
        return self._delays_s.get(a, 0.0) + self._delays_s.get(b, 0.0)

    # -- connections ---------------------------------------------------------------------------

    def register_ports(self, process: Process, ports: Iterable[int]) -> None:
        self._nodes.update(dict.fromkeys(ports, process.node))

    async def connect(
        self,
        connect: Connect,
        process: Process,
        protocol_factory: Callable[[], _Protocol],
        host: str | None = None,
        port: int | None = None,
        **options: Any,
    ) -> tuple[asyncio.Transport, _Protocol]:
        target = self._nodes.get(port or 0)
        if target is None or target == process.node:
            return await connect(protocol_factory, host, port, **options)
        while self.is_cut(process.node, target):
            await self._healed.wait()
        if self.delay_s(process.node, target):
            await asyncio.sleep(self.delay_s(process.node, target))
        gate = _Gate(self, self._loop, process, target, protocol_factory())
        await connect(lambda: gate, host, port, **options)
        return gate.transport, gate.protocol

    def opened(self, gate: "_Gate") -> None:
        self._gates[gate] = None

    def closed(self, gate: "_Gate") -> None:
        self._gates.pop(gate, None)

    def deliver_due(self) -> None:
        """Deliver what may be delivered now, after a change."""
        for gate in list(self._gates):
            gate.deliver_due()

    def process_ended(self, process: Process) -> None:
        """Data that the process sent over a cut link is lost: there is no retransmission."""
        for gate in list(self._gates):
            if gate.process is process:
                del self._gates[gate]
            elif gate.target == process.node:
                gate.peer_ended()


class _Gate(asyncio.Protocol):
    """One connection from a broker to another broker."""

    def __init__(
        self,
        network: Network,
        loop: asyncio.AbstractEventLoop,
        process: Process,
        target: int,
        protocol: _Protocol,
    ) -> None:
        self.process = process
        self.protocol = protocol
        self.transport = _GatedTransport(self)
        self._network = network
        self._loop = loop
        self.target = target
        self._out: deque[tuple[float, bytes | None]] = deque()
        self._in: deque[tuple[float, Callable[..., object], tuple[Any, ...]]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed_by_broker = False
        self._is_peer_lost = False

    # -- called by the broker ------------------------------------------------------------------

    def send(self, data: bytes | None) -> None:
        """Send bytes; None closes the connection."""
        if self._out or self._delay_s or self._is_cut:
            self._out.append((self._loop.time() + self._delay_s, data))
            self.deliver_due()
        else:
            self._send_now(data)

    def close(self, *, at_once: bool) -> None:
        """The broker has closed the connection: nothing more is delivered to it."""
        self._is_closed_by_broker = True
        if at_once or self._is_cut:
            self.transport.raw.abort()
        else:
            self.send(None)

    def _send_now(self, data: bytes | None) -> None:
        raw = self.transport.raw
        if data is None:
            raw.close()
        elif not raw.is_closing():
            raw.write(data)

    # -- called by the connection --------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport.raw = transport
        self._network.opened(self)
        self.protocol.connection_made(self.transport)

    def data_received(self, data: bytes) -> None:
        if not self._is_peer_lost:
            self._deliver_later(self._deliver, data)

    def _deliver(self, data: bytes) -> None:
        protocol = self.protocol
        if isinstance(protocol, asyncio.Protocol):
            protocol.data_received(data)
            return
        while data:
            with memoryview(protocol.get_buffer(len(data))) as buffer:
                size_bytes = min(len(buffer), len(data))
                buffer[:size_bytes] = data[:size_bytes]
            protocol.buffer_updated(size_bytes)
            data = data[size_bytes:]

    def peer_ended(self) -> None:
        if self._is_cut:
            self._is_peer_lost = True
            self._in = deque(event for event in self._in if event[1] != self._deliver)

    def eof_received(self) -> None:
        self._deliver_later(self.protocol.eof_received)

    def connection_lost(self, error: Exception | None) -> None:
        if self._is_closed_by_broker:
            self._in.clear()
            self._end(error)
        else:
            self._deliver_later(self._end, error)

    def pause_writing(self) -> None:
        self.protocol.pause_writing()

    def resume_writing(self) -> None:
        self.protocol.resume_writing()

    def _end(self, error: Exception | None) -> None:
        self._network.closed(self)
        self.protocol.connection_lost(error)

    def _deliver_later(self, call: Callable[..., object], *args: Any) -> None:
        if self._in or self._delay_s or self._is_cut:
            self._in.append((self._loop.time() + self._delay_s, call, args))
            self.deliver_due()
        else:
            call(*args)

    # -- delivery ------------------------------------------------------------------------------

    @property
    def _is_cut(self) -> bool:
        return self._network.is_cut(self.process.node, self.target)

    @property
    def _delay_s(self) -> float:
        return self._network.delay_s(self.process.node, self.target)

    def deliver_due(self) -> None:
        if self._is_cut or self.process.revoked:
            return
        now_s = self._loop.time()
        while self._out and self._out[0][0] <= now_s:
            self._send_now(self._out.popleft()[1])
        if not self.process.frozen:
            while self._in and self._in[0][0] <= now_s:
                _, call, args = self._in.popleft()
                self.process.call(call, *args)
        self._schedule()

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting = [queue[0][0] for queue in (self._out, self._in) if queue]
        if waiting and not (self.process.frozen and min(waiting) <= self._loop.time()):
            # In an empty context, since the network is not part of the process: data is sent even
            # while the process is frozen.
            self._timer = self._loop.call_at(min(waiting), self.deliver_due, context=Context())


class _GatedTransport(asyncio.Transport):
    """The transport that the broker uses."""

    raw: asyncio.Transport

    def __init__(self, gate: _Gate) -> None:
        super().__init__()
        self._gate = gate

    def write(self, data: Any) -> None:
        self._gate.send(bytes(data))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self._gate.send(b"".join(list_of_data))

    def close(self) -> None:
        self._gate.close(at_once=False)

    def abort(self) -> None:
        self._gate.close(at_once=True)

    def is_closing(self) -> bool:
        return self.raw.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.raw.get_extra_info(name, default)

    def get_write_buffer_size(self) -> int:
        return self.raw.get_write_buffer_size()

    def pause_reading(self) -> None:
        self.raw.pause_reading()

    def resume_reading(self) -> None:
        self.raw.resume_reading()
