"""A topic that is deleted and created again has only its name in common with the old one."""

import asyncio

from suwi.log.checkpoints import read_offsets
from suwi.model.ids import PartitionIndex, TopicPartition
from suwi.sim import Simulation
from suwi.wire.versions import ApiKey
from tests.broker.simulated import SimBroker, create_topic, fetch, produce

ORDERS = TopicPartition("orders", PartitionIndex(0))


def test_the_high_watermark_of_a_deleted_topic_is_not_written_for_the_new_one() -> None:
    simulation = Simulation(1)

    async def scenario() -> None:
        broker = SimBroker(simulation)
        await broker.start()
        client = await broker.connect()
        await create_topic(client, "orders")
        await produce(client, "orders", [b"a", b"b", b"c"])
        await asyncio.sleep(3.5)  # Marked as dirty, not written yet.
        await client.call(ApiKey.DELETE_TOPICS, 5, {"topic_names": ["orders"], "timeout": 30_000})
        await create_topic(client, "orders")
        assert await fetch(client, "orders", 0) == []
        await asyncio.sleep(10)
        path = "/data/replication-offset-checkpoint"
        assert (read_offsets(broker.machine.disk, path) or {}).get(ORDERS, 0) == 0

    simulation.run(scenario())
