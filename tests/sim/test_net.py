"""The broker's own network code over the simulated network, with disks that are slow to read."""

import asyncio
import contextlib
import struct

from suwi.env import Env, FileRegion
from suwi.net.answers import NO_REPLY, Answer, Exclusive, Later, Reply
from suwi.net.connection import Connection
from suwi.net.limits import Limits
from suwi.net.listener import Budget, Listener
from suwi.sim import Machine, Simulation

_REGION_BYTES = 200_000


def _content(number: int) -> bytes:
    return bytes([number % 251]) * _REGION_BYTES


class Service:
    """Answers frames of (kind, number) in every way that a handler may answer."""

    def __init__(self, env: Env) -> None:
        self.env = env
        self.served: list[int] = []
        self.released = 0
        self.running_alone = False

    def dispatch(self, connection: Connection, frame: memoryview) -> tuple[bytes, Answer]:
        kind, number = struct.unpack_from(">ci", frame)
        assert not self.running_alone, "nothing starts while an exclusive request runs"
        self.served.append(number)
        return struct.pack(">i", number), self._answer(kind, number)

    def _answer(self, kind: bytes, number: int) -> Answer:
        match kind:
            case b"n":
                return NO_REPLY
            case b"l":
                return Later(self._later(number))
            case b"x":
                self.running_alone = True
                return Exclusive(self._later(number))
            case b"f":
                return self._from_file(number)
            case _:
                return Reply([b"now"])

    async def _later(self, number: int) -> Reply:
        await asyncio.sleep(self.env.random.uniform(0, 0.01))
        self.running_alone = False
        return Reply([b"later"])

    def _from_file(self, number: int) -> Reply:
        file = self.env.disk.open(f"/{number}", create=True)
        assert file.pwrite(_content(number), 0) == _REGION_BYTES

        def release() -> None:
            self.released += 1
            file.close()

        return Reply([b"file", FileRegion(file, 0, _REGION_BYTES)], release)


async def _start(machine: Machine, limits: Limits) -> tuple[Service, Listener]:
    service = Service(machine.start())
    machine.disk.faults.cold_chance = 0.3
    listener = Listener("PLAINTEXT", "b1", 9092, service.dispatch, Budget(limits, poison=True))
    await machine.spawn(listener.start())
    return service, listener


def _frame(kind: bytes, number: int, padding: int) -> bytes:
    return struct.pack(">ici", 5 + padding, kind, number) + bytes(padding)


async def _receive(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    (size_bytes,) = struct.unpack(">i", await reader.readexactly(4))
    body = await reader.readexactly(size_bytes)
    return struct.unpack_from(">i", body)[0], body[4:]


async def _converse(simulation: Simulation, requests: int) -> None:
    """Send everything at once, read slowly, expect every response in order."""
    workload = simulation.workload
    kinds = [bytes([workload.choice(b"nlxfr")]) for _ in range(requests)]
    reader, writer = await asyncio.open_connection("b1", 9092)
    try:
        for number, kind in enumerate(kinds):
            writer.write(_frame(kind, number, workload.choice((0, 100, 300_000))))
        for number, kind in enumerate(kinds):
            if kind == b"n":
                continue
            if workload.chance(0.2):
                await asyncio.sleep(1)
            answered, body = await _receive(reader)
            assert answered == number
            expected = {b"f": b"file" + _content(number), b"r": b"now"}.get(kind, b"later")
            assert body == expected
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def test_replies_leave_in_order_whatever_the_schedule() -> None:
    async def main() -> None:
        machine = simulation.machine("b1")
        limits = Limits(
            in_flight_requests_max=5,
            in_flight_bytes_max=500_000,
            turn_requests_max=1 + simulation.workload.below(4),
        )
        service, listener = await _start(machine, limits)
        await _converse(simulation, 25)
        await machine.spawn(listener.stop())
        assert service.served == list(range(25))
        assert not listener.connections
        files = sum(name.isdigit() for name in machine.disk.list_dir("/"))
        assert service.released == files

    for seed in range(25):
        simulation = Simulation(seed)
        simulation.run(main())


def test_a_broker_killed_amid_replies_ends_its_connections_and_comes_back() -> None:
    async def main() -> None:
        machine = simulation.machine("b1")
        await _start(machine, Limits())
        talking = asyncio.create_task(_converse(simulation, 50))
        await asyncio.sleep(simulation.faults.uniform(0, 2))
        machine.kill()
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await talking
        await _start(machine, Limits())
        await _converse(simulation, 5)

    for seed in range(25):
        simulation = Simulation(seed)
        simulation.run(main())


def test_an_idle_connection_is_swept_in_virtual_time() -> None:
    async def main() -> float:
        machine = simulation.machine("b1")
        await _start(machine, Limits(idle_ms_max=600_000))
        reader, writer = await asyncio.open_connection("b1", 9092)
        assert await reader.read() == b""
        writer.close()
        return simulation.loop.time()

    simulation = Simulation()
    assert 600 < simulation.run(main()) < 610
