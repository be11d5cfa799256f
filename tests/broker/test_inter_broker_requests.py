"""Requests to the controller on the wire: AlterPartition, BrokerHeartbeat, ElectLeaders; hazard
Z1."""

import asyncio
from typing import Any

from kio.schema.errors import ErrorCode

from suwi.client.connection import PeerConnection
from suwi.model.errors import NotController
from suwi.model.ids import NO_NODE, NodeId
from suwi.sim.cluster import SimCluster
from suwi.wire.versions import ApiKey
from tests.broker.test_simulated_cluster import controller, create, image, run, state, until

B1, B2, B3 = (NodeId(number) for number in (1, 2, 3))


def other_than(*numbers: int) -> int:
    return next(number for number in (1, 2, 3) if number not in numbers)


async def alter(
    cluster: SimCluster,
    to: int,
    sender: int,
    members: list[int],
    *,
    broker_epoch: int | None = None,
    partition: int = 0,
    version: int = 3,
) -> Any:
    """Send an AlterPartition request as the leader of `orders` would."""
    fields = alter_fields(
        cluster, to, sender, members, broker_epoch=broker_epoch, partition=partition
    )
    connection = await peer(cluster, sender, to)
    try:
        return await connection.call(ApiKey.ALTER_PARTITION, version, fields)
    finally:
        await connection.close()


async def peer(cluster: SimCluster, sender: int, to: int) -> PeerConnection:
    """An authenticated connection from one broker to another."""
    broker = cluster[sender].broker
    assert broker is not None
    return await broker.peers.connect(NodeId(to))


def alter_fields(
    cluster: SimCluster,
    to: int,
    sender: int,
    members: list[int],
    *,
    broker_epoch: int | None = None,
    partition: int = 0,
) -> dict[str, Any]:
    known = image(cluster, to)
    topic = known.topics["orders"]
    now = topic.partitions[0]
    epochs = {number: known.registered_brokers[NodeId(number)].epoch for number in members}
    proposed = {
        "partition_index": partition,
        "leader_epoch": now.leader_epoch,
        "new_isr": members,
        "new_isr_with_epochs": [{"broker_id": n, "broker_epoch": e} for n, e in epochs.items()],
        "leader_recovery_state": 0,
        "partition_epoch": now.partition_epoch,
    }
    if broker_epoch is None:
        broker_epoch = known.registered_brokers[NodeId(sender)].epoch
    return {
        "broker_id": sender,
        "broker_epoch": broker_epoch,
        "topics": [{"topic_id": topic.id, "partitions": [proposed]}],
    }


async def orders(cluster: SimCluster) -> None:
    async with cluster.client("test") as client:
        await create(client)
    for number in (1, 2, 3):
        await until(lambda number=number: "orders" in image(cluster, number).topics)


def test_the_controller_accepts_a_leaders_isr_proposal() -> None:
    async def scenario(cluster: SimCluster) -> None:
        await orders(cluster)
        answer = await alter(cluster, controller(cluster), 1, [1, 2], version=2)
        (partition,) = answer.topics[0].partitions
        assert partition.error_code == ErrorCode.none
        assert (partition.leader_id, partition.isr, partition.partition_epoch) == (1, (1, 2), 1)
        await until(lambda: state(cluster, seen_by=3).partition_epoch >= 1)

    run(scenario)


def test_a_leader_that_resigns_gets_the_newly_elected_leader() -> None:
    async def scenario(cluster: SimCluster) -> None:
        await orders(cluster)
        answer = await alter(cluster, controller(cluster), 1, [2, 3])
        (partition,) = answer.topics[0].partitions
        assert partition.error_code == ErrorCode.new_leader_elected
        await until(lambda: state(cluster).leader == 2)

    run(scenario)


def test_proposals_are_refused_by_brokers_that_are_not_the_controller() -> None:
    async def scenario(cluster: SimCluster) -> None:
        await orders(cluster)
        answer = await alter(cluster, other_than(controller(cluster)), 1, [1, 2])
        assert answer.error_code == ErrorCode.not_controller
        assert state(cluster).isr == (1, 2, 3)

    run(scenario)


def test_alter_partition_with_an_old_broker_epoch_is_refused() -> None:
    async def scenario(cluster: SimCluster) -> None:
        await orders(cluster)
        stale = image(cluster, 1).registered_brokers[B1].epoch - 1
        answer = await alter(cluster, controller(cluster), 1, [1, 2], broker_epoch=stale)
        assert answer.error_code == ErrorCode.stale_broker_epoch

    run(scenario)


def test_an_unknown_partition_is_an_error_of_that_partition_only() -> None:
    async def scenario(cluster: SimCluster) -> None:
        await orders(cluster)
        answer = await alter(cluster, controller(cluster), 1, [1], partition=7)
        assert answer.error_code == ErrorCode.none
        (partition,) = answer.topics[0].partitions
        assert partition.error_code == ErrorCode.unknown_topic_or_partition

    run(scenario)


def heartbeat_fields(broker: int, epoch: int) -> dict[str, Any]:
    """The heartbeat of a broker in controlled shutdown."""
    return {
        "broker_id": broker,
        "broker_epoch": epoch,
        "current_metadata_offset": 0,
        "want_fence": True,
        "want_shut_down": True,
    }


async def heartbeat(cluster: SimCluster, to: int, broker: int, epoch: int) -> Any:
    connection = await peer(cluster, 1, to)
    try:
        return await connection.call(ApiKey.BROKER_HEARTBEAT, 1, heartbeat_fields(broker, epoch))
    finally:
        await connection.close()


def test_controlled_shutdown_needs_the_current_broker_epoch() -> None:
    async def scenario(cluster: SimCluster) -> None:
        active = controller(cluster)
        epoch = image(cluster, active).registered_brokers[B1].epoch
        stale = await heartbeat(cluster, active, 1, epoch - 1)
        assert (stale.error_code, stale.should_shut_down) == (ErrorCode.stale_broker_epoch, False)
        unknown = await heartbeat(cluster, active, 9, epoch)
        assert unknown.error_code == ErrorCode.broker_id_not_registered
        elsewhere = await heartbeat(cluster, other_than(active), 1, epoch)
        assert elsewhere.error_code == ErrorCode.not_controller
        heard = await heartbeat(cluster, active, 1, epoch)
        assert (heard.error_code, heard.should_shut_down) == (ErrorCode.none, True)
        # The broker is still running, so it may be unfenced by now.
        written = [change.values.get("live/1") or b"" for change in cluster.store.ledger.history]
        assert any(b'"fenced":true' in value for value in written)

    run(scenario)


async def elect(cluster: SimCluster, kind: int, partitions: list[int] | None) -> dict[int, int]:
    """The error code of each partition of `orders` in the response."""
    asked = None if partitions is None else [{"topic": "orders", "partitions": partitions}]
    async with cluster.client("admin") as client:
        answer = await client.call(
            ApiKey.ELECT_LEADERS,
            {"election_type": kind, "topic_partitions": asked, "timeout": 10_000},
        )
    return {
        partition.partition_id: int(partition.error_code)
        for topic in answer.replica_election_results
        for partition in topic.partition_result
    }


def test_elect_leaders_returns_a_result_for_each_partition() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client("test") as client:
            await create(client, assignments=[[1, 2], [2, 3], [3, 1]])
        await asyncio.sleep(1)
        assert await elect(cluster, 0, [0, 7]) == {
            0: ErrorCode.election_not_needed,
            7: ErrorCode.unknown_topic_or_partition,
        }
        cluster[1].kill()
        await until(lambda: state(cluster, 0, seen_by=2).leader == 2)
        assert await elect(cluster, 0, [0]) == {0: ErrorCode.preferred_leader_not_available}
        assert await elect(cluster, 0, None) == {0: ErrorCode.preferred_leader_not_available}
        assert await elect(cluster, 1, [0, 1]) == {
            0: ErrorCode.election_not_needed,
            1: ErrorCode.election_not_needed,
        }
        assert await elect(cluster, 1, None) == {}
        assert await elect(cluster, 5, [0]) == {0: ErrorCode.invalid_request}

    run(scenario)


def test_elect_leaders_unclean_ignores_the_topic_configuration() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client("test") as client:
            await create(client, assignments=[[1, 2]])
        await asyncio.sleep(1)
        cluster[2].kill()
        await until(lambda: state(cluster).isr == (1,))
        cluster[1].power_off()
        await until(lambda: state(cluster, seen_by=3).leader == NO_NODE)
        assert await elect(cluster, 1, [0]) == {0: ErrorCode.eligible_leaders_not_available}
        await cluster[2].start()
        assert state(cluster, seen_by=2).leader == NO_NODE
        assert await elect(cluster, 1, [0]) == {0: ErrorCode.none}
        await until(lambda: state(cluster, seen_by=2).leader == 2)

    run(scenario)


def test_hazard_11_a_deposed_controller_cannot_write() -> None:
    async def scenario(cluster: SimCluster) -> None:
        active = controller(cluster)
        broker = cluster[active].broker
        assert broker is not None
        active_controller = broker.controller_election.active
        elected = cluster.store.ledger.controller
        view = cluster[other_than(active)].view
        assert elected is not None
        assert view is not None
        before = cluster.store.ledger.sequence
        await view.depose(elected.epoch)
        try:
            await active_controller.partitions.fence(
                B3, image(cluster, 1).registered_brokers[B3].epoch
            )
        except NotController:
            pass
        else:
            raise AssertionError("the deposed controller wrote")
        assert cluster.store.ledger.sequence == before
        await until(lambda: controller(cluster) != NO_NODE)

    run(scenario)
