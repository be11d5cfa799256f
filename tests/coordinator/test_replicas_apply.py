"""Every replica of an internal partition applies it, so that a new leader has little to do."""

import asyncio

from suwi.client.admin import Admin
from suwi.client.group_offsets import commit_offsets
from suwi.coordinator.shard import Shard
from suwi.model.ids import Offset, PartitionIndex, TopicPartition
from suwi.sim import Simulation
from suwi.sim.cluster import SimCluster, SimNode

ORDERS = TopicPartition("orders", PartitionIndex(0))
SETTINGS = {"offsets.topic.num.partitions": "1"}


def shard_of(node: SimNode) -> Shard:
    assert node.broker is not None
    (shard,) = node.broker.groups.runtime
    return shard


def committed(node: SimNode) -> int | None:
    offsets = shard_of(node).machine.offsets.of("billing")
    value = offsets.get(("orders", 0)) if offsets is not None else None
    return value.offset if value is not None else None


async def until_all_have(cluster: SimCluster, offset: int) -> None:
    for _ in range(200):
        if all(committed(node) == offset for node in cluster.nodes.values()):
            return
        await asyncio.sleep(0.05)
    raise AssertionError([committed(node) for node in cluster.nodes.values()])


async def commit(cluster: SimCluster, offset: int) -> None:
    async with cluster.client("client") as client:
        await commit_offsets(client, "billing", {ORDERS: Offset(offset)})


def test_a_follower_that_comes_back_applies_its_log_though_nothing_new_is_committed() -> None:
    simulation = Simulation(1)

    async def scenario() -> None:
        cluster = SimCluster(simulation, settings=SETTINGS)
        await cluster.start()
        outside = simulation.machine("outside")
        outside.start()

        async def create() -> None:
            async with cluster.client("admin") as client:
                await Admin(client).create_topic("orders", partitions=1, replication_factor=3)

        await outside.spawn(create())
        await outside.spawn(commit(cluster, 7))
        await until_all_have(cluster, 7)
        # The watermark is written down now and then: until then it comes from the leader again.
        await asyncio.sleep(10)
        for node in cluster.nodes.values():
            if not shard_of(node).partition.is_leader:
                node.kill()
                await node.start()
        await until_all_have(cluster, 7)

    simulation.run(scenario())
