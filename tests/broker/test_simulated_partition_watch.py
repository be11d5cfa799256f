"""What a client is told that watches a partition: its brokers note what they do while it does."""

import asyncio
from contextlib import suppress

import pytest

from suwi.client.cluster import Cluster
from suwi.client.connection import PeerConnection
from suwi.client.own_apis import PartitionWatch, Watched
from suwi.client.producer import Producer
from suwi.client.versioned_connection import VersionedConnection
from suwi.lab.events import Event, Replicas, Truncation
from suwi.lab.live_recorder import LiveRecorder
from suwi.model.errors import BrokerError, ThrottlingQuotaExceeded
from suwi.model.ids import NodeId, PartitionIndex, TopicPartition
from suwi.replica.partition_watch import WATCHES_MAX
from suwi.sim import ManualClock
from suwi.sim.cluster import PORT, SimCluster
from tests.broker.simulated import produce
from tests.broker.test_simulated_cluster import SEEDS, create, run, state, until
from tests.broker.test_simulated_losses import create_orders, lead
from tests.broker.test_simulated_losses import write as produce_to

ORDERS = TopicPartition("orders", PartitionIndex(0))


class Watcher:
    """As the console: asks all brokers ten times a second."""

    def __init__(self, client: Cluster, partition: TopicPartition = ORDERS) -> None:
        self._client = client
        self._recorder = LiveRecorder(str(partition))
        self._watches = {NodeId(node): PartitionWatch(partition) for node in (1, 2, 3)}
        self._links: dict[NodeId, VersionedConnection] = {}
        self.events: list[Event] = []
        self.sum = Replicas()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            told = {int(node): await self._ask(node) for node in self._watches}
            for event in self._recorder.add(loop.time(), told):
                self.events.append(event)
                self.sum.add(event)
            await asyncio.sleep(0.1)

    async def _ask(self, node: NodeId) -> Watched | None:
        try:
            async with asyncio.timeout(1):
                if node not in self._links or not self._links[node].is_open:
                    self._links[node] = await self._client.open_link(node)
                return await self._watches[node].read(self._links[node])
        except (OSError, BrokerError):
            with suppress(OSError):
                await self._client.refresh([])
            return None

    def kinds(self) -> set[str]:
        return {event.kind for event in self.events}


def replica(cluster: SimCluster, node: int) -> tuple[object, ...]:
    """What a broker has, as a recording says it."""
    broker = cluster[node].broker
    assert broker is not None
    partition = broker.replicas.replica_of("orders", 0)
    log = partition.log
    return (
        log.end_offset,
        partition.high_watermark,
        tuple(map(tuple, log.epochs.entries())),
        partition.is_leader,
    )


def recorded(watcher: Watcher, node: int) -> tuple[object, ...]:
    view = watcher.sum.replicas["orders-0", node]
    return view.end, view.high_watermark, view.epochs, view.leads


async def write(client: Cluster, count: int) -> None:
    async with Producer(client, ManualClock()) as producer:
        for _ in range(count):
            await (await producer.send("orders", b"x", partition=0))


def test_fetches_and_produces_are_noted_while_somebody_watches() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client("test") as client:
            await create(client, assignments=[[1, 2, 3], [1, 2, 3]])
            await until(lambda: len(state(cluster).isr) == 3)
            await write(client, 3)
            watcher = Watcher(client)
            watching = asyncio.ensure_future(watcher.run())
            await asyncio.sleep(1)
            assert watcher.kinds().isdisjoint({"send", "send-result"})
            await write(client, 3)
            await asyncio.sleep(1)
            watching.cancel()
            sends = [e for e in watcher.events if e.kind == "send-result"]
            assert {e.broker for e in sends} == {1}
            assert sends[-1].offset == 5
            fetches = [e for e in watcher.events if e.kind == "fetch"]
            assert {e.broker for e in fetches} == {2, 3}
            assert fetches[-1].offset == 6
            assert [replica(cluster, n) for n in (1, 2, 3)] == [
                recorded(watcher, n) for n in (1, 2, 3)
            ]
            brokers = [cluster[n].broker for n in (1, 2, 3)]
            await asyncio.sleep(6)
            for broker in brokers:
                assert broker is not None
                assert all(partition.watched_by is None for partition in broker.replicas)

    run(scenario)


@pytest.mark.parametrize("seed", SEEDS)
def test_after_a_leader_was_killed_the_events_add_up_to_what_the_brokers_have(seed: int) -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client("test") as client, cluster.client("writer") as writer:
            await create(client, assignments=[[1, 2, 3]])
            await until(lambda: len(state(cluster).isr) == 3)
            watcher = Watcher(client)
            watching = asyncio.ensure_future(watcher.run())
            writing = asyncio.ensure_future(write(writer, 200))
            await asyncio.sleep(1)
            cluster[1].kill()
            await until(lambda: state(cluster, seen_by=2).leader in (2, 3))
            await asyncio.sleep(1)
            await cluster[1].start()
            await writing
            await until(lambda: len(state(cluster, seen_by=2).isr) == 3)
            await asyncio.sleep(2)
            watching.cancel()
            for node in (1, 2, 3):
                assert recorded(watcher, node) == replica(cluster, node)
            now = state(cluster, seen_by=2)
            assert watcher.sum.leaders["orders-0"] == (now.leader, now.leader_epoch)
            assert set(watcher.sum.in_sync["orders-0"]) == set(now.isr)
            epochs = [e.epoch for e in watcher.events if e.kind == "election" and e.partition]
            assert epochs == sorted(epochs, key=lambda epoch: epoch or 0)
            assert {"fault", "send-result", "fetch-answer", "in-sync"} <= watcher.kinds()
            times = [event.at_s for event in watcher.events]
            assert times == sorted(times)

    run(scenario, seed)


def test_a_truncation_is_kept_although_nobody_watched() -> None:
    async def scenario(cluster: SimCluster) -> None:
        await create_orders(cluster, [1, 2], min_insync_replicas="1")
        assert await produce_to(cluster, 1, [b"a"]) == 0
        cluster.simulation.network.partition(["b1"], ["b2"])
        assert await produce_to(cluster, 1, [b"b", b"c"], acks=1) == 0
        cluster[1].kill()
        await lead(cluster, 2)
        cluster.simulation.network.heal()
        assert await produce_to(cluster, 2, [b"d"]) == 0
        await cluster[1].start()
        await until(lambda: set(state(cluster, seen_by=2).isr) == {1, 2})
        async with cluster.client("test") as client:
            watcher = Watcher(client)
            await client.refresh(["orders"])
            watching = asyncio.ensure_future(watcher.run())
            await asyncio.sleep(1)
            watching.cancel()
        (truncation,) = [e for e in watcher.events if isinstance(e, Truncation)]
        assert (truncation.broker, truncation.offset) == (1, 1)
        assert truncation.removed == ((1, 2, 0),)
        assert recorded(watcher, 1) == replica(cluster, 1)
        assert recorded(watcher, 1)[0] == 2

    run(scenario)


def test_a_producer_that_disconnects_while_it_waits_is_not_shown_as_waiting() -> None:
    async def scenario(cluster: SimCluster) -> None:
        await create_orders(cluster, [1, 2], min_insync_replicas="1")
        async with cluster.client("test") as client:
            await client.refresh(["orders"])
            link = await client.open_link(NodeId(1))
            watch = PartitionWatch(ORDERS)
            await watch.read(link)
            cluster.simulation.network.partition(["b1"], ["b2"])
            producing = await PeerConnection.open("b1", PORT, client_id="shop")
            waiting = asyncio.ensure_future(produce(producing, "orders", [b"x"]))
            await asyncio.sleep(0.5)
            told = await watch.read(link)
            assert [each["client"] for each in told.waiting] == ["shop"]
            producing.abort()
            await asyncio.gather(waiting, return_exceptions=True)
            await asyncio.sleep(0.5)
            told = await watch.read(link)
            assert told.waiting == []
            results = [each for each in told.events if each["kind"] == "send-result"]
            assert [(each["client"], each["error"]) for each in results] == [
                ("shop", "NETWORK_EXCEPTION")
            ]
            link.abort()

    run(scenario)


def test_a_broker_refuses_one_watch_too_many() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client("test") as client:
            await create(client, assignments=[[1]] * (WATCHES_MAX + 1))
            await client.refresh(["orders"])
            link = await client.open_link(NodeId(1))
            await until(lambda: state(cluster, WATCHES_MAX).leader == 1)
            for index in range(WATCHES_MAX):
                tp = TopicPartition("orders", PartitionIndex(index))
                await PartitionWatch(tp).read(link)
            last = PartitionWatch(TopicPartition("orders", PartitionIndex(WATCHES_MAX)))
            with pytest.raises(ThrottlingQuotaExceeded):
                await last.read(link)
            await asyncio.sleep(6)
            assert (await last.read(link)).state is not None
            link.abort()

    run(scenario)


def test_a_broker_without_a_replica_tells_what_it_has_seen() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client("test") as client:
            await create(client, assignments=[[1, 2]])
            await until(lambda: len(state(cluster, seen_by=3).isr) == 2)
            cluster[1].kill()
            await until(lambda: state(cluster, seen_by=3).leader == 2)
            await client.refresh(["orders"])
            link = await client.open_link(NodeId(3))
            told = await PartitionWatch(ORDERS).read(link)
            assert told.state is None
            assert told.history[-1]["leader"] == 2
            unknown = TopicPartition("nothing", PartitionIndex(0))
            assert (await PartitionWatch(unknown).read(link)).history == []
            link.abort()

    run(scenario)
