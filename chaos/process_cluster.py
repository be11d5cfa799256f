"""A cluster of processes with the interface of the test kit's cluster, for the runs with faults."""

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from suwi.client.addresses import parse_addresses
from suwi.client.admin import Admin
from suwi.client.cluster import Cluster
from suwi.client.cluster_status import describe_events
from suwi.client.replicas import describe_replicas
from suwi.env import local_env
from suwi.local_cluster.cluster import ClusterError, LocalCluster
from suwi.local_cluster.layout import ZOOKEEPER, Layout, broker_name, zookeeper_name
from suwi.local_cluster.process import ProcessState
from suwi.testing import NotInTime

BROKERS, ZOOKEEPERS = 3, 3
_LEVEL = re.compile(r"^\S+ (warning|error|critical) ", re.MULTILINE)

Answer = TypeVar("Answer")


class Replica(NamedTuple):
    high_watermark: int
    log_end: int


class ProcessCluster:
    def __init__(
        self,
        directory: Path,
        port: int,
        say: Callable[[str], None],
        *,
        has_links: bool = True,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.local = LocalCluster(str(directory), say)
        self._layout = Layout(BROKERS, ZOOKEEPERS, "", port, has_links, dict(settings or {}))

    def __enter__(self) -> "ProcessCluster":
        try:
            self.local.start(self._layout)
        except BaseException:
            with contextlib.suppress(ClusterError):
                self.local.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.local.stop()

    @property
    def brokers(self) -> tuple[int, ...]:
        return tuple(self.local.layout.broker_ids)

    @property
    def bootstrap_servers(self) -> str:
        return self.local.bootstrap_servers

    def files(self, broker: int) -> Path:
        return Path(self.local.data_directory(broker))

    def create_topic(
        self, name: str, partitions: int, *, replication_factor: int, configs: Mapping[str, object]
    ) -> None:
        async def create(cluster: Cluster) -> None:
            await Admin(cluster).create_topic(
                name,
                partitions=partitions,
                replication_factor=replication_factor,
                configs={key: str(value) for key, value in configs.items()},
            )

        self._ask(create)
        self.wait_until_healthy(60)

    def replicas(self, topic: str, partition: int) -> dict[int, Replica]:
        async def describe(cluster: Cluster) -> dict[int, Replica]:
            described = await describe_replicas(cluster, [await cluster.topic(topic)])
            states = described[partition].states.items()
            return {int(n): Replica(s["high_watermark"], s["log_end"]) for n, s in states}

        return self._ask(describe)

    def events(self) -> list[dict[str, Any]]:
        return self._ask(describe_events)

    def controller(self) -> int | None:
        views = [view for view in self.local.views().values() if view is not None]
        return views[0].controller if views else None

    def wait_leader(self, topic: str, partition: int, *, timeout_s: float) -> int:
        name, leader = f"{topic}-{partition}", None

        def is_led() -> bool:
            nonlocal leader
            views = [view for view in self.local.views().values() if view is not None]
            leader = views[0].leaders.get(name) if views else None
            return leader is not None

        self._wait(lambda: self.local.wait(is_led, timeout_s, f"{name} has no leader"))
        assert leader is not None
        return leader

    def wait_until_healthy(self, timeout_s: float) -> None:
        self._wait(lambda: self.local.wait_in_sync(timeout_s))

    def log_levels(self) -> Counter[str]:
        """Lines of the brokers' logs by level, and the tracebacks in them."""
        found: Counter[str] = Counter()
        for broker in self.brokers:
            log = Path(self.local.log_path(broker_name(broker))).read_text(errors="replace")
            found.update(level.upper() for level in _LEVEL.findall(log))
            found["tracebacks"] += log.count("Traceback (most recent call last)")
        return +found

    # -- faults ----------------------------------------------------------------------------------

    def kill(self, broker: int) -> None:
        self.local.kill(broker_name(broker))

    def restart(self, broker: int) -> None:
        self.local.start_processes([broker_name(broker)])

    def kill_controller(self, _broker: int) -> None:
        controller = self.controller()
        if controller is None:
            raise NotInTime("there is no controller to be killed")
        self.kill(controller)

    def restart_all(self, _broker: int) -> None:
        """Start what was killed."""
        layout = self.local.layout
        self.local.start_processes(map(zookeeper_name, layout.servers()))
        self.local.start_processes(map(broker_name, layout.broker_ids))

    def pause(self, broker: int) -> None:
        self.local.pause(broker_name(broker))

    def resume(self, broker: int) -> None:
        self.local.resume(broker_name(broker))

    def isolate(self, broker: int) -> None:
        self.local.isolate(broker)

    def silence(self, broker: int) -> None:
        """What it sends to other brokers and to ZooKeeper is lost; it still receives."""
        others = [str(other) for other in self.brokers if other != broker]
        self.local.cut([(str(broker), to) for to in [*others, ZOOKEEPER]], one_way=True)

    def cut_from_zookeeper(self, broker: int) -> None:
        self.local.cut([(str(broker), ZOOKEEPER)])

    def cut_from_one_broker(self, broker: int) -> None:
        other = broker % len(self.brokers) + 1
        self.local.cut([(str(broker), str(other))])

    def heal(self, _broker: int) -> None:
        self.local.heal()

    def kill_zookeeper(self, modes: tuple[str, ...]) -> None:
        """Kill one server of each of these modes, `leader` or `follower`."""
        servers, _ = self.local.status()
        for mode in modes:
            names = [s.name for s in servers if s.role == mode]
            running = [n for n in names if self.local.process_state(n) is ProcessState.RUNNING]
            if running:
                self.local.kill(running[0])

    def roll(self, _broker: int) -> None:
        self.local.roll()

    # -- calls -----------------------------------------------------------------------------------

    def _ask(self, work: Callable[[Cluster], Awaitable[Answer]]) -> Answer:
        async def run() -> Answer:
            addresses = parse_addresses(self.bootstrap_servers)
            async with Cluster(addresses, random=local_env().random) as cluster:
                return await work(cluster)

        return asyncio.run(run())

    def _wait(self, wait: Callable[[], None]) -> None:
        try:
            wait()
        except ClusterError as error:
            raise NotInTime(str(error)) from None
