"""Records that were deleted are deleted on every replica before the client is told."""

import asyncio

from suwi.client.connection import PeerConnection
from suwi.sim.cluster import SimCluster
from suwi.sim.simulation import Simulation
from suwi.wire.versions import ApiKey
from tests.broker.simulated import produce
from tests.replica.replicated import create


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
