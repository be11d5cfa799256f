"""Reassignments in a simulated cluster: replicas move, and what is in them moves with them
(hazards Z14, Z17)."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest
from kio.schema.errors import ErrorCode

from suwi.admin.reassignment import move
from suwi.client.admin import Admin, Resource, ResourceType
from suwi.client.cluster import Cluster
from suwi.client.connection import PeerConnection
from suwi.metadata.image import PartitionState
from suwi.model.errors import (
    BrokerError,
    InvalidReplicaAssignment,
    NoReassignmentInProgress,
    UnknownTopicOrPartition,
)
from suwi.model.ids import NO_NODE, NodeId, PartitionIndex, TopicPartition
from suwi.sim import Simulation
from suwi.sim.cluster import DATA, SimCluster
from suwi.wire.versions import ApiKey
from tests.broker.simulated import produce
from tests.broker.test_simulated_cluster import controller, create, image, state, until

ORDERS = TopicPartition("orders", PartitionIndex(0))


def run(scenario: Callable[[SimCluster, Admin], Awaitable[None]], seed: int = 1) -> None:
    """Four brokers; `orders` has a partition on b1 and b2, with a record."""
    simulation = Simulation(seed)

    async def main() -> None:
        cluster = SimCluster(simulation, brokers=4, session_timeout_s=2.0)
        await cluster.start()
        client = cluster.client("admin")
        await create(client, assignments=[[1, 2]])
        assert await write(cluster, 1, b"a") == 0
        await scenario(cluster, Admin(client))
        await client.close()

    simulation.run(main())


async def write(cluster: SimCluster, leader: int, value: bytes) -> int:
    """Write with acks=all; returns the error code."""
    connection = await PeerConnection.open(f"b{leader}", 9092)
    try:
        return (await produce(connection, "orders", [value])).error_code
    finally:
        connection.abort()


async def moved(admin: Admin, *replicas: int) -> None:
    assert await admin.reassign({ORDERS: replicas}) == {ORDERS: None}


async def outcome(admin: Admin, target: Sequence[int] | None) -> BrokerError | None:
    return (await admin.reassign({ORDERS: target}))[ORDERS]


def cut_off(cluster: SimCluster) -> tuple[int, int]:
    """b3 and b4, the first of which the leader b1 cannot reach; it is not the controller."""
    first, second = (4, 3) if controller(cluster) == 3 else (3, 4)
    cluster.simulation.network.partition([f"b{first}"], ["b1"])
    return first, second


async def kill(cluster: SimCluster, number: int) -> None:
    """Returns when another broker is the controller and has noticed."""
    cluster[number].kill()
    await until(
        lambda: (
            controller(cluster) not in (number, NO_NODE)
            and number not in image(cluster, controller(cluster)).registered_brokers
        )
    )


def now(cluster: SimCluster) -> PartitionState:
    """As the controller has it."""
    return state(cluster, seen_by=controller(cluster))


def directories(cluster: SimCluster, topic: str = "orders") -> list[int]:
    """The brokers that have a directory of the partition."""
    return [
        node.id for node in cluster.nodes.values() if node.machine.disk.exists(f"{DATA}/{topic}-0")
    ]


def end_of(cluster: SimCluster, number: int) -> int:
    broker = cluster[number].broker
    assert broker is not None
    return broker.replicas.replica_of("orders", 0).log.end_offset


def test_a_partition_moves_to_other_brokers_and_its_old_logs_are_deleted() -> None:
    async def scenario(cluster: SimCluster, admin: Admin) -> None:
        await moved(admin, 3, 4)
        await until(lambda: not now(cluster).is_reassigning)
        done = now(cluster)
        assert (done.replicas, set(done.isr), done.leader) == ((3, 4), {3, 4}, 3)
        await until(lambda: directories(cluster) == [3, 4])
        await until(lambda: end_of(cluster, 3) == end_of(cluster, 4) == 1)
        assert await write(cluster, 3, b"b") == 0
        assert await write(cluster, 1, b"c") != 0

    run(scenario)


def test_a_reassignment_is_listed_until_it_is_complete() -> None:
    async def scenario(cluster: SimCluster, admin: Admin) -> None:
        late, _ = cut_off(cluster)
        await moved(admin, late, 1)
        listed = (await admin.reassignments())[ORDERS]
        assert listed.replicas == (late, 1, 2)
        assert (listed.adding_replicas, listed.removing_replicas) == ((late,), (2,))
        assert await write(cluster, 1, b"b") == 0  # Nobody waits for the new replica.
        cluster.simulation.network.heal()
        await until(lambda: not now(cluster).is_reassigning)
        assert await admin.reassignments() == {}

    run(scenario)


def test_a_cancelled_reassignment_leaves_nothing_behind() -> None:
    async def scenario(cluster: SimCluster, admin: Admin) -> None:
        late, other = cut_off(cluster)
        await moved(admin, late, other)
        await until(lambda: other in now(cluster).isr and other in directories(cluster))
        assert await outcome(admin, None) is None
        cluster.simulation.network.heal()
        undone = now(cluster)
        assert (sorted(undone.replicas), undone.leader) == ([1, 2], 1)
        await until(lambda: directories(cluster) == [1, 2])
        assert isinstance(await outcome(admin, None), NoReassignmentInProgress)
        await asyncio.sleep(0.5)
        assert await write(cluster, 1, b"b") == 0

    run(scenario)


def test_a_new_target_overrides_the_running_one() -> None:
    async def scenario(cluster: SimCluster, admin: Admin) -> None:
        late, other = cut_off(cluster)
        await moved(admin, late, other)
        await until(lambda: other in now(cluster).isr)
        await moved(admin, 2, 1)
        cluster.simulation.network.heal()
        await until(lambda: not now(cluster).is_reassigning)
        assert now(cluster).replicas == (2, 1)
        await until(lambda: directories(cluster) == [1, 2])

    run(scenario)


def test_errors_name_what_is_wrong() -> None:
    async def scenario(cluster: SimCluster, admin: Admin) -> None:
        for target in ([], [1, 1], [9]):
            assert isinstance(await outcome(admin, target), InvalidReplicaAssignment)
        missing = TopicPartition("orders", PartitionIndex(7))
        results = await admin.reassign({missing: [1], ORDERS: None})
        assert isinstance(results[missing], UnknownTopicOrPartition)
        assert isinstance(results[ORDERS], NoReassignmentInProgress)

    run(scenario)


def test_a_client_finds_the_next_controller() -> None:
    async def scenario(cluster: SimCluster, admin: Admin) -> None:
        assert await admin.reassignments() == {}
        first = controller(cluster)
        await kill(cluster, first)
        assert await admin.reassignments() == {}  # The one it knew is gone.

    run(scenario)


def test_a_command_that_moves_replicas_goes_on_after_no_broker_could_be_reached() -> None:
    async def scenario(cluster: SimCluster, admin: Admin) -> None:
        late = NodeId(cut_off(cluster)[0])
        client: Cluster = cluster.client("mover")

        async def move_on() -> None:
            # Brokers do not return at one instant: the command sees some of them first.
            while not await move(client, {ORDERS: (NodeId(1), late)}, print):
                pass

        moving = asyncio.create_task(move_on())
        await until(lambda: now(cluster).is_reassigning)
        for node in cluster.nodes.values():
            node.kill()
        await asyncio.sleep(1.0)
        for node in cluster.nodes.values():
            await node.start()
        cluster.simulation.network.heal()
        await moving
        assert now(cluster).replicas == (1, late)
        await client.close()

    run(scenario)


@pytest.mark.parametrize("seed", range(3))
def test_the_next_controller_continues_a_reassignment(seed: int) -> None:
    async def scenario(cluster: SimCluster, admin: Admin) -> None:
        first = controller(cluster)
        others = [number for number in (3, 4) if number != first]
        cluster.simulation.network.partition([f"b{others[0]}"], ["b1", "b2"])
        await moved(admin, 2, others[0])
        cluster[first].kill()
        await until(lambda: controller(cluster) not in (first, -1))
        cluster.simulation.network.heal()
        if first in (1, 2):
            await cluster[first].start()
        await until(lambda: not now(cluster).is_reassigning)
        assert now(cluster).replicas == (2, others[0])

    run(scenario, seed)


def test_a_broker_that_was_down_deletes_the_replica_that_was_moved_away() -> None:
    async def scenario(cluster: SimCluster, admin: Admin) -> None:
        await kill(cluster, 2)
        await moved(admin, 1, 3)
        await until(lambda: not now(cluster).is_reassigning)
        assert 2 in directories(cluster)
        await cluster[2].start()
        await until(lambda: directories(cluster) == [1, 3])

    run(scenario)


def test_a_replica_that_comes_back_to_a_broker_starts_anew() -> None:
    async def scenario(cluster: SimCluster, admin: Admin) -> None:
        for target in ((3, 1), (2, 1), (3, 2), (1, 2)):
            await moved(admin, *target)
            await until(lambda: not now(cluster).is_reassigning)
            leader = now(cluster).leader
            await until(lambda leader=leader: state(cluster, seen_by=leader) == now(cluster))  # type: ignore[misc]
            assert await write(cluster, leader, b"more") == 0
        await until(lambda: directories(cluster) == [1, 2])
        assert end_of(cluster, 1) == end_of(cluster, 2) == 5

    run(scenario)


def test_a_topic_can_be_deleted_and_extended_while_it_is_reassigned() -> None:
    async def scenario(cluster: SimCluster, admin: Admin) -> None:
        late, other = cut_off(cluster)
        await moved(admin, late, 1, other)
        await admin.add_partitions("orders", 2)
        added = image(cluster, controller(cluster)).topics["orders"].partitions[1]
        assert len(added.replicas) == 3
        await admin.delete_topic("orders")
        cluster.simulation.network.heal()
        await until(lambda: directories(cluster) == [])
        assert await admin.reassignments() == {}

    run(scenario)


def test_more_replicas_do_not_stop_writes_while_they_are_copied() -> None:
    async def scenario(cluster: SimCluster, admin: Admin) -> None:
        client: Cluster = cluster.client("second")
        await create(client, name="alone", assignments=[[1]], configs={"min.insync.replicas": "2"})
        cluster.simulation.network.partition(["b3", "b4"], ["b1"])
        alone = TopicPartition("alone", PartitionIndex(0))
        assert await admin.reassign({alone: [1, 3, 4]}) == {alone: None}
        connection = await PeerConnection.open("b1", 9092)
        assert (await produce(connection, "alone", [b"a"])).error_code == 0
        cluster.simulation.network.heal()

        def grown() -> PartitionState:
            return image(cluster, controller(cluster)).topics["alone"].partitions[0]

        await until(lambda: not grown().is_reassigning)
        assert (grown().replicas, len(grown().isr)) == ((1, 3, 4), 3)
        assert (await produce(connection, "alone", [b"b"])).error_code == 0
        connection.abort()
        await client.close()

    run(scenario)


def test_a_broker_is_unregistered_once_it_has_stopped_and_has_no_replicas() -> None:
    async def scenario(cluster: SimCluster, admin: Admin) -> None:
        async def unregister(node: int) -> ErrorCode:
            client = cluster.client("unregister")
            answer = await client.call(ApiKey.UNREGISTER_BROKER, {"broker_id": node})
            await client.close()
            return ErrorCode(answer.error_code)

        settings = {"max.connections": "77"}
        await admin.alter_configs(Resource(ResourceType.BROKER, "2"), settings)
        assert await unregister(2) == ErrorCode.invalid_request  # It runs.
        await kill(cluster, 2)
        assert await unregister(2) == ErrorCode.invalid_request  # It has a replica.
        await moved(admin, 1, 3)
        await until(lambda: not now(cluster).is_reassigning)
        assert await unregister(2) == ErrorCode.none
        assert "2" not in image(cluster, controller(cluster)).broker_configs
        assert await unregister(2) == ErrorCode.broker_id_not_registered

    run(scenario)
