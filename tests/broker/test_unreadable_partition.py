"""A partition whose directory the broker may not read: only that partition fails."""

import asyncio
import errno

from kio.schema.errors import ErrorCode

from suwi.client.connection import PeerConnection
from suwi.sim import Simulation
from suwi.wire.versions import ApiKey
from tests.broker.simulated import SimBroker, create_topic, fetch_once, produce, wait_until_up

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
