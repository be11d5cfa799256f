"""An unexpected exception in each background task: what fails and what keeps working."""

import asyncio
import errno
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from suwi.client.connection import ConnectionLost, PeerConnection
from suwi.controller.broker_lifecycle import BrokerLifecycle
from suwi.env.tasks import OnFailure, Tasks, Work
from suwi.model.ids import TopicPartition
from suwi.replica.partition import Partition
from suwi.sim import Simulation
from suwi.sim.cluster import SimCluster
from suwi.sim.incarnation import current
from suwi.wire.versions import ApiKey
from tests.broker.simulated import produce
from tests.broker.test_simulated_cluster import create, image, until

STOPS_THE_BROKER = [
    "broker registration",
    "controller election",
    "high watermark checkpoint",
    "log flush",
    "log start offset checkpoint",
    "metadata follower",
    "recovery point checkpoint",
]
GOES_ON = [
    "damaged replicas",
    "failure detector",
    "in-sync set proposals",
    "isr shrink",
    "log cleaner",
    "log retention",
    "preferred leader election",
    "problem watch",
    "election after power loss",
    "producer expiry",
    "replica fetcher",
]
ALONE = [
    "deferred deletion",
    "log preparation",
    "log sync",
    "loop lag",
    "loss reports",
    "retry of failed partitions",
]
"""Started only when they are needed; the simulation makes most of them fail."""


class Bug(Exception):
    pass


class TaskFaults:
    """Makes a task of one broker raise, by its name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started: dict[str, set[str]] = {}
        self._armed: set[tuple[str, str]] = set()
        self._bombs: dict[tuple[str, str], list[asyncio.Event]] = {}
        supervise = Tasks._supervise

        async def with_bomb(
            tasks: Tasks, work: Work, name: str, on_failure: OnFailure | Callable[..., None]
        ) -> None:
            incarnation = current.get()
            host = incarnation.host if incarnation is not None else ""
            self.started.setdefault(name, set()).add(host)

            async def doomed() -> None:
                bomb = asyncio.Event()
                self._bombs.setdefault((host, name), []).append(bomb)
                if (host, name) in self._armed:
                    bomb.set()
                running, waiting = asyncio.create_task(work()), asyncio.create_task(bomb.wait())
                try:
                    await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
                    if bomb.is_set():
                        raise Bug(name)
                    await running
                finally:
                    for task in (running, waiting):
                        task.cancel()
                    await asyncio.gather(running, waiting, return_exceptions=True)

            await supervise(tasks, doomed, name, on_failure)

        monkeypatch.setattr(Tasks, "_supervise", with_bomb)

    def explode(self, host: str, name: str) -> None:
        for bomb in self._bombs.get((host, name), []):
            bomb.set()


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> TaskFaults:
    return TaskFaults(monkeypatch)


def run(scenario: Callable[[SimCluster], Awaitable[None]], seed: int = 1) -> None:
    simulation = Simulation(seed)

    async def main() -> None:
        cluster = SimCluster(
            simulation,
            settings={"default.replication.factor": "3", "replica.lag.time.max.ms": "2000"},
        )
        await cluster.start()
        client = await PeerConnection.open("b1", 9092)
        await create(client, assignments=[[1, 2, 3], [2, 3, 1], [3, 1, 2]])
        await all_in_sync(cluster)
        await scenario(cluster)

    simulation.run(main())


async def all_in_sync(cluster: SimCluster) -> None:
    def look() -> bool:
        return all(
            node.is_running
            and len(image(cluster, node.id).unfenced_brokers) == 3
            and all(
                len(state.isr) == 3 and state.leader in image(cluster, node.id).unfenced_brokers
                for state in image(cluster, node.id).topics["orders"].partitions
            )
            for node in cluster.nodes.values()
        )

    await until(look)


async def writable(cluster: SimCluster) -> None:
    """A record is acknowledged by all in-sync replicas, whichever broker leads by now."""
    async with cluster.client("writer") as client:
        link, _ = await client.leader(TopicPartition("orders", 0))  # type: ignore[arg-type]
        assert link is not None
    async with asyncio.timeout(60):
        while True:
            for node in cluster.nodes.values():
                try:
                    connection = await PeerConnection.open(node.name, 9092)
                    answer = await produce(connection, "orders", [b"x"])
                    connection.abort()
                    if answer.error_code == 0:
                        return
                except (ConnectionLost, OSError):
                    pass
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("name", STOPS_THE_BROKER)
def test_a_broker_stops_and_is_replaced_when_a_broker_wide_task_fails(
    faults: TaskFaults, name: str
) -> None:
    async def scenario(cluster: SimCluster) -> None:
        victim = cluster[2]
        faults.explode("b2", name)
        await until(lambda: not victim.is_running)
        assert [failure.task for failure in victim.failures] == [name]
        await writable(cluster)
        await victim.start()
        await all_in_sync(cluster)

    run(scenario)


@pytest.mark.parametrize("name", GOES_ON)
def test_a_restartable_task_is_restarted_after_a_failure(faults: TaskFaults, name: str) -> None:
    async def scenario(cluster: SimCluster) -> None:
        # Create work for every kind of task: a replica leaves the ISR and returns.
        cluster[3].kill()
        await until(lambda: 3 not in image(cluster, 1).unfenced_brokers)
        await writable(cluster)
        await cluster[3].start()
        await all_in_sync(cluster)
        hosts = sorted(faults.started[name])
        assert hosts
        for host in hosts:
            faults.explode(host, name)
        await asyncio.sleep(30)
        for node in cluster.nodes.values():
            assert node.is_running
            assert not node.failures
        assert any(
            node.broker is not None and node.broker.tasks.failures[name]
            for node in cluster.nodes.values()
        )
        cluster[3].kill()
        await until(lambda: 3 not in image(cluster, 1).unfenced_brokers)
        await writable(cluster)
        await cluster[3].start()
        await all_in_sync(cluster)

    run(scenario)


def test_every_task_of_a_broker_is_tested_here(faults: TaskFaults) -> None:
    async def scenario(cluster: SimCluster) -> None:
        cluster[3].kill()
        await until(lambda: 3 not in image(cluster, 1).unfenced_brokers)
        await writable(cluster)
        await cluster[3].start()
        await all_in_sync(cluster)

    run(scenario)
    assert set(faults.started) <= {*STOPS_THE_BROKER, *GOES_ON, *ALONE}


def test_a_broker_that_fails_during_start_raises_the_reason(faults: TaskFaults) -> None:
    async def scenario(cluster: SimCluster) -> None:
        await cluster[2].stop()
        faults._armed.add(("b2", "metadata follower"))
        with pytest.raises(Exception, match="metadata follower failed"):
            await cluster[2].start()
        faults._armed.clear()
        await cluster[2].start()
        await all_in_sync(cluster)

    run(scenario)


def test_a_failed_rename_at_a_deletion_takes_the_log_directory_offline() -> None:
    async def scenario(cluster: SimCluster) -> None:
        client = await PeerConnection.open("b1", 9092)
        await create(client, name="doomed", assignments=[[2]])
        leader = await PeerConnection.open("b2", 9092)
        assert (await produce(leader, "doomed", [b"x"])).error_code == 0
        cluster[2].machine.disk.faults.fail("rename", errno.EIO, path="*doomed-0*")
        await delete(client, "doomed")
        await create(client, name="later", assignments=[[1, 3]])
        await until(lambda: "later" in image(cluster, 2).topics)
        assert "doomed" not in image(cluster, 2).topics
        broker = cluster[2].broker
        assert broker is not None
        assert broker.directories.usable() == []
        await writable(cluster)

    run(scenario)


class FailingElections:
    """Elections of these partitions fail with a bug."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *failing: tuple[str, int]) -> None:
        self.failing = set(failing)
        self._lead = Partition.make_leader
        elections = self

        def make_leader(partition: Partition, *given: Any) -> None:
            if partition.partition in elections.failing:
                raise Bug
            elections._lead(partition, *given)

        monkeypatch.setattr(Partition, "make_leader", make_leader)


def test_a_failed_partition_does_not_affect_the_others_and_is_retried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    elections = FailingElections(monkeypatch, ("bad", 0))

    async def scenario(cluster: SimCluster) -> None:
        client = await PeerConnection.open("b1", 9092)
        await create(client, name="bad", assignments=[[1], [1]])
        broker = cluster[1].broker
        assert broker is not None
        assert list(broker.replicas.failed) == [("bad", 0)]
        assert (await produce(client, "bad", [b"x"])).error_code == 56  # KAFKA_STORAGE_ERROR
        assert broker.replicas.leader_of("bad", 1).is_leader
        elections.failing.clear()
        await until(lambda: not broker.replicas.failed)
        assert (await produce(client, "bad", [b"x"])).error_code == 0

    run(scenario)


def test_a_partition_that_fails_while_its_broker_is_registered_is_retried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No image follows that would notice it."""
    elections = FailingElections(monkeypatch)

    async def scenario(cluster: SimCluster) -> None:
        client = await PeerConnection.open("b1", 9092)
        await create(client, name="bad", assignments=[[1]])
        broker = cluster[1].broker
        assert broker is not None
        elections.failing.add(("bad", 0))
        await broker.replicas.set_broker_epoch(broker.replicas.broker_epoch)
        assert list(broker.replicas.failed) == [("bad", 0)]
        elections.failing.clear()
        await until(lambda: not broker.replicas.failed)
        assert (await produce(client, "bad", [b"x"])).error_code == 0

    run(scenario)


def test_a_broker_with_a_failed_partition_stops_cleanly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    FailingElections(monkeypatch, ("bad", 0))

    async def scenario(cluster: SimCluster) -> None:
        client = await PeerConnection.open("b1", 9092)
        await create(client, name="bad", assignments=[[2]])
        broker = cluster[2].broker
        assert broker is not None
        await until(lambda: bool(broker.replicas.failed))
        assert await cluster[2].machine.spawn(broker.stop())
        retrying = broker.replicas._retrying
        assert retrying is not None
        assert retrying.done()

    run(scenario)


def test_a_partition_that_fails_while_its_broker_stops_leaves_no_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The session ends in that moment."""
    stop = BrokerLifecycle.stop

    def fails(_partition: Partition) -> None:
        raise Bug

    async def lose_session_and_stop(lifecycle: BrokerLifecycle) -> None:
        await lifecycle._clear_epoch()
        await stop(lifecycle)

    async def scenario(cluster: SimCluster) -> None:
        client = await PeerConnection.open("b1", 9092)
        await create(client, name="bad", assignments=[[2]])
        broker = cluster[2].broker
        assert broker is not None
        monkeypatch.setattr(Partition, "stop_leading", fails)
        monkeypatch.setattr(BrokerLifecycle, "stop", lose_session_and_stop)
        await cluster[2].machine.spawn(broker.stop())
        assert broker.replicas.failed
        retrying = broker.replicas._retrying
        assert retrying is not None
        assert retrying.done()

    run(scenario)


def test_a_fetcher_outlives_more_failures_than_a_stack_has_frames() -> None:
    async def scenario(cluster: SimCluster) -> None:
        cluster.simulation.network.cut("b3", "b1")
        cluster.simulation.network.cut("b3", "b2")
        await asyncio.sleep(1100)
        cluster.simulation.network.heal()
        await all_in_sync(cluster)

    run(scenario)


async def delete(client: PeerConnection, topic: str) -> None:
    fields = {"topics": [{"name": topic, "topic_id": None}], "timeout": 30_000}
    answer = await client.call(ApiKey.DELETE_TOPICS, 6, fields)
    assert answer.responses[0].error_code == 0, answer
