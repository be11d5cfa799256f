"""How much was written to a topic, as its leaders count it."""

from suwi.client.own_apis import bytes_in_by_topic
from suwi.client.producer import Producer
from suwi.model.ids import NodeId
from suwi.sim import ManualClock
from suwi.sim.cluster import SimCluster
from tests.broker.test_simulated_cluster import create, run


def test_a_leader_counts_what_was_written_to_it_and_a_follower_does_not() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client("test") as client:
            await create(client, assignments=[[1, 2, 3], [2, 1, 3]])
            await create(client, name="empty")
            async with Producer(client, ManualClock()) as producer:
                for partition, size in ((0, 5000), (0, 5000), (1, 100)):
                    await (await producer.send("orders", b"x" * size, partition=partition))
            told = [await bytes_in_by_topic(client, NodeId(node)) for node in (1, 2, 3)]
            assert [set(topics) - {"__transaction_state"} for topics in told] == [
                {"orders"},
                {"orders"},
                set(),
            ]
            assert 10_000 < told[0]["orders"] < 11_000
            assert 100 < told[1]["orders"] < 300

    run(scenario)
