"""DescribeLogDirs lists every partition, even if its log has not been opened."""

from typing import Any

import pytest

from suwi.client.connection import PeerConnection
from suwi.handlers.slices import SLICE_PARTITIONS
from suwi.sim import Simulation
from suwi.wire.codec import encode_items
from suwi.wire.encoder import EncodedItems
from suwi.wire.versions import ApiKey
from tests.broker.simulated import DATA, SimBroker, create_topic, produce


async def sizes(client: PeerConnection, topics: Any = None) -> dict[tuple[str, int], int]:
    answer = await client.call(ApiKey.DESCRIBE_LOG_DIRS, 4, {"topics": topics})
    (directory,) = answer.results
    assert directory.log_dir == DATA
    return {
        (topic.name, partition.partition_index): partition.partition_size
        for topic in directory.topics
        for partition in topic.partitions
    }


def test_an_unused_partition_is_listed_with_size_0() -> None:
    simulation = Simulation(1)

    async def scenario() -> None:
        broker = SimBroker(simulation)
        await broker.start()
        client = await broker.connect()
        await create_topic(client, "new")
        assert await sizes(client) == {("new", 0): 0}

    simulation.run(scenario())


def test_the_partitions_of_a_large_topic_are_encoded_in_slices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simulation = Simulation(1)
    encoded: list[int] = []

    def recording(api_key: int, version: int, path: Any, items: Any) -> EncodedItems:
        if api_key == ApiKey.DESCRIBE_LOG_DIRS and path[-1] == "partitions":
            encoded.append(len(items))
        return encode_items(api_key, version, path, items)

    monkeypatch.setattr("suwi.handlers.slices.encode_items", recording)

    async def scenario() -> None:
        broker = SimBroker(simulation)
        await broker.start()
        client = await broker.connect()
        await create_topic(client, "large", partitions=1000)
        await create_topic(client, "small", partitions=2)
        expected = {("large", index): 0 for index in range(1000)}
        assert await sizes(client) == {**expected, ("small", 0): 0, ("small", 1): 0}

    simulation.run(scenario())
    assert sum(encoded) >= 1000
    assert max(encoded) <= SLICE_PARTITIONS


def test_after_a_restart_unopened_logs_are_listed_with_their_size() -> None:
    simulation = Simulation(1)

    async def scenario() -> None:
        broker = SimBroker(simulation)
        await broker.start()
        client = await broker.connect()
        for name in ("a", "b"):
            await create_topic(client, name)
            await produce(client, name, [b"value"])
        before = await sizes(client)
        assert before["a", 0] > 0
        await client.close()
        await broker.stop()
        await broker.start()
        client = await broker.connect()
        assert await sizes(client) == before
        asked = [{"topic": "b", "partitions": [0, 7]}]
        assert await sizes(client, asked) == {("b", 0): before["b", 0]}
        assert broker.broker is not None
        assert not any(partition.is_open for partition in broker.broker.replicas)

    simulation.run(scenario())
