"""How often followers fetch: once for records, once more when nothing follows."""

from typing import Any

import pytest

from suwi.client.producer import Producer
from suwi.model.ids import NodeId, Offset
from suwi.replica.leader_replica import LeaderReplica
from suwi.sim import ManualClock
from suwi.sim.cluster import SimCluster
from tests.broker.test_simulated_cluster import SEEDS, create, run

_RECORDS = 50


@pytest.mark.parametrize("seed", SEEDS)
def test_a_produce_with_acks_all_costs_one_fetch_of_each_follower(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[tuple[NodeId, Offset]] = []
    record_progress = LeaderReplica.record_progress

    def noting(self: LeaderReplica, node: NodeId, end_offset: Offset, *rest: Any) -> None:
        ends.append((node, end_offset))
        record_progress(self, node, end_offset, *rest)

    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client("test") as client:
            await create(client)
            producer = Producer(client, ManualClock())
            await (await producer.send("orders", b"first"))
            ends.clear()
            for _ in range(_RECORDS):
                await (await producer.send("orders", b"next"))
            await producer.close()
        per_produce = len(ends) / _RECORDS / 2
        assert per_produce < 1.5, ends

    cluster_settings = {"num.partitions": "1"}
    monkeypatch.setattr(LeaderReplica, "record_progress", noting)
    run(scenario, seed, cluster_settings)
