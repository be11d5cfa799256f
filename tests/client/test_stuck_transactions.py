"""Transactions that are decided and do not get their markers are found."""

import pytest

from suwi.client.admin import Admin
from suwi.client.transaction_admin import find_hanging, find_stuck
from suwi.client.transactions import TransactionalProducer
from suwi.coordinator.runtime import shard_index
from suwi.model.ids import NO_NODE, PartitionIndex, TopicPartition
from suwi.sim import Simulation
from suwi.sim.cluster import SimCluster
from suwi.wire.versions import ApiKey
from tests.broker.test_simulated_cluster import image, until

LONE = TopicPartition("lone", PartitionIndex(0))
SHARDS = 6
SETTINGS = {"transaction.state.log.num.partitions": str(SHARDS)}


@pytest.mark.parametrize("way_out", ["the broker is back", "the topic is deleted"])
def test_one_whose_partition_has_no_leader_is_found_until_that_is_mended(way_out: str) -> None:
    simulation = Simulation(0)

    def leader(topic: str, partition: int) -> int:
        state = image(cluster, alive).partition(TopicPartition(topic, PartitionIndex(partition)))
        return NO_NODE if state is None else state.leader

    async def scenario() -> None:
        nonlocal alive
        await cluster.start()
        async with cluster.client("client") as client:
            await Admin(client).create_topic(LONE.topic, partitions=1, replication_factor=1)
            keys = {"key": "a", "key_type": 1, "coordinator_keys": ["a"]}
            await client.call(ApiKey.FIND_COORDINATOR, keys)
            holder = leader(*LONE)
            alive = next(node for node in cluster.nodes if node != holder)
            name = next(
                name
                for name in (f"id-{number}" for number in range(1000))
                if leader("__transaction_state", shard_index(name, SHARDS)) == alive
            )
            producer = TransactionalProducer(client, cluster[alive].machine.clock, name)
            await producer.init_transactions()
            producer.begin()
            await producer.send(LONE.topic, b"a", partition=0)
            await producer.flush()
            cluster[holder].kill()
            await until(lambda: leader(*LONE) == NO_NODE)
            await producer.commit()
            (stuck,), silent = await find_stuck(client, (), 0)
            assert list(silent) == [holder]
            assert (stuck.decided.transactional_id, stuck.decided.state) == (name, "PrepareCommit")
            assert (stuck.partition, stuck.producer) == (LONE, None)
            if way_out == "the topic is deleted":
                await Admin(client).delete_topic(LONE.topic)
            else:
                await cluster[holder].start()
                await until(lambda: leader(*LONE) == holder)
            broker = cluster[alive].broker
            assert broker is not None
            machine = broker.transactions.runtime.shard_of(name).machine
            await until(lambda: machine.transactions[name].state.label == "CompleteCommit")
            assert (await find_stuck(client, [LONE], 0))[0] == []
            if way_out == "the broker is back":
                assert (await find_hanging(client, [LONE], 2**62)).transactions == []

    alive = 1
    cluster = SimCluster(simulation, settings=SETTINGS)
    simulation.run(scenario())
