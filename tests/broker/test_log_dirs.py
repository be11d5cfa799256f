"""DescribeLogDirs lists every partition, even if its log has not been opened."""

from typing import Any

from suwi.client.connection import PeerConnection
from suwi.sim import Simulation
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
