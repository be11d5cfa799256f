"""A topic that is deleted while a request for it waits: this is not a storage error."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from suwi.client.connection import PeerConnection
from suwi.records.builder import build_batch
from suwi.records.compression import Compression
from suwi.records.record import Record
from suwi.sim import Simulation
from suwi.wire.produce import encode_produce_request
from suwi.wire.versions import ApiKey
from tests.broker.simulated import SimBroker, create_topic, produce

NEWEST_MS = 2_000


async def write_compressed(client: PeerConnection, topic: str, timestamps: list[int]) -> None:
    batch = build_batch(
        [Record(value=b"x" * 100, timestamp=each) for each in timestamps], codec=Compression.GZIP
    )
    topics = [(topic, None, [(0, memoryview(batch))])]
    await client.send(ApiKey.PRODUCE, 9, encode_produce_request(9, None, -1, 1_000, topics))


async def delete_records(client: PeerConnection, topic: str, before: int) -> None:
    partitions = [{"partition_index": 0, "offset": before}]
    asked = {"topics": [{"name": topic, "partitions": partitions}], "timeout": 1_000}
    await client.call(ApiKey.DELETE_RECORDS, 2, asked)


def offset_at(client: PeerConnection, topic: str, timestamp: int) -> Awaitable[Any]:
    partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
    asked = {
        "replica_id": -1,
        "isolation_level": 0,
        "topics": [{"name": topic, "partitions": [partition]}],
    }
    return client.call(ApiKey.LIST_OFFSETS, 6, asked)


def delete_topic(client: PeerConnection, topic: str) -> Awaitable[Any]:
    asked = {"topics": [{"name": topic, "topic_id": None}], "timeout": 1_000}
    return client.call(ApiKey.DELETE_TOPICS, 6, asked)


@pytest.mark.parametrize("comes_back", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_a_lookup_by_timestamp_in_a_topic_deleted_meanwhile_affects_no_other_topic(
    seed: int, comes_back: bool
) -> None:
    """The lookup returned from its thread to deleted files, and the log directory went offline."""
    simulation = Simulation(seed)

    async def scenario() -> None:
        broker = SimBroker(simulation)
        await broker.start()
        client, other = await broker.connect(), await broker.connect()
        await create_topic(client, "other")
        await create_topic(client, "orders")
        # The matching record of the first batch is deleted, so that batch is decompressed in vain.
        await write_compressed(client, "orders", [NEWEST_MS, *[1_000] * 9])
        await write_compressed(client, "orders", [NEWEST_MS] * 10)
        await delete_records(client, "orders", before=5)
        # Both have been asked for once: their first requests wait for a thread.
        await offset_at(client, "other", NEWEST_MS)
        await delete_topic(other, "nothing")
        simulation.loop.job_delay_s_max = 10.0
        answered = asyncio.ensure_future(offset_at(client, "orders", NEWEST_MS))
        await asyncio.sleep(0.2)
        await delete_topic(other, "orders")
        if comes_back:
            await create_topic(other, "orders")
        (topic,) = (await answered).topics
        (partition,) = topic.partitions
        assert (partition.error_code, partition.offset) in [
            (ErrorCode.none, 10),  # the lookup finished before the deletion
            (ErrorCode.unknown_topic_or_partition, -1),
        ]
        assert (await produce(other, "other", [b"v"])).error_code == ErrorCode.none
        assert broker.broker is not None
        for directory in broker.broker.directories:
            assert directory.state.offline_because is None

    simulation.run(scenario())
