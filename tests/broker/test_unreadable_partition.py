"""A partition whose directory, or whose topic id, the broker cannot read."""

import asyncio
import errno

from kio.schema.errors import ErrorCode

from suwi.client.connection import PeerConnection
from suwi.log import names
from suwi.replica.replica_log import ReplicaLog
from suwi.sim import Simulation
from suwi.sim.cluster import DATA, SimCluster
from suwi.wire.versions import ApiKey
from tests.broker.simulated import SimBroker, create_topic, fetch_once, produce, wait_until_up
from tests.broker.test_simulated_cluster import run, state, until
from tests.broker.test_simulated_losses import create_orders, lead, read, write

RETENTION_MS = "60000"


async def latest(client: PeerConnection, topic: str) -> tuple[int, int]:
    partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    topics = [{"name": topic, "partitions": [partition]}]
    asked = {"replica_id": -1, "isolation_level": 0, "topics": topics}
    (answered,) = (await client.call(ApiKey.LIST_OFFSETS, 6, asked)).topics
    return answered.partitions[0].error_code, answered.partitions[0].offset


async def topics_in_log_dirs(client: PeerConnection) -> list[str]:
    answer = await client.call(ApiKey.DESCRIBE_LOG_DIRS, 4, {"topics": None})
    (directory,) = answer.results
    assert directory.error_code == ErrorCode.none
    return [topic.name for topic in directory.topics]


def test_a_directory_without_access_rights_is_a_storage_error_for_that_partition_alone() -> None:
    simulation = Simulation(1)

    async def scenario() -> None:
        broker = SimBroker(
            simulation, log_retention_check_interval_ms="1000", log_segment_bytes="1024"
        )
        await broker.start()
        client = await broker.connect()
        for topic in ("a-other", "orders", "z-other"):
            await create_topic(client, topic, retention_ms=RETENTION_MS)
            for _ in range(3):
                assert (await produce(client, topic, [b"v" * 800])).error_code == ErrorCode.none
        await broker.stop()
        faults = broker.machine.disk.faults
        forbidden = [
            faults.fail(operation, errno.EACCES, path="*orders-0*", times=None)
            for operation in ("open", "read", "list_dir", "stat", "make_dirs", "rename")
        ]
        await broker.start()
        client = await wait_until_up(broker)
        storage_error = ErrorCode.kafka_storage_error
        assert (await produce(client, "orders", [b"v"])).error_code == storage_error
        assert (await fetch_once(client, "orders", 0)).error_code == storage_error
        assert await latest(client, "orders") == (storage_error, -1)
        assert await topics_in_log_dirs(client) == ["a-other", "z-other"]
        assert broker.broker is not None
        offline = [
            p.partition.topic for p in broker.broker.replicas if p.replica_log.offline_because
        ]
        assert offline == ["orders"]
        assert broker.broker.replicas.directories.usable()
        for topic in ("a-other", "z-other"):
            assert await latest(client, topic) == (ErrorCode.none, 3)
            assert (await produce(client, topic, [b"v" * 800])).error_code == ErrorCode.none
        await asyncio.sleep(120)
        for topic in ("a-other", "z-other"):
            fetched = await fetch_once(client, topic, 0)
            assert fetched.error_code == ErrorCode.offset_out_of_range, "retention must still work"
        for fault in forbidden:
            faults.remove(fault)
        assert await latest(client, "orders") == (ErrorCode.none, 3)
        assert [p for p in broker.broker.replicas if p.replica_log.offline_because] == []

    simulation.run(scenario())


def _blank_topic_id(cluster: SimCluster, number: int) -> None:
    """What a power loss or damage can leave of the file."""
    file = cluster[number].machine.disk.open(f"{DATA}/orders-0/{names.PARTITION_METADATA}")
    file.truncate(0)
    file.sync()
    file.close()


def _strays(cluster: SimCluster, number: int) -> list[str]:
    found = cluster[number].machine.disk.list_dir(DATA)
    return [name for name in found if name.endswith("-stray")]


def _replica(cluster: SimCluster, number: int) -> ReplicaLog:
    broker = cluster[number].broker
    assert broker is not None
    (found,) = [p.replica_log for p in broker.replicas if p.partition.topic == "orders"]
    return found


async def _with_synced_records_on_1_and_2(cluster: SimCluster) -> None:
    await create_orders(cluster, [1, 2])
    assert await write(cluster, 1, [b"a", b"b"]) == 0
    for number in (1, 2):
        log = _replica(cluster, number).log
        assert log is not None
        job = log.durability.sync_job()
        assert job is not None
        job.run()


def test_a_replica_that_could_not_be_opened_after_a_power_loss_starts_empty_later() -> None:
    """Its topic id is unreadable, which is found only after its broker told of the power loss.

    Earlier such a replica stayed offline until somebody repaired it.
    """

    async def scenario(cluster: SimCluster) -> None:
        await _with_synced_records_on_1_and_2(cluster)
        _blank_topic_id(cluster, 2)
        cluster[2].power_off(tear=False)
        await until(lambda: set(state(cluster).isr) == {1})
        faults = cluster[2].machine.disk.faults
        forbidden = faults.fail("stat", errno.EACCES, path="*orders-0*", times=None)
        await cluster[2].start()
        await until(lambda: _replica(cluster, 2).offline_because is not None)
        faults.remove(forbidden)
        await until(lambda: set(state(cluster).isr) == {1, 2})
        (stray,) = _strays(cluster, 2)
        records = f"{DATA}/{stray}/00000000000000000000.log"
        assert cluster[2].machine.disk.size(records) > 0
        cluster[1].kill()
        await lead(cluster, 2)
        assert await read(cluster, 2) == [b"a", b"b"]

    run(scenario)


def test_a_replica_in_the_isr_does_not_start_empty() -> None:
    """The controller considers it complete, and would elect it."""

    async def scenario(cluster: SimCluster) -> None:
        await _with_synced_records_on_1_and_2(cluster)
        cluster[1].kill()
        await until(lambda: set(state(cluster, seen_by=2).isr) == {2})
        cluster[2].kill()
        _blank_topic_id(cluster, 2)
        await cluster[1].start()
        await cluster[2].start()
        await until(lambda: _replica(cluster, 2).offline_because is not None)
        assert _strays(cluster, 2) == []
        assert state(cluster).isr == (2,)

    run(scenario)
