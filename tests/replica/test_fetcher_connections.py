"""How often a follower connects to its leader: each connection may need a new login."""

import asyncio
import logging
from collections import Counter

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from suwi.client.connection import PeerConnection
from suwi.replica.replica_fetcher import ReplicaFetcher
from suwi.sim import Simulation
from suwi.testing import Cluster
from tests.broker.test_simulated_cluster import create, image, until
from tests.replica.replicated import begin


@pytest.mark.parametrize("seed", range(3))
def test_many_new_partitions_of_one_image_cost_one_new_connection(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    connected: Counter[tuple[int, int]] = Counter()
    connect = ReplicaFetcher._connect

    async def counted(fetcher: ReplicaFetcher) -> PeerConnection:
        connected[fetcher._node_id, fetcher._leader] += 1
        return await connect(fetcher)

    monkeypatch.setattr(ReplicaFetcher, "_connect", counted)
    simulation = Simulation(seed)

    async def scenario() -> None:
        cluster, client = await begin(simulation)

        def is_in_sync() -> bool:
            topics = image(cluster, 1).topics
            return "many" in topics and all(
                len(state.isr) == 3 for state in topics["many"].partitions
            )

        await asyncio.sleep(5)
        connected.clear()
        await create(client, name="many", assignments=[[1, 2, 3]] * 100)
        await until(is_in_sync)
        await asyncio.sleep(5)
        assert max(connected.values(), default=0) <= 1, connected

    simulation.run(scenario())


def test_a_new_partition_is_not_taken_for_a_failure_of_its_leader(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With real sockets: the response in flight arrives while its connection is being closed."""
    with (
        caplog.at_level(logging.INFO, "suwi.replica.replica_fetcher"),
        Cluster(brokers=3) as cluster,
    ):
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        for number in range(20):
            for made in admin.create_topics([NewTopic(f"new-{number}", 3, 3)]).values():
                made.result()
        said = [r for r in caplog.records if r.message == "replica fetch failed"]
    assert [vars(r)["reason"] for r in said] == []
