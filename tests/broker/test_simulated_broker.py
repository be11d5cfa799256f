"""A whole broker with simulated time, network and disk: acknowledged records survive."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from suwi.client.connection import ConnectionLost, PeerConnection
from suwi.sim import Simulation
from tests.broker.simulated import (
    SimBroker,
    create_topic,
    fetch,
    produce,
    read_all,
    wait_until_up,
)

TOPIC = "orders"
SEEDS = [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 10))]


class Ledger:
    """Offset -> value of every acknowledged record."""

    def __init__(self) -> None:
        self.acked: dict[int, bytes] = {}
        self.sent: set[bytes] = set()

    async def keep_producing(self, client: PeerConnection, simulation: Simulation) -> None:
        """Produce until the connection is lost."""
        number = len(self.sent)
        try:
            while True:
                values = [b"%d" % (number + i) for i in range(1 + simulation.workload.below(5))]
                number += len(values)
                self.sent.update(values)
                answer = await produce(client, TOPIC, values)
                if answer.error_code == 0:
                    for i, value in enumerate(values):
                        self.acked[answer.base_offset + i] = value
        except ConnectionLost:
            pass

    async def check(self, client: PeerConnection) -> None:
        records = await read_all(client, TOPIC)
        assert [record.offset for record in records] == list(range(len(records)))
        stored = {record.offset: record.value for record in records}
        for offset, value in self.acked.items():
            assert stored.get(offset) == value, f"acknowledged record at {offset} is lost"
        assert {record.value for record in records} <= self.sent


def _run(simulation: Simulation, scenario: Coroutine[Any, Any, None]) -> None:
    simulation.run(scenario)


@pytest.mark.parametrize("seed", SEEDS)
def test_acknowledged_records_survive_process_crashes(seed: int) -> None:
    simulation = Simulation(seed)

    async def scenario() -> None:
        broker = SimBroker(simulation)
        ledger = Ledger()
        await broker.start()
        client = await broker.connect()
        await create_topic(client, TOPIC, segment_bytes="2048")
        for _ in range(5):
            writers = [
                asyncio.create_task(ledger.keep_producing(client, simulation)),
                asyncio.create_task(ledger.keep_producing(await broker.connect(), simulation)),
            ]
            await asyncio.sleep(simulation.faults.uniform(0, 0.5))
            broker.kill()
            await asyncio.gather(*writers)
            await broker.start()
            client = await wait_until_up(broker)
            await ledger.check(client)
        assert ledger.acked

    _run(simulation, scenario())


@pytest.mark.parametrize("seed", SEEDS)
def test_with_a_sync_for_each_message_acknowledged_records_survive_power_losses(
    seed: int,
) -> None:
    simulation = Simulation(seed)

    async def scenario() -> None:
        broker = SimBroker(simulation)
        ledger = Ledger()
        await broker.start()
        client = await broker.connect()
        await create_topic(client, TOPIC, flush_messages="1", segment_bytes="2048")
        for _ in range(5):
            writer = asyncio.create_task(ledger.keep_producing(client, simulation))
            await asyncio.sleep(simulation.faults.uniform(0, 0.5))
            broker.power_off()
            client.abort()
            await writer
            await broker.start()
            client = await wait_until_up(broker)
            await ledger.check(client)
        assert ledger.acked

    _run(simulation, scenario())


def test_a_clean_stop_keeps_everything_and_the_next_start_reads_no_segment() -> None:
    simulation = Simulation(1)

    async def scenario() -> None:
        broker = SimBroker(simulation)
        await broker.start()
        client = await broker.connect()
        await create_topic(client, TOPIC)
        await produce(client, TOPIC, [b"a", b"b"])
        await client.close()
        await broker.stop()
        assert broker.machine.disk.exists("/data/.kafka_cleanshutdown")
        await broker.start()
        assert not broker.machine.disk.exists("/data/.kafka_cleanshutdown")
        assert broker.broker is not None
        assert not any(partition.is_open for partition in broker.broker.replicas)
        client = await broker.connect()
        assert [r.value for r in await read_all(client, TOPIC)] == [b"a", b"b"]

    _run(simulation, scenario())


def test_a_retried_batch_is_stored_once_and_answered_with_its_first_offset() -> None:
    simulation = Simulation(2)

    async def scenario() -> None:
        broker = SimBroker(simulation)
        await broker.start()
        client = await broker.connect()
        await create_topic(client, TOPIC)
        first = await produce(client, TOPIC, [b"a", b"b"], producer=(7, 0, 0))
        await produce(client, TOPIC, [b"c"], producer=(7, 0, 2))
        again = await produce(client, TOPIC, [b"a", b"b"], producer=(7, 0, 0))
        assert (again.error_code, again.base_offset) == (0, first.base_offset)
        broker.kill()
        await broker.start()
        client = await wait_until_up(broker)
        after_crash = await produce(client, TOPIC, [b"c"], producer=(7, 0, 2))
        assert (after_crash.error_code, after_crash.base_offset) == (0, 2)
        gap = await produce(client, TOPIC, [b"e"], producer=(7, 0, 5))
        assert gap.error_code == 45
        assert [r.value for r in await read_all(client, TOPIC)] == [b"a", b"b", b"c"]

    _run(simulation, scenario())


def test_a_fetch_waits_for_the_next_record() -> None:
    simulation = Simulation(3)

    async def scenario() -> None:
        broker = SimBroker(simulation)
        await broker.start()
        writer, reader = await broker.connect(), await broker.connect()
        await create_topic(writer, TOPIC)
        waiting = asyncio.create_task(fetch(reader, TOPIC, 0, wait_ms=60_000))
        await asyncio.sleep(10)
        assert not waiting.done()
        await produce(writer, TOPIC, [b"now"])
        assert [r.value for r in await waiting] == [b"now"]

    _run(simulation, scenario())


def test_a_fetch_returns_empty_after_max_wait() -> None:
    simulation = Simulation(4)

    async def scenario() -> None:
        broker = SimBroker(simulation)
        await broker.start()
        client = await broker.connect()
        await create_topic(client, TOPIC)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        assert await fetch(client, TOPIC, 0, wait_ms=5_000) == []
        assert loop.time() - began_s >= 5

    _run(simulation, scenario())


def test_a_start_that_fails_leaves_the_directory_as_clean_as_it_was() -> None:
    simulation = Simulation(5)

    async def scenario() -> None:
        broker = SimBroker(simulation)
        await broker.start()
        await broker.stop()
        mark = "/data/.kafka_cleanshutdown"
        assert broker.machine.disk.exists(mark)
        broker.machine.disk.faults.fail("remove", path=mark)
        with pytest.raises(OSError):  # noqa: PT011
            await broker.start()
        broker.kill()
        assert broker.machine.disk.exists(mark)
        await broker.start()

    _run(simulation, scenario())


def test_a_failed_sync_fails_the_requests_that_wait_for_it() -> None:
    simulation = Simulation(6)

    async def scenario() -> None:
        broker = SimBroker(simulation)
        await broker.start()
        client = await broker.connect()
        await create_topic(client, TOPIC, flush_messages="1")
        assert (await produce(client, TOPIC, [b"a"])).error_code == 0
        broker.machine.disk.faults.fail("sync", path="*.log")
        assert (await produce(client, TOPIC, [b"b"])).error_code == 56
        assert (await produce(client, TOPIC, [b"c"])).error_code == 56, "never retried"

    _run(simulation, scenario())
