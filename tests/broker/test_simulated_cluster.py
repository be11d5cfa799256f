"""Several production brokers in the simulation: leadership through failures and restarts."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from suwi.client.cluster import Cluster
from suwi.client.connection import PeerConnection
from suwi.metadata.image import ClusterImage, PartitionState
from suwi.model.ids import NO_NODE, NodeId
from suwi.sim import Simulation
from suwi.sim.cluster import DATA, PORT, SimCluster
from suwi.wire.versions import ApiKey

SEEDS = range(5)


def run(
    scenario: Callable[[SimCluster], Awaitable[None]],
    seed: int = 1,
    settings: dict[str, str] | None = None,
    **options: Any,
) -> None:
    simulation = Simulation(seed)

    async def main() -> None:
        cluster = SimCluster(simulation, settings=settings, **options)
        await cluster.start()
        await scenario(cluster)

    simulation.run(main())


def image(cluster: SimCluster, number: int) -> ClusterImage:
    broker = cluster[number].broker
    assert broker is not None
    return broker.replicas.image


def state(cluster: SimCluster, partition: int = 0, *, seen_by: int = 1) -> PartitionState:
    return image(cluster, seen_by).topics["orders"].partitions[partition]


async def until(condition: Callable[[], bool], limit_s: float = 60.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 - virtual time costs nothing
            await asyncio.sleep(0.05)


def controller(cluster: SimCluster) -> int:
    elected = cluster.store.ledger.controller
    return elected.node_id if elected is not None else NO_NODE


async def create(
    through: Cluster | PeerConnection,
    *,
    name: str = "orders",
    assignments: list[list[int]] | None = None,
    configs: dict[str, str] | None = None,
) -> Any:
    replicas = assignments or [[1, 2, 3]]
    fields = {
        "topics": [
            {
                "name": name,
                "num_partitions": -1,
                "replication_factor": -1,
                "assignments": [
                    {"partition_index": index, "broker_ids": brokers}
                    for index, brokers in enumerate(replicas)
                ],
                "configs": [
                    {"name": key, "value": value} for key, value in (configs or {}).items()
                ],
            }
        ],
        "timeout": 10_000,
        "validate_only": False,
    }
    if isinstance(through, Cluster):
        answer = await through.call(ApiKey.CREATE_TOPICS, fields)
    else:
        answer = await through.call(ApiKey.CREATE_TOPICS, 7, fields)
    return answer.topics[0]


# -- failures and restarts ------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_every_brokers_image_has_all_brokers(seed: int) -> None:
    async def scenario(cluster: SimCluster) -> None:
        for number in (1, 2, 3):
            await until(lambda number=number: len(image(cluster, number).unfenced_brokers) == 3)
            await until(lambda number=number: image(cluster, number).controller is not None)
            assert image(cluster, number).controller == controller(cluster)
        (name,) = {node.broker.cluster_id for node in cluster.nodes.values() if node.broker}
        for node in cluster.nodes.values():
            written = node.machine.disk.read_bytes(f"{DATA}/meta.properties").decode()
            assert f"cluster.id={name}\n" in written

    run(scenario, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_after_a_broker_fails_others_lead_and_it_leaves_every_isr(
    seed: int,
) -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client("test") as client:
            await create(client, assignments=[[1, 2, 3], [2, 3, 1]])
        victim = 1
        cluster[victim].kill()
        await until(lambda: state(cluster, 0, seen_by=2).leader == 2)
        first, second = state(cluster, 0, seen_by=2), state(cluster, 1, seen_by=2)
        assert (first.leader_epoch, set(first.isr)) == (1, {2, 3})
        assert (second.leader, second.leader_epoch, set(second.isr)) == (2, 0, {2, 3})
        await until(lambda: NodeId(victim) not in image(cluster, 2).registered_brokers)
        await cluster[victim].start()
        await until(lambda: set(state(cluster, 0).isr) == {1, 2, 3})
        assert state(cluster, 0).leader == 2

    run(scenario, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_new_controller_finishes_the_work_of_a_failed_one(seed: int) -> None:
    async def scenario(cluster: SimCluster) -> None:
        victim = controller(cluster)
        other = 1 + victim % 3
        async with cluster.client("test") as client:
            await create(client, assignments=[[victim, other]])
        await until(lambda: "orders" in image(cluster, other).topics)
        cluster[victim].kill()
        await until(lambda: state(cluster, seen_by=other).leader == other)
        assert controller(cluster) != victim
        assert state(cluster, seen_by=other).isr == (other,)

    run(scenario, seed)


def test_a_partition_has_no_leader_while_its_only_replica_is_down() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client("test") as client:
            await create(client, assignments=[[3]])
        cluster[3].kill()
        await until(lambda: state(cluster).leader == NO_NODE)
        assert state(cluster).isr == (3,)
        await cluster[3].start()
        await until(lambda: state(cluster).leader == 3)
        assert state(cluster).leader_epoch == 2

    run(scenario)


def test_a_broker_that_restarts_at_once_has_a_new_broker_epoch() -> None:
    """Its failure was never noticed; still it leads in a new leader epoch, or not at all."""

    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client("test") as client:
            await create(client, assignments=[[1, 2]])
            await create(client, name="single", assignments=[[1]])
        await until(lambda: "single" in image(cluster, 2).topics)
        before = image(cluster, 2).registered_brokers[NodeId(1)].epoch
        cluster[1].kill()
        await cluster[1].start()
        await until(lambda: image(cluster, 2).registered_brokers[NodeId(1)].epoch > before)
        shared = state(cluster, seen_by=2)
        single = image(cluster, 2).topics["single"].partitions[0]
        assert (shared.leader, shared.leader_epoch) == (2, 1)
        assert single.leader == 1
        assert single.leader_epoch >= 1

    run(scenario)


def test_a_broker_that_loses_its_session_registers_again() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client("test") as client:
            await create(client, assignments=[[3]])
        await until(lambda: "orders" in image(cluster, 3).topics)
        before = image(cluster, 3).registered_brokers[NodeId(3)].epoch
        view = cluster[3].view
        assert view is not None
        view.expire()
        await until(lambda: state(cluster, seen_by=3).leader_epoch > 0)
        await until(lambda: state(cluster, seen_by=3).leader == 3)
        assert image(cluster, 3).registered_brokers[NodeId(3)].epoch > before
        broker = cluster[3].broker
        assert broker is not None
        assert broker.replicas.leader_of("orders", 0).leader_epoch == state(cluster).leader_epoch

    run(scenario)


def test_a_broker_whose_registration_was_removed_registers_again() -> None:
    async def scenario(cluster: SimCluster) -> None:
        before = image(cluster, 3).registered_brokers[NodeId(3)].epoch
        view = cluster[1].view
        assert view is not None
        await view.deregister("brokers/3", before)
        await until(lambda: image(cluster, 1).registered_brokers[NodeId(3)].epoch > before)

    run(scenario)


# -- requests for the controller -----------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_any_broker_creates_a_topic_and_has_it_in_its_metadata_at_once(seed: int) -> None:
    async def scenario(cluster: SimCluster) -> None:
        for number in (1, 2, 3):
            connection = await PeerConnection.open(f"b{number}", PORT)
            created = await create(connection, name=f"topic-{number}")
            assert created.error_code == ErrorCode.none, created
            assert f"topic-{number}" in image(cluster, number).topics
            again = await create(connection, name=f"topic-{number}")
            assert again.error_code == ErrorCode.topic_already_exists
            await connection.close()

    run(scenario, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_any_broker_creates_topics_automatically(seed: int) -> None:
    async def scenario(cluster: SimCluster) -> None:
        for number in (1, 2, 3):
            name = f"topic-{number}"
            connection = await PeerConnection.open(f"b{number}", PORT)
            answer = await connection.call(
                ApiKey.METADATA,
                12,
                {
                    "topics": [{"name": name, "topic_id": None}],
                    "allow_auto_topic_creation": True,
                    "include_cluster_authorized_operations": False,
                    "include_topic_authorized_operations": False,
                },
            )
            (topic,) = answer.topics
            assert topic.error_code == ErrorCode.none
            assert len(topic.partitions[0].replica_nodes) == 3
            await connection.close()

    run(scenario, seed, {"default.replication.factor": "3"})


def test_a_request_waits_for_the_next_controller() -> None:
    async def scenario(cluster: SimCluster) -> None:
        victim = controller(cluster)
        other = 1 + victim % 3
        connection = await PeerConnection.open(f"b{other}", PORT)
        cluster[victim].kill()
        created = await create(connection, assignments=[[other]])
        assert created.error_code == ErrorCode.none, created
        await connection.close()

    run(scenario, session_timeout_s=2.0)


# -- preferred leaders ---------------------------------------------------------------------------


def test_the_preferred_leader_is_elected_again() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client("test") as client:
            await create(client)
        cluster[1].kill()
        await until(lambda: state(cluster, seen_by=2).leader == 2)
        await cluster[1].start()
        await until(lambda: state(cluster).leader == 1)
        assert state(cluster).leader_epoch == 2

    run(scenario, settings={"leader.imbalance.check.interval.seconds": "5"})


def test_without_auto_rebalance_the_preferred_leader_is_not_elected() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client("test") as client:
            await create(client)
            cluster[1].kill()
            await until(lambda: state(cluster, seen_by=2).leader == 2)
            await cluster[1].start()
            await until(lambda: len(state(cluster).isr) == 3)
            await asyncio.sleep(20)
            assert state(cluster).leader == 2
            answer = await client.call(
                ApiKey.ELECT_LEADERS,
                {"election_type": 0, "topic_partitions": None, "timeout": 10_000},
            )
            (result,) = answer.replica_election_results
            assert (result.topic, result.partition_result[0].error_code) == ("orders", 0)
            await until(lambda: state(cluster).leader == 1)

    run(
        scenario,
        settings={
            "auto.leader.rebalance.enable": "false",
            "leader.imbalance.check.interval.seconds": "5",
        },
    )
