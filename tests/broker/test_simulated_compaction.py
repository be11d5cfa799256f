"""A broker that compacts while it serves, crashes and restarts: no key loses its value."""

import asyncio

import pytest

from suwi.client.connection import ConnectionLost, PeerConnection
from suwi.log.checkpoints import read_offsets
from suwi.records.record import Record
from suwi.sim import Simulation
from tests.broker.simulated import SimBroker, create_topic, produce_records, read_all, wait_until_up

TOPIC = "prices"
CONFIGS = {
    "cleanup_policy": "compact",
    "segment_bytes": "2048",
    "min_cleanable_dirty_ratio": "0.01",
    "delete_retention_ms": "2000",
    "file_delete_delay_ms": "1000",
}
SETTINGS = {"log_cleaner_backoff_ms": "200"}


class Prices:
    """The last acknowledged value of each key; a later one is allowed too."""

    def __init__(self) -> None:
        self.acked: dict[bytes, int] = {}
        self.sent = 0

    async def keep_producing(self, client: PeerConnection, simulation: Simulation) -> None:
        """Produce until the connection is lost. Values increase, so later ones are larger."""
        try:
            while True:
                records = []
                for _ in range(1 + simulation.workload.below(4)):
                    key = b"k%d" % simulation.workload.below(20)
                    self.sent += 1
                    is_gone = simulation.workload.below(10) == 0
                    value = None if is_gone else b"%d" % self.sent
                    records.append((key, value, self.sent))
                batch = [Record(key=k, value=v, timestamp=1_000 + n) for k, v, n in records]
                answer = await produce_records(client, TOPIC, batch)
                if answer.error_code == 0:
                    for key, value, number in records:
                        self.acked[key] = -number if value is None else number
                await asyncio.sleep(0.05)
        except ConnectionLost:
            pass

    def check(self, found: list[Record]) -> None:
        assert [record.offset for record in found] == sorted({record.offset for record in found})
        latest = {record.key: record for record in found}
        for key, number in self.acked.items():
            record = latest.get(key)
            if record is None:
                assert number < 0, f"{key!r} has lost its value {number}"
            elif record.value is not None:
                assert int(record.value) >= abs(number), f"{key!r} went back to {record.value!r}"


@pytest.mark.parametrize("seed", range(8))
def test_no_key_loses_its_newest_value_when_a_compacting_broker_crashes(seed: int) -> None:
    simulation = Simulation(seed)
    prices = Prices()

    async def scenario() -> None:
        broker = SimBroker(simulation, **SETTINGS)
        await broker.start()
        client = await broker.connect()
        await create_topic(client, TOPIC, **CONFIGS)
        for incarnation in range(4):
            working = asyncio.create_task(prices.keep_producing(client, simulation))
            await asyncio.sleep(5 + simulation.workload.below(3000) / 1000)
            if incarnation % 2 and seed % 2:
                working.cancel()
                await asyncio.wait([working])
                await broker.stop()
            else:
                broker.kill()
                await working
            await broker.start()
            client = await wait_until_up(broker)
            prices.check(await read_all(client, TOPIC))
        await asyncio.sleep(10)
        found = await read_all(client, TOPIC)
        prices.check(found)
        assert len(found) < prices.sent / 2, "nothing was compacted"
        assert broker.broker is not None
        await broker.stop()

    simulation.run(scenario())


def test_the_cleaner_checkpoint_is_written_and_read_again() -> None:
    simulation = Simulation(1)
    prices = Prices()

    async def scenario() -> None:
        broker = SimBroker(simulation, **SETTINGS)
        await broker.start()
        client = await broker.connect()
        await create_topic(client, TOPIC, **CONFIGS)
        working = asyncio.create_task(prices.keep_producing(client, simulation))
        await asyncio.sleep(8)
        working.cancel()
        await asyncio.wait([working])
        await asyncio.sleep(1)
        assert broker.broker is not None
        log = next(iter(broker.broker.replicas)).log
        cleaned_to = log.cleaned_to
        assert 0 < cleaned_to <= log.active.base_offset
        written = read_offsets(broker.machine.disk, "/data/cleaner-offset-checkpoint")
        assert written == {log.partition: cleaned_to}
        broker.kill()
        await broker.start()
        assert next(iter(broker.broker.replicas)).log.cleaned_to == cleaned_to

    simulation.run(scenario())


def test_a_log_that_cannot_be_compacted_does_not_stop_the_others() -> None:
    simulation = Simulation(2)

    async def scenario() -> None:
        broker = SimBroker(simulation, **SETTINGS)
        await broker.start()
        client = await broker.connect()
        for topic in ("damaged", "sound"):
            await create_topic(client, topic, **CONFIGS)
            for number in range(60):
                batch = [Record(key=b"k", value=b"%d" % number * 20, timestamp=1_000)]
                answer = await produce_records(client, topic, batch)
                assert answer.error_code == 0
            if topic == "damaged":
                path = "/data/damaged-0/00000000000000000000.log"
                broker.machine.disk.overwrite(path, b"\xff\xff", 70)
        await asyncio.sleep(5)
        assert len(await read_all(client, "sound")) < 60
        assert broker.broker is not None
        uncleanable = broker.broker.log_manager.log_cleaner.uncleanable
        assert [str(partition) for partition in uncleanable] == ["damaged-0"]
        await broker.stop()

    simulation.run(scenario())


def test_a_log_that_cannot_be_compacted_on_a_full_disk_does_not_delay_others() -> None:
    simulation = Simulation(3)

    async def scenario() -> None:
        broker = SimBroker(simulation, **SETTINGS)
        await broker.start()
        client = await broker.connect()
        large = {**CONFIGS, "segment_bytes": "60000"}
        for topic, configs, size in (("large", large, 30), ("small", CONFIGS, 1)):
            await create_topic(client, topic, **configs)
            for number in range(60):
                batch = [Record(key=b"k", value=b"%d" % number * 60 * size, timestamp=1_000)]
                assert (await produce_records(client, topic, batch)).error_code == 0
                if topic == "large":
                    broker.machine.disk.fill(40_000)
        await asyncio.sleep(5)
        assert len(await read_all(client, "small")) < 60
        assert len(await read_all(client, "large")) == 60
        # It is compacted when there is space again.
        broker.machine.disk.free()
        await asyncio.sleep(5)
        assert len(await read_all(client, "large")) < 60
        await broker.stop()

    simulation.run(scenario())
