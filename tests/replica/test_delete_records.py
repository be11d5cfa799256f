"""DeleteRecords is answered when every replica has deleted the records."""

import asyncio
from math import inf

import pytest

from suwi.client.connection import PeerConnection
from suwi.handlers.delete_records import _wait_for_replicas
from suwi.metadata.image import PartitionState
from suwi.model.errors import NotLeaderOrFollower
from suwi.model.ids import LeaderEpoch, Offset
from suwi.sim.cluster import SimCluster
from suwi.sim.simulation import Simulation
from suwi.wire.versions import ApiKey
from tests.broker.simulated import produce
from tests.replica.alone import ONE, TWO, make_partition
from tests.replica.replicated import begin

NOT_LEADER = 6


async def delete(client: PeerConnection, before: int, *, expected: int = 0) -> None:
    partitions = [{"partition_index": 0, "offset": before}]
    answer = await client.call(
        ApiKey.DELETE_RECORDS,
        2,
        {"topics": [{"name": "orders", "partitions": partitions}], "timeout": 30_000},
    )
    assert answer.topics[0].partitions[0].error_code == expected
    if expected == 0:
        assert answer.topics[0].partitions[0].low_watermark == before


def follower_to_cut_off(cluster: SimCluster) -> int:
    """Not the controller, which moves the partition."""
    leader = cluster[1].broker
    assert leader is not None
    return 2 if leader.replicas.image.controller == 3 else 3


def test_every_replica_has_deleted_the_records_before_the_response() -> None:
    simulation = Simulation(3)

    async def scenario() -> None:
        cluster, client = await begin(simulation)
        for value in (b"a", b"b", b"c"):
            assert (await produce(client, "orders", [value])).error_code == 0
        began_s = asyncio.get_running_loop().time()
        await delete(client, 2)
        for node in cluster.nodes.values():
            assert node.broker is not None
            (partition,) = node.broker.replicas
            assert partition.log.start_offset == 2, node.name
        took_s = asyncio.get_running_loop().time() - began_s
        assert took_s < 0.4, "virtual time: followers learn it at once, not with their next fetch"

    simulation.run(scenario())


def test_deleted_records_do_not_reappear_after_a_crash_once_the_checkpoint_is_written() -> None:
    """Found by the simulation: the checkpoint was written only when retention removed a segment."""
    simulation = Simulation(3)

    async def scenario() -> None:
        settings = {"log.flush.start.offset.checkpoint.interval.ms": "1000"}
        cluster, client = await begin(simulation, settings=settings)
        for value in (b"a", b"b", b"c"):
            assert (await produce(client, "orders", [value])).error_code == 0
        await delete(client, 2)
        await asyncio.sleep(2)
        for node in cluster.nodes.values():
            node.kill()
        await asyncio.gather(*(node.start() for node in cluster.nodes.values()))
        for node in cluster.nodes.values():
            assert node.broker is not None
            (partition,) = node.broker.replicas
            assert partition.log.start_offset == 2, node.name

    simulation.run(scenario())


def test_the_response_does_not_wait_for_a_follower_that_has_died() -> None:
    simulation = Simulation(3)

    async def scenario() -> None:
        cluster, client = await begin(simulation)
        for value in (b"a", b"b", b"c"):
            assert (await produce(client, "orders", [value])).error_code == 0
        cluster[3].freeze()
        await delete(client, 2)  # Its session ends long before the timeout of the request.
        assert 3 not in cluster[1].broker.replicas.image.unfenced_brokers  # type: ignore[union-attr]

    simulation.run(scenario())


def test_the_response_does_not_wait_for_a_replica_that_was_moved_away() -> None:
    simulation = Simulation(3)

    async def scenario() -> None:
        cluster, client = await begin(simulation)
        for value in (b"a", b"b", b"c"):
            assert (await produce(client, "orders", [value])).error_code == 0
        cut_off = follower_to_cut_off(cluster)
        other = 5 - cut_off
        simulation.network.partition({f"b{cut_off}"}, {"b1", f"b{other}"})
        deleting = asyncio.ensure_future(delete(client, 2))
        await asyncio.sleep(0.5)
        assert not deleting.done()
        admin = await PeerConnection.open(f"b{other}", 9092)
        moved = {"partition_index": 0, "replicas": [1, other]}
        answer = await admin.call(
            ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            0,
            {"timeout": 10_000, "topics": [{"name": "orders", "partitions": [moved]}]},
        )
        assert answer.responses[0].partitions[0].error_code == 0
        await deleting
        assert cluster[cut_off].in_service.is_set()
        assert cut_off in cluster[1].broker.replicas.image.unfenced_brokers  # type: ignore[union-attr]

    simulation.run(scenario())


def test_the_response_does_not_wait_if_the_leader_itself_was_moved_away() -> None:
    simulation = Simulation(3)

    async def scenario() -> None:
        cluster, client = await begin(simulation)
        for value in (b"a", b"b", b"c"):
            assert (await produce(client, "orders", [value])).error_code == 0
        cut_off = follower_to_cut_off(cluster)
        other = 5 - cut_off
        simulation.network.partition({f"b{cut_off}"}, {"b1", f"b{other}"})
        deleting = asyncio.ensure_future(delete(client, 2, expected=NOT_LEADER))
        await asyncio.sleep(0.5)
        assert not deleting.done()
        admin = await PeerConnection.open(f"b{other}", 9092)
        moved = {"partition_index": 0, "replicas": [other]}
        answer = await admin.call(
            ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            0,
            {"timeout": 10_000, "topics": [{"name": "orders", "partitions": [moved]}]},
        )
        assert answer.responses[0].partitions[0].error_code == 0
        await deleting

    simulation.run(scenario())


def test_a_leader_that_was_deposed_before_it_waits_does_not_answer_for_the_next_one() -> None:
    async def scenario() -> None:
        partition = make_partition()
        replicas = (ONE, TWO)
        partition.make_leader(PartitionState(ONE, LeaderEpoch(0), 0, replicas, (ONE,)), 5)
        partition.make_follower(PartitionState(TWO, LeaderEpoch(1), 1, replicas, (TWO,)))
        assert partition.low_watermark == 0, "its own log start alone"
        with pytest.raises(NotLeaderOrFollower):
            await _wait_for_replicas(partition, Offset(0), until_s=inf)

    asyncio.run(scenario())
