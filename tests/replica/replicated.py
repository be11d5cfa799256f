"""A topic on three simulated brokers."""

from typing import Any

from suwi.client.connection import PeerConnection
from suwi.sim.cluster import SimCluster
from suwi.sim.simulation import Simulation
from suwi.wire.versions import ApiKey


async def begin(simulation: Simulation, **given: Any) -> tuple[SimCluster, PeerConnection]:
    """Three brokers with the topic `orders`, and a connection to its leader b1."""
    cluster = SimCluster(simulation, **given)
    await cluster.start()
    client = await PeerConnection.open("b1", 9092)
    await create(client, "orders")
    return cluster, client


async def create(client: PeerConnection, topic: str) -> None:
    """One partition on b1, b2 and b3; b1 leads."""
    made = await client.call(
        ApiKey.CREATE_TOPICS,
        7,
        {
            "topics": [
                {
                    "name": topic,
                    "num_partitions": -1,
                    "replication_factor": -1,
                    "assignments": [{"partition_index": 0, "broker_ids": [1, 2, 3]}],
                    "configs": [],
                }
            ]
        },
    )
    assert made.topics[0].error_code == 0
