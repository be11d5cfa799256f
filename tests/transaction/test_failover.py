"""Transactions on three brokers: markers to every leader, and a coordinator that fails."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from simulation.shard_watch import ShardWatch
from suwi.client.admin import Admin
from suwi.client.connection import PeerConnection
from suwi.client.transactions import TransactionalProducer
from suwi.model.ids import NodeId, PartitionIndex, ProducerId, TopicPartition
from suwi.sim import Simulation
from suwi.sim.checkers.facts import Broken
from suwi.sim.cluster import PORT, SimCluster
from suwi.transaction.transaction_records import TransactionLogValue, TransactionState
from suwi.wire.versions import ApiKey

ID, TOPIC, PARTITIONS = "copier", "orders", 6
STATE = TopicPartition("__transaction_state", PartitionIndex(0))
SETTINGS = {
    "transaction.state.log.num.partitions": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}
_MOVED = (14, 15, 16, 51)


class World:
    def __init__(self, simulation: Simulation) -> None:
        self.cluster = SimCluster(simulation, settings=SETTINGS)
        self.outside = simulation.machine("outside")
        self._connection: tuple[NodeId, PeerConnection] | None = None

    async def begin(self) -> None:
        async with self.cluster.client("admin") as client:
            await Admin(client).create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
            keys = {"key": ID, "key_type": 1, "coordinator_keys": [ID]}
            await client.call(ApiKey.FIND_COORDINATOR, keys)

    @property
    def coordinator(self) -> NodeId:
        """As the brokers that are there see it."""
        for node in self.cluster.nodes.values():
            if node.broker is not None and node.in_service.is_set():
                state = node.broker.replicas.image.partition(STATE)
                if state is not None and self.cluster[state.leader].in_service.is_set():
                    return state.leader
        raise ConnectionError("nobody leads")

    async def ask(self, api: ApiKey, version: int, fields: dict[str, Any]) -> Any:
        """Again and again while the coordinator moves."""
        async with asyncio.timeout(120):
            while True:
                try:
                    answer = await (await self._connect()).call(api, version, fields)
                except OSError:
                    self._connection = None
                else:
                    if answer.error_code not in _MOVED:
                        return answer
                await asyncio.sleep(0.1)

    async def _connect(self) -> PeerConnection:
        node = self.coordinator
        if self._connection is None or self._connection[0] != node:
            self._connection = node, await PeerConnection.open(self.cluster[node].name, PORT)
        return self._connection[1]

    async def init(self, timeout_ms: int = 60_000, transactional_id: str = ID) -> tuple[int, int]:
        fields = {"transactional_id": transactional_id, "transaction_timeout": timeout_ms}
        answer = await self.ask(ApiKey.INIT_PRODUCER_ID, 4, fields)
        assert answer.error_code == 0
        return answer.producer_id, answer.producer_epoch

    async def add(
        self,
        producer: tuple[int, int],
        transactional_id: str = ID,
        topic: str = TOPIC,
        partitions: Sequence[int] = range(PARTITIONS),
    ) -> None:
        topics = [{"name": topic, "partitions": list(partitions)}]
        transaction = {
            "transactional_id": transactional_id,
            "producer_id": producer[0],
            "producer_epoch": producer[1],
            "verify_only": False,
            "topics": topics,
        }
        answer = await self.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 4, {"transactions": [transaction]})
        (result,) = answer.results_by_transaction
        errors = [
            each.partition_error_code for each in result.topic_results[0].results_by_partition
        ]
        assert errors == [0] * len(partitions)

    async def end(self, producer: tuple[int, int], version: int, transactional_id: str = ID) -> Any:
        fields = {
            "transactional_id": transactional_id,
            "producer_id": producer[0],
            "producer_epoch": producer[1],
            "committed": True,
        }
        return await self.ask(ApiKey.END_TXN, version, fields)

    # -- what the brokers have -------------------------------------------------------------------

    def known(self, transactional_id: str = ID) -> list[TransactionLogValue | None]:
        """On each broker that is there."""
        found: list[TransactionLogValue | None] = []
        for node in self.cluster.nodes.values():
            if node.broker is not None and node.in_service.is_set():
                shards = list(node.broker.transactions.runtime)
                found += [shard.machine.transactions.get(transactional_id) for shard in shards]
        return found

    async def until(
        self, state: TransactionState, transactional_id: str = ID, within_s: float = 120
    ) -> None:
        """On all brokers, also on those that do not coordinate."""
        async with asyncio.timeout(within_s):
            while {each and each.state for each in self.known(transactional_id)} != {state}:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert len({repr(each) for each in self.known(transactional_id)}) == 1

    def leader_of(self, topic: str, partition: int) -> NodeId:
        broker = self.cluster[self.coordinator].broker
        assert broker is not None
        state = broker.replicas.image.partition(TopicPartition(topic, PartitionIndex(partition)))
        assert state is not None
        return state.leader

    def marked(self, producer_id: int) -> list[int | None]:
        """The epoch of the last marker in each partition."""
        epochs: list[int | None] = []
        for index in range(PARTITIONS):
            for node in self.cluster.nodes.values():
                if node.broker is None or not node.in_service.is_set():
                    continue
                tp = TopicPartition(TOPIC, PartitionIndex(index))
                state = node.broker.replicas.image.partition(tp)
                if state is not None and state.leader == node.id:
                    partition = node.broker.replicas.leader_of(TOPIC, PartitionIndex(index))
                    producer = partition.log.producers.get(ProducerId(producer_id))
                    epochs.append(producer.epoch if producer is not None else None)
        return epochs


def on_cluster(scenario: Callable[[World], Awaitable[None]], seed: int = 0) -> None:
    simulation = Simulation(seed)

    async def run() -> None:
        world = World(simulation)
        await world.cluster.start()
        world.outside.start()

        async def play() -> None:
            await world.begin()
            await scenario(world)

        await world.outside.spawn(play())

    simulation.run(run())


@pytest.mark.parametrize("seed", range(3))
def test_t2_a_transaction_that_begins_before_the_markers_of_the_last_is_not_refused(
    seed: int,
) -> None:
    async def scenario(world: World) -> None:
        async with world.cluster.client("producer") as client:
            producer = TransactionalProducer(client, world.outside.clock, ID)
            await producer.init_transactions()
            for number in range(20):
                producer.begin()
                for index in range(PARTITIONS):
                    await producer.send(TOPIC, b"%d" % number, partition=PartitionIndex(index))
                await producer.commit()
            await producer.close()

    on_cluster(scenario, seed)


@pytest.mark.parametrize("version", [4, 5])
def test_every_leader_gets_its_markers(version: int) -> None:
    async def scenario(world: World) -> None:
        producer = await world.init()
        await world.add(producer)
        await world.end(producer, version)
        await world.until(TransactionState.COMPLETE_COMMIT)
        assert world.marked(producer[0]) == [1 if version == 5 else 0] * PARTITIONS

    on_cluster(scenario)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("delay_s", [0.0, 0.001, 0.003])
def test_t9_what_one_coordinator_decided_the_next_completes(seed: int, delay_s: float) -> None:
    async def scenario(world: World) -> None:
        producer = await world.init()
        await world.add(producer)
        await world.end(producer, 5)
        await asyncio.sleep(delay_s)
        world.cluster[world.coordinator].kill()
        await world.until(TransactionState.COMPLETE_COMMIT)
        retried = await world.end(producer, 5)
        assert (retried.error_code, retried.producer_epoch) == (0, 1)
        async with asyncio.timeout(120):
            while world.marked(producer[0]) != [1] * PARTITIONS:  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    on_cluster(scenario, seed)


def test_t12_an_open_transaction_outlives_its_coordinator() -> None:
    async def scenario(world: World) -> None:
        producer = await world.init()
        await world.add(producer)
        world.cluster[world.coordinator].kill()
        await world.add(producer)
        answer = await world.end(producer, 5)
        assert (answer.error_code, answer.producer_epoch) == (0, 1)
        await world.until(TransactionState.COMPLETE_COMMIT)

    on_cluster(scenario)


def test_t8_a_transaction_times_out_at_the_next_coordinator() -> None:
    async def scenario(world: World) -> None:
        producer = await world.init(timeout_ms=10_000)
        await world.add(producer)
        world.cluster[world.coordinator].kill()
        await world.until(TransactionState.COMPLETE_ABORT)
        assert world.marked(producer[0]) == [1] * PARTITIONS
        assert (await world.end(producer, 4)).error_code == 90

    on_cluster(scenario)


def test_t11_markers_wait_for_a_leader_that_is_down() -> None:
    async def scenario(world: World) -> None:
        producer = await world.init()
        await world.add(producer)
        others = [node for node in world.cluster.nodes if node != world.coordinator]
        world.cluster[others[0]].freeze()  # It still leads, for as long as its session lasts.
        assert (await world.end(producer, 5)).error_code == 0
        await asyncio.sleep(30)
        world.cluster[others[0]].thaw()
        await world.until(TransactionState.COMPLETE_COMMIT)

    on_cluster(scenario)


def test_a_partition_that_cannot_commit_does_not_hold_up_other_transactions() -> None:
    """Its in-sync follower is cut off from the leader for a while, and is waited for."""

    async def scenario(world: World) -> None:
        async with world.cluster.client("admin") as client:
            await Admin(client).create_topic("alone", partitions=3, replication_factor=1)
        coordinator = world.coordinator
        leader, follower = (node for node in world.cluster.nodes if node != coordinator)
        stuck = [p for p in range(PARTITIONS) if world.leader_of(TOPIC, p) == leader]
        free = [p for p in range(3) if world.leader_of("alone", p) == leader]
        held_up, other = await world.init(), await world.init(transactional_id="other")
        await world.add(held_up, partitions=stuck)
        await world.add(other, "other", "alone", free)
        network, names = world.cluster.simulation.network, world.cluster
        network.partition([names[leader].name], [names[follower].name])
        assert (await world.end(held_up, 4)).error_code == 0
        await asyncio.sleep(1)
        assert (await world.end(other, 4, "other")).error_code == 0
        await world.until(TransactionState.COMPLETE_COMMIT, "other", within_s=10)
        assert world.cluster.nodes[leader].is_running
        assert TransactionState.PREPARE_COMMIT in {each and each.state for each in world.known()}
        network.heal()
        await world.until(TransactionState.COMPLETE_COMMIT, within_s=20)
        broker = world.cluster[leader].broker
        assert broker is not None
        logs = [broker.replicas.leader_of(TOPIC, PartitionIndex(p)).log for p in stuck]
        assert {log.end_offset for log in logs} == {1}  # However often it was sent.

    on_cluster(scenario)


def test_the_simulation_finds_transactions_that_do_not_end_and_leaders_that_do_not_serve() -> None:
    async def scenario(world: World) -> None:
        watch = ShardWatch(world.cluster)
        producer = await world.init()
        await world.add(producer)
        with pytest.raises(Broken, match="stuck"):
            await watch.at_end()
        await world.end(producer, 5)
        await watch.at_end()
        broker = world.cluster[world.coordinator].broker
        assert broker is not None
        (shard,) = broker.transactions.runtime
        shard.follow(shard.epoch)
        with pytest.raises(Broken, match="stuck"):
            await watch.at_end()

    on_cluster(scenario)
