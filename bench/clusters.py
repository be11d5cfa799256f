"""Clusters under comparison: broker processes of Suwi on ZooKeeper, of Apache Kafka on KRaft.

Both have their default settings, except where the next kill has to hit leaders: there a restarted
broker leads its share again after a second (`leader.imbalance.check.interval.seconds`). Ports are
below those that the system gives to clients, which could take one of a killed broker.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from bench.clients.java import JavaClient, java_client
from bench.measure import Figure
from bench.servers import KAFKA, SUWI, Server, temporary_directory
from compat.kafka import KafkaServer
from suwi.client.addresses import Address
from suwi.local_cluster.cluster import ClusterError, LocalCluster
from suwi.local_cluster.layout import Layout, broker_name
from suwi.local_cluster.process import ProcessState
from suwi.local_cluster.view import View, views
from suwi.local_cluster.zookeeper import why_unavailable

HOST = "127.0.0.1"
_SUWI_PORT, _KAFKA_PORT, _KAFKA_CONTROLLER_PORT = 23092, 22092, 22192
_PATIENCE_S = 300.0
_STOP_S = 30.0
_LOOK_EVERY_S = 0.05
BALANCING = {"leader.imbalance.check.interval.seconds": "1"}
_SESSION = {"zookeeper.session.timeout.ms": "6000"}
"""A local cluster has a shorter one by default than a broker."""


class ProcessCluster(ABC):
    """Broker processes that can be killed and started again, named by their ids."""

    name: str
    brokers: tuple[int, ...]

    @abstractmethod
    def address(self, broker: int) -> str: ...
    @abstractmethod
    def pid(self, broker: int) -> int: ...
    @abstractmethod
    def stop(self, broker: int) -> None: ...
    @abstractmethod
    def restart(self, broker: int) -> None:
        """Start a broker that was killed or stopped, and wait until it serves."""

    @abstractmethod
    def stop_everything(self) -> None: ...
    @abstractmethod
    def start_everything(self) -> None:
        """It may return before all brokers serve."""

    def end(self) -> None:
        """Nobody needs its data any more."""
        self.stop_everything()

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(map(self.address, self.brokers))

    @property
    def server(self) -> Server:
        """For clients; as long as no broker is restarted."""
        first, *more = map(self.pid, self.brokers)
        return Server(self.name, self.bootstrap_servers, first, tuple(more))

    def kill(self, broker: int) -> None:
        """Returns at once: the process is gone a little later."""
        os.kill(self.pid(broker), signal.SIGKILL)

    def create_topic(
        self,
        name: str,
        partitions: int,
        replication_factor: int = 3,
        *,
        replicas: Sequence[int] | None = None,
    ) -> None:
        """With `replicas`: all partitions on these brokers, led by the first."""
        config = {"min.insync.replicas": str(max(1, replication_factor - 1))}
        if replicas is None:
            topic = NewTopic(name, partitions, replication_factor, config=config)
        else:
            placed = [list(replicas)] * partitions
            topic = NewTopic(name, partitions, replica_assignment=placed, config=config)
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 3})
        for created in admin.create_topics([topic], operation_timeout=_PATIENCE_S).values():
            created.result(_PATIENCE_S)

    def views(self, brokers: Sequence[int] | None = None) -> dict[int, View | None]:
        """What these brokers say about the cluster."""
        return views({b: _address(self.address(b)) for b in brokers or self.brokers})

    def wait_until_healthy(self, timeout_s: float = _PATIENCE_S) -> None:
        """Until every broker sees all replicas in sync."""
        wanted = frozenset(self.brokers)

        def are_in_sync() -> bool:
            self._look_after()
            found = self.views().values()
            return all(view is not None and view.is_in_sync(wanted) for view in found)

        wait_for(are_in_sync, "the replicas are not in sync", timeout_s)

    def _look_after(self) -> None:  # noqa: B027 - most need nothing
        """Again and again while all brokers have to become healthy."""

    def wait_until_balanced(self, topic: str) -> None:
        """Until all replicas are in sync and each broker leads some of this topic."""
        self.wait_until_healthy()

        def is_balanced() -> bool:
            view = self.views(self.brokers[:1])[self.brokers[0]]
            led = view.leaders.items() if view is not None else ()
            leaders = {b for name, b in led if name.rpartition("-")[0] == topic}
            return leaders == set(self.brokers)

        wait_for(is_balanced, "the leaders are not balanced")

    def wait_leader(self, topic: str, partition: int) -> int:
        found: list[int] = []

        def is_led() -> bool:
            seen = [view for view in self.views().values() if view is not None]
            found[:] = [
                v.leaders[name] for v in seen if (name := f"{topic}-{partition}") in v.leaders
            ]
            return bool(found)

        wait_for(is_led, f"{topic}-{partition} has no leader")
        return found[0]

    def controller(self) -> int:
        found: list[int] = []

        def is_there() -> bool:
            seen = [view for view in self.views().values() if view is not None]
            found[:] = [view.controller for view in seen if view.controller is not None]
            return bool(found)

        wait_for(is_there, "there is no controller")
        return found[0]

    def roll(self) -> None:
        """Restart one broker after another, each when all replicas are in sync."""
        for broker in self.brokers:
            self.stop(broker)
            self.restart(broker)
            self.wait_until_healthy()


class SuwiCluster(ProcessCluster):
    """Three processes, and three ZooKeeper servers."""

    name = SUWI

    def __init__(self, directory: Path, settings: dict[str, str]) -> None:
        self.local = LocalCluster(str(directory))
        # Without proxies, as brokers of a real cluster reach each other.
        self._layout = Layout(
            3, 3, "", _SUWI_PORT, has_links=False, settings={**_SESSION, **settings}
        )
        self.brokers = tuple(self._layout.broker_ids)

    def address(self, broker: int) -> str:
        return f"{HOST}:{self._layout.client_port(broker)}"

    def pid(self, broker: int) -> int:
        return self.local.state.processes[broker_name(broker)].pid

    def stop(self, broker: int) -> None:
        self.local.stop_processes([broker_name(broker)])

    def restart(self, broker: int) -> None:
        name = broker_name(broker)
        wait_for(lambda: self.local.process_state(name) is ProcessState.DEAD, f"{name} runs")
        self.local.start_processes([name])

    def stop_everything(self) -> None:
        with contextlib.suppress(ClusterError):  # it was never started
            self.local.stop()

    def start_everything(self) -> None:
        self.local.start(self._layout)


class KafkaCluster(ProcessCluster):
    """Three processes, each a broker and a controller. `java` asks which controller is active."""

    name = KAFKA
    brokers = (1, 2, 3)

    def __init__(self, directory: Path, java: JavaClient, settings: dict[str, str]) -> None:
        self._java = java
        voters = ",".join(f"{n}@{HOST}:{_KAFKA_CONTROLLER_PORT + n}" for n in self.brokers)
        self._servers = {
            n: KafkaServer(
                directory / f"broker-{n}",
                port=_KAFKA_PORT + n,
                **{key.replace(".", "_"): value for key, value in settings.items()},
                node_id=str(n),
                controller_quorum_voters=voters,
                listeners=f"PLAINTEXT://{HOST}:{_KAFKA_PORT + n},"
                f"CONTROLLER://{HOST}:{_KAFKA_CONTROLLER_PORT + n}",
                default_replication_factor="3",
                offsets_topic_replication_factor="3",
                transaction_state_log_replication_factor="3",
                transaction_state_log_min_isr="2",
            )
            for n in self.brokers
        }
        for server in self._servers.values():
            server.format()

    def address(self, broker: int) -> str:
        return self._servers[broker].address

    def pid(self, broker: int) -> int:
        return self._servers[broker].pid

    def stop(self, broker: int) -> None:
        self._servers[broker].stop()

    def restart(self, broker: int) -> None:
        self._servers[broker].kill()  # or wait for the end of one that was killed
        self._servers[broker].start()

    def _look_after(self) -> None:
        """On a busy machine one of three that start at the same time sometimes gives up."""
        for broker, server in self._servers.items():
            if server.has_ended:
                print(f"Apache Kafka's process {broker} has ended: once more", file=sys.stderr)
                server.launch()

    def stop_everything(self) -> None:
        """All at a time; one that is left without a quorum of controllers is killed."""
        for server in self._servers.values():
            server.terminate()
        for server in self._servers.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.stop(_STOP_S)
        self.end()

    def end(self) -> None:
        for server in self._servers.values():
            server.kill()

    def start_everything(self) -> None:
        for server in self._servers.values():
            server.launch()

    def controller(self) -> int:
        return self._java.quorum_leader(self.bootstrap_servers)


@contextmanager
def suwi_cluster(settings: dict[str, str] = BALANCING) -> Iterator[SuwiCluster]:
    with temporary_directory() as directory:
        cluster = SuwiCluster(directory, settings)
        with running(cluster):
            yield cluster


@contextmanager
def kafka_cluster(java: JavaClient, settings: dict[str, str] = BALANCING) -> Iterator[KafkaCluster]:
    with temporary_directory() as directory:
        cluster = KafkaCluster(directory, java, settings)
        with running(cluster):
            yield cluster


def on_each(
    brokers: tuple[str, ...],
    measure: Callable[[ProcessCluster], list[Figure]],
    settings: dict[str, str] = BALANCING,
) -> list[Figure]:
    """Measure three processes of each kind, one kind after another, not beside each other.

    What fails with Apache Kafka is shown, and does not cost the figures of Suwi.
    """
    figures: list[Figure] = []
    if can_run_suwi():
        with suwi_cluster(settings=settings) as suwi:
            figures += measure(suwi)
    if KAFKA in brokers:
        try:
            with java_client() as java, kafka_cluster(java, settings) as kafka:
                figures += measure(kafka)
        except Exception:
            traceback.print_exc()
    return figures


def can_run_suwi() -> bool:
    missing = why_unavailable()
    if missing is not None:
        print(f"Suwi's processes are not measured: {missing}", file=sys.stderr)
    return missing is None


@contextmanager
def running(cluster: ProcessCluster) -> Iterator[None]:
    """From when it is healthy."""
    try:
        cluster.start_everything()
        cluster.wait_until_healthy()
        yield
    finally:
        cluster.end()


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return Address(host, int(port))


def wait_for(is_done: Callable[[], bool], why_not: str, limit_s: float = _PATIENCE_S) -> None:
    until = time.monotonic() + limit_s
    while True:
        looked = time.monotonic()
        if is_done():
            return
        now = time.monotonic()
        if now > until:
            raise RuntimeError(f"{why_not} after {limit_s:.0f} s")
        # With many partitions a look takes long, and must not take the brokers' cores.
        time.sleep(max(_LOOK_EVERY_S, now - looked))
