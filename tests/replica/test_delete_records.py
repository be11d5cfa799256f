"""Records that were deleted are deleted on every replica before the client is told."""

import asyncio

from suwi.client.connection import PeerConnection
from suwi.sim.cluster import SimCluster
from suwi.sim.simulation import Simulation
from suwi.wire.versions import ApiKey
from tests.broker.simulated import produce


async def create(client: PeerConnection, topic: str) -> None:
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


def test_every_replica_has_deleted_before_the_answer() -> None:
    simulation = Simulation(3)

    async def scenario() -> None:
        cluster = SimCluster(simulation)
        await cluster.start()
        client = await PeerConnection.open("b1", 9092)
        await create(client, "orders")
        for value in (b"a", b"b", b"c"):
            assert (await produce(client, "orders", [value])).error_code == 0
        began_s = asyncio.get_running_loop().time()
        answer = await client.call(
            ApiKey.DELETE_RECORDS,
            2,
            {
                "topics": [{"name": "orders", "partitions": [{"partition_index": 0, "offset": 2}]}],
                "timeout": 30_000,
            },
        )
        assert answer.topics[0].partitions[0].error_code == 0
        assert answer.topics[0].partitions[0].low_watermark == 2
        for node in cluster.nodes.values():
            assert node.broker is not None
            (partition,) = node.broker.replicas
            assert partition.log.start_offset == 2, node.name
        took_s = asyncio.get_running_loop().time() - began_s
        assert took_s < 0.4, "virtual time: followers are told at once, not with their next fetch"

    simulation.run(scenario())
