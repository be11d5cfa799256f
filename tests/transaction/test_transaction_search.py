"""Before a marker of a client is written, all coordinators are asked (hazard T24)."""

from collections.abc import Awaitable, Callable

import pytest
from kio.schema.errors import ErrorCode

from suwi.client.admin import Admin
from suwi.client.connection import PeerConnection
from suwi.client.transactions import TransactionalProducer
from suwi.coordinator.runtime import shard_index
from suwi.coordinator.shard_replica import Status
from suwi.model.errors import CoordinatorNotAvailable
from suwi.model.ids import NodeId, PartitionIndex, ProducerId, TopicPartition
from suwi.sim import Simulation
from suwi.sim.cluster import PORT, SimCluster
from suwi.wire.versions import ApiKey
from tests.broker.test_simulated_cluster import image, until

TOPIC, STATE, SHARDS = "orders", "__transaction_state", 6
SETTINGS = {"transaction.state.log.num.partitions": str(SHARDS)}
ORDERS = TopicPartition(TOPIC, PartitionIndex(0))
UNKNOWN_PRODUCER = 999_999


def leader_of(cluster: SimCluster, topic: str, partition: int) -> NodeId:
    state = image(cluster, 1).partition(TopicPartition(topic, PartitionIndex(partition)))
    assert state is not None
    return state.leader


def an_id_coordinated_by(cluster: SimCluster, node: NodeId) -> str:
    names = (f"id-{number}" for number in range(1000))
    return next(n for n in names if leader_of(cluster, STATE, shard_index(n, SHARDS)) == node)


async def abort(cluster: SimCluster, producer_id: int, epoch: int = 0) -> ErrorCode:
    """As a stranger, of the partition's leader."""
    marker = {
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "transaction_result": False,
        "topics": [{"name": TOPIC, "partition_indexes": [0]}],
        "coordinator_epoch": 0,
        "transaction_version": 0,
    }
    leader = cluster[leader_of(cluster, TOPIC, 0)]
    stranger = await PeerConnection.open(leader.name, PORT, client_id="stranger")
    answer = await stranger.call(ApiKey.WRITE_TXN_MARKERS, 2, {"markers": [marker]})
    await stranger.close()
    error: ErrorCode = answer.markers[0].topics[0].partitions[0].error_code
    return error


def on_three(scenario: Callable[[SimCluster], Awaitable[None]]) -> None:
    simulation = Simulation(0)

    async def run() -> None:
        cluster = SimCluster(simulation, settings=SETTINGS)
        await cluster.start()
        async with cluster.client("admin") as client:
            await Admin(client).create_topic(TOPIC, partitions=1, replication_factor=3)
            await client.call(
                ApiKey.FIND_COORDINATOR, {"key": "a", "key_type": 1, "coordinator_keys": ["a"]}
            )
        await until(
            lambda: all(
                sum(shard.status is Status.ACTIVE for shard in node.broker.transactions.runtime) > 0
                for node in cluster.nodes.values()
                if node.broker is not None
            )
        )
        await scenario(cluster)

    simulation.run(run())


@pytest.mark.parametrize("coordinator", [1, 2, 3])
def test_a_transaction_that_any_coordinator_knows_is_not_ended(coordinator: int) -> None:
    async def scenario(cluster: SimCluster) -> None:
        name = an_id_coordinated_by(cluster, NodeId(coordinator))
        async with cluster.client("producer") as client:
            producer = TransactionalProducer(client, cluster[1].machine.clock, name)
            await producer.init_transactions()
            producer.begin()
            await producer.send(TOPIC, b"a")
            await producer.flush()
            assert producer.identity is not None
            producer_id, epoch = producer.identity
            error = await abort(cluster, producer_id, epoch)
            assert error is ErrorCode.invalid_txn_state
            await producer.commit()
            broker = cluster[leader_of(cluster, TOPIC, 0)].broker
            assert broker is not None
            await until(
                lambda: (
                    not broker.replicas.leader_of(TOPIC, 0)
                    .log.producers.get(ProducerId(producer_id))
                    .has_open_txn
                )  # type: ignore[union-attr]
            )
        assert await abort(cluster, UNKNOWN_PRODUCER) is ErrorCode.none

    on_three(scenario)


def test_without_an_answer_of_every_coordinator_the_error_is_retriable() -> None:
    async def scenario(cluster: SimCluster) -> None:
        leader = leader_of(cluster, TOPIC, 0)
        broker = cluster[leader].broker
        assert broker is not None
        other = next(node for node in cluster.nodes if node != leader)
        assert (await broker.transactions.search.find(UNKNOWN_PRODUCER, ORDERS)).ids == []
        silent = cluster[other].broker
        assert silent is not None
        (shard, *_) = silent.transactions.runtime.active()
        shard.status = Status.LOADING
        error = await abort(cluster, UNKNOWN_PRODUCER)
        assert error is ErrorCode.not_leader_or_follower, "which Java's Admin retries"
        assert error.retriable
        shard.status = Status.ACTIVE
        assert await abort(cluster, UNKNOWN_PRODUCER) is ErrorCode.none
        cluster[other].kill()
        with pytest.raises(CoordinatorNotAvailable):
            await broker.transactions.search.find(UNKNOWN_PRODUCER, ORDERS)
        await cluster[other].start()
        found = broker.transactions.search
        await until(lambda: leader_of(cluster, TOPIC, 0) == leader)
        assert (await found.find(UNKNOWN_PRODUCER, ORDERS)).ids == []

    on_three(scenario)
