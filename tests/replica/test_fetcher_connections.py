"""How often a follower connects to its leader: each connection may need a new login."""

import asyncio
from collections import Counter

import pytest

from suwi.client.connection import PeerConnection
from suwi.replica.replica_fetcher import ReplicaFetcher
from suwi.sim import Simulation
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
