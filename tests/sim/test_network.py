"""Connections over the simulated network: bytes arrive complete and in order, or it breaks."""

import asyncio
import errno
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from suwi import sim
from suwi.sim import Machine, Simulation

_SEEDS = range(15)
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Receiver(asyncio.Protocol):
    """Records everything that happened to it."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.received = bytearray()
        self.pieces = 0
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.transport: Any = None
        self.keep_open_after_eof = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.pieces += 1

    def eof_received(self) -> bool:
        self.events.append("eof")
        return self.keep_open_after_eof

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("lost")
        self.lost.set_result(exc)


class BufferedReceiver(asyncio.BufferedProtocol):
    def __init__(self, size_bytes: int) -> None:
        self.buffer = bytearray(size_bytes)
        self.received = bytearray()
        self.lost = asyncio.get_running_loop().create_future()

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self.buffer[:nbytes]

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)


async def _pair(
    machine: Machine, make: Callable[[], Any] = Receiver
) -> tuple[Receiver, Any, asyncio.AbstractServer]:
    """A connection from outside to a machine: the client's end, the server's end, the server."""
    loop = asyncio.get_running_loop()
    accepted: list[Any] = []

    def factory() -> Any:
        accepted.append(make())
        return accepted[-1]

    server = await machine.spawn(loop.create_server(factory, machine.name, 9092))
    _, client = await loop.create_connection(Receiver, machine.name, 9092)
    await asyncio.sleep(1)
    return client, accepted[0], server


def _simulate(
    scenario: Callable[[Simulation, Machine], Coroutine[Any, Any, Any]], seed: int = 0
) -> Any:
    async def main() -> Any:
        machine = simulation.machine("b1")
        machine.start()
        return await scenario(simulation, machine)

    simulation = Simulation(seed)
    return simulation.run(main())


def test_bytes_arrive_in_order_in_pieces_after_a_delay() -> None:
    data = os.urandom(3000)

    async def scenario(simulation: Simulation, machine: Machine) -> int:
        client, server, _ = await _pair(machine)
        before = simulation.loop.time()
        for start in range(0, len(data), 100):
            client.transport.write(data[start : start + 100])
        client.transport.close()
        await server.lost
        assert simulation.loop.time() > before
        assert server.received == data
        return server.pieces

    assert len({_simulate(scenario, seed) for seed in _SEEDS}) > 3


@pytest.mark.parametrize("size_bytes", [1, 7, 100_000])
def test_a_buffered_protocol_reads_through_its_own_buffer(size_bytes: int) -> None:
    data = os.urandom(2000)

    async def scenario(simulation: Simulation, machine: Machine) -> None:
        client, server, _ = await _pair(machine, lambda: BufferedReceiver(size_bytes))
        client.transport.writelines([data[:500], memoryview(data)[500:]])
        client.transport.close()
        assert await server.lost is None
        assert server.received == data

    _simulate(scenario)


def test_a_close_delivers_what_was_written_and_then_ends_both_sides() -> None:
    async def scenario(simulation: Simulation, machine: Machine) -> None:
        client, server, listening = await _pair(machine)
        client.transport.write(bytes(1_000_000))
        client.transport.close()
        client.transport.write(b"too late")
        assert client.transport.is_closing()
        assert await client.lost is None
        assert await server.lost is None
        assert server.events == ["eof", "lost"]
        assert len(server.received) == 1_000_000
        listening.close()
        await listening.wait_closed()
        assert simulation.network.connections("b1") == 0

    for seed in _SEEDS:
        _simulate(scenario, seed)


def test_half_a_connection_can_be_closed() -> None:
    async def scenario(simulation: Simulation, machine: Machine) -> None:
        client, server, _ = await _pair(machine)
        server.keep_open_after_eof = True
        client.transport.write(b"question")
        client.transport.write_eof()
        with pytest.raises(RuntimeError, match="write_eof"):
            client.transport.write(b"more")
        await asyncio.sleep(1)
        assert server.events == ["eof"]
        server.transport.write(b"answer")
        server.transport.close()
        await client.lost
        assert client.received == b"answer"
        assert server.events == ["eof", "lost"]

    _simulate(scenario)


def test_a_reader_that_pauses_stops_the_writer() -> None:
    async def scenario(simulation: Simulation, machine: Machine) -> None:
        client, server, _ = await _pair(machine)
        client.transport.set_write_buffer_limits(high=0)
        client.transport.write(b"x" * 1000)
        assert client.events == [], "the kernel takes small writes"
        await asyncio.sleep(1)
        server.transport.pause_reading()
        client.transport.write(bytes(1_000_000))
        assert client.events == ["pause"]
        await asyncio.sleep(100)
        assert len(server.received) == 1000
        waiting = client.transport.get_write_buffer_size()
        assert waiting == 1_000_000 - simulation.network.window_bytes
        server.transport.resume_reading()
        await asyncio.sleep(100)
        assert len(server.received) == 1_001_000
        assert client.events == ["pause", "resume"]
        assert client.transport.get_write_buffer_size() == 0

    for seed in _SEEDS:
        _simulate(scenario, seed)


def test_addresses_are_host_names() -> None:
    async def scenario(simulation: Simulation, machine: Machine) -> None:
        client, server, listening = await _pair(machine)
        assert client.transport.get_extra_info("peername") == ("b1", 9092)
        assert server.transport.get_extra_info("sockname") == ("b1", 9092)
        sockname = client.transport.get_extra_info("sockname")
        assert sockname[0] == "outside"
        assert server.transport.get_extra_info("peername") == sockname
        assert client.transport.get_extra_info("socket") is None
        assert client.transport.get_extra_info("cipher", "none") == "none"
        assert [each.getsockname() for each in listening.sockets] == [("b1", 9092)]  # type: ignore[attr-defined]

    _simulate(scenario)


def test_connecting_where_nobody_listens_is_refused() -> None:
    async def scenario(simulation: Simulation, machine: Machine) -> None:
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("b1", 9092)
        with pytest.raises(socket.gaierror):
            await asyncio.open_connection("nowhere", 9092)
        server = await machine.spawn(asyncio.start_server(_echo, None, 0))
        port = server.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection("b1", port)
        writer.close()
        server.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("b1", port)

    _simulate(scenario)


def test_a_port_is_taken_once_and_only_on_the_own_host() -> None:
    async def scenario(simulation: Simulation, machine: Machine) -> None:
        await machine.spawn(asyncio.start_server(_echo, "0.0.0.0", 9092))
        with pytest.raises(OSError, match=os.strerror(errno.EADDRINUSE)):
            await machine.spawn(asyncio.start_server(_echo, "b1", 9092))
        with pytest.raises(OSError, match=os.strerror(errno.EADDRNOTAVAIL)):
            await machine.spawn(asyncio.start_server(_echo, "b2", 9093))

    _simulate(scenario)


def test_a_loopback_listener_is_not_seen_from_other_hosts() -> None:
    async def scenario(simulation: Simulation, machine: Machine) -> None:
        await machine.spawn(asyncio.start_server(_echo, "localhost", 9092))
        _, writer = await machine.spawn(asyncio.open_connection("127.0.0.1", 9092))
        writer.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("b1", 9092)

    _simulate(scenario)


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(100):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


async def _ask(streams: Streams, question: bytes) -> bytes:
    reader, writer = streams
    writer.write(question)
    return await reader.readexactly(len(question))


async def _no_answer(question: Awaitable[bytes], timeout_s: float = 50) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(question, timeout_s)


def test_over_a_cut_link_nothing_arrives_until_it_is_healed() -> None:
    async def scenario(simulation: Simulation, machine: Machine) -> None:
        await machine.spawn(asyncio.start_server(_echo, "b1", 9092))
        streams = await asyncio.open_connection("b1", 9092)
        assert await _ask(streams, b"one") == b"one"
        simulation.network.partition({"outside"}, {"b1"})
        await _no_answer(_ask(streams, b"two"))
        simulation.network.heal()
        assert await streams[0].readexactly(3) == b"two", "TCP sends again what was lost"
        streams[1].close()

    for seed in _SEEDS:
        _simulate(scenario, seed)


@pytest.mark.parametrize(("cut", "heard"), [(("outside", "b1"), b""), (("b1", "outside"), b"q")])
def test_a_cut_works_one_way(cut: tuple[str, str], heard: bytes) -> None:
    async def scenario(simulation: Simulation, machine: Machine) -> None:
        client, server, _ = await _pair(machine)
        simulation.network.cut(*cut)
        client.transport.write(b"q")
        await asyncio.sleep(50)
        assert server.received == heard
        simulation.network.heal("b1")
        await asyncio.sleep(5)
        assert server.received == b"q"

    _simulate(scenario)


def test_bytes_on_the_way_keep_their_order_over_cut_and_heal() -> None:
    async def scenario(simulation: Simulation, machine: Machine) -> None:
        client, server, _ = await _pair(machine)
        sent = b""
        for number in range(60):
            data = bytes([number]) * 50
            sent += data
            client.transport.write(data)
            if number % 10 == 3:
                simulation.network.cut("outside", "b1")
            if number % 10 == 8:
                simulation.network.heal("outside", "b1")
            await asyncio.sleep(simulation.workload.uniform(0, 0.002))
        await asyncio.sleep(10)
        assert server.received == sent

    for seed in range(50):
        _simulate(scenario, seed)


def test_connecting_over_a_cut_link_succeeds_after_healing_or_times_out() -> None:
    async def scenario(simulation: Simulation, machine: Machine) -> None:
        await machine.spawn(asyncio.start_server(_echo, "b1", 9092))
        simulation.network.cut("b1", "outside")
        connecting = asyncio.create_task(asyncio.open_connection("b1", 9092))
        await asyncio.sleep(10)
        assert not connecting.done()
        simulation.network.heal()
        (await connecting)[1].close()
        simulation.network.cut("outside", "b1")
        with pytest.raises(TimeoutError):
            await asyncio.open_connection("b1", 9092)
        assert 120 < simulation.loop.time() < 160

    _simulate(scenario)


def test_a_link_that_refuses_breaks_what_is_open_and_connects_nothing_until_it_is_healed() -> None:
    async def scenario(simulation: Simulation, machine: Machine) -> None:
        await machine.spawn(asyncio.start_server(_echo, "b1", 9092))
        streams = await asyncio.open_connection("b1", 9092)
        simulation.network.refuse("outside", "b1")
        with pytest.raises(ConnectionResetError):
            await streams[0].readexactly(1)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("b1", 9092)
        streams[1].close()
        simulation.network.heal("b1", "outside")
        again = await asyncio.open_connection("b1", 9092)
        await _ask(again, b"again")
        again[1].close()

    _simulate(scenario)


def test_a_slow_host_is_slow_both_ways() -> None:
    async def scenario(simulation: Simulation, machine: Machine) -> None:
        await machine.spawn(asyncio.start_server(_echo, "b1", 9092))
        streams = await asyncio.open_connection("b1", 9092)
        before = simulation.loop.time()
        simulation.network.slow("b1", 500)
        await _ask(streams, b"slow")
        assert simulation.loop.time() - before > 1
        simulation.network.slow("b1", 0)
        simulation.network.set_delay("outside", "b1", 3000, 4000)
        before = simulation.loop.time()
        await _ask(streams, b"far")
        assert 3 < simulation.loop.time() - before < 5
        streams[1].close()

    _simulate(scenario)


def test_a_reset_breaks_both_ends() -> None:
    async def scenario(simulation: Simulation, machine: Machine) -> None:
        client, server, _ = await _pair(machine)
        simulation.network.reset("outside", "b1")
        assert isinstance(await client.lost, ConnectionResetError)
        assert isinstance(await server.lost, ConnectionResetError)

    _simulate(scenario)


def test_an_aborted_connection_ends_at_once() -> None:
    async def scenario(simulation: Simulation, machine: Machine) -> None:
        client, server, _ = await _pair(machine)
        client.transport.write(bytes(1_000_000))
        client.transport.abort()
        assert await client.lost is None
        await server.lost
        assert len(server.received) < 1_000_000

    _simulate(scenario)


def test_writing_to_an_end_that_closed_brings_a_reset() -> None:
    async def scenario(simulation: Simulation, machine: Machine) -> None:
        client, server, _ = await _pair(machine)
        client.keep_open_after_eof = True
        server.transport.close()
        await asyncio.sleep(1)
        assert client.events == ["eof"]
        client.transport.write(b"anyone there?")
        assert isinstance(await client.lost, ConnectionError)

    _simulate(scenario)


def test_a_writer_that_waits_for_room_learns_of_a_reset_without_reading() -> None:
    async def scenario(simulation: Simulation, machine: Machine) -> None:
        client, server, _ = await _pair(machine)
        server.transport.pause_reading()
        client.transport.pause_reading()
        client.transport.write(bytes(1_000_000))
        await asyncio.sleep(1)
        machine.kill()
        assert isinstance(await client.lost, ConnectionError)

    for seed in _SEEDS:
        _simulate(scenario, seed)


def test_streams_work_as_over_sockets() -> None:
    data = os.urandom(300_000)

    async def main() -> None:
        async with await asyncio.start_server(_echo, port=9000) as server:
            reader, writer = await asyncio.open_connection("localhost", 9000)
            received, _ = await asyncio.gather(reader.readexactly(len(data)), _send(writer))
            assert received == data
            writer.close()
            await writer.wait_closed()
            assert server.is_serving()

    async def _send(writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()

    for seed in _SEEDS:
        sim.run(main(), seed=seed)
