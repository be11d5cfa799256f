"""A cluster of processes with the interface of the test kit's cluster, for the runs with faults."""

import asyncio
import contextlib
import os
import re
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

from chaos import disks, hosts
from chaos.second_process import refusal
from chaos.stepped_clock import step
from suwi.client.addresses import parse_addresses
from suwi.client.admin import Admin
from suwi.client.cluster import Cluster
from suwi.client.cluster_status import describe_events
from suwi.client.replicas import describe_replicas
from suwi.env import local_env
from suwi.local_cluster.cluster import ClusterError, LocalCluster
from suwi.local_cluster.layout import (
    ZOOKEEPER,
    ClusterState,
    Layout,
    broker_name,
    zookeeper_name,
)
from suwi.local_cluster.process import ProcessState
from suwi.model.errors import NotController
from suwi.model.ids import NodeId, PartitionIndex, TopicPartition
from suwi.testing import NotInTime

BROKERS, ZOOKEEPERS = 3, 3
_LEVEL = re.compile(r"^\S+ (warning|error|critical) +(.*)", re.MULTILINE)
_NUMBER = re.compile(r"\d+")
_TRACEBACK = "Traceback (most recent call last)"
_MOVE_S = 90.0
_FAILS_S = 60.0
_HEALTHY_S = 120.0
_DAMAGED_BYTES = 16
_STEP_MS = 40 * 60_000
"""Less than an hour: a broker refuses records that are newer than that by its clock."""
_SQUAT = """
import socket, sys, time
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind((sys.argv[1], int(sys.argv[2]))); s.listen(); print("bound", flush=True); time.sleep(600)
"""

Answer = TypeVar("Answer")


class Replica(NamedTuple):
    high_watermark: int
    log_end: int


class ChaosCluster(LocalCluster):
    """Its brokers' wall clocks can be stepped."""

    serve = ("-m", "chaos.stepped_clock", "serve", "--config")


class HostedCluster(ChaosCluster):
    """Every process on a host of its own, whose packets can vanish."""

    def __init__(self, directory: Path, say: Callable[[str], None], on: hosts.Hosts) -> None:
        super().__init__(str(directory), say)
        self._hosts = on

    def launcher(self, name: str) -> list[str]:
        return self._hosts.launcher(name)

    @contextlib.contextmanager
    def changed(self) -> Iterator[ClusterState]:
        with super().changed() as state:
            yield state
            self._hosts.apply(state)


class ProcessCluster:
    """Processes in network namespaces, on disks that can fail, where this machine allows both."""

    # So that a slow or cut off follower leaves the ISR during its fault.
    settings: ClassVar = {
        "replica.lag.time.max.ms": "4000",
        "log.scrubber.io.max.bytes.per.second": "20000000",
        "log.scrubber.interval.ms": "2000",
    }

    def __init__(self, directory: Path, port: int, say: Callable[[str], None]) -> None:
        has_hosts = hosts.why_unavailable() is None
        self._layout = Layout(
            BROKERS,
            ZOOKEEPERS,
            "",
            port,
            has_links=not has_hosts,
            settings=self.settings,
            network=hosts.network(port) if has_hosts else "",
        )
        self._hosts = hosts.Hosts(self._layout) if has_hosts else None
        self.local = (
            ChaosCluster(str(directory), say)
            if self._hosts is None
            else HostedCluster(directory, say, self._hosts)
        )
        self._topic = ""
        """The first that was made."""
        self._squatter: subprocess.Popen[str] | None = None
        self._descriptors: dict[int, tuple[int, int]] = {}
        """The limits of brokers that may open no more files."""
        self._disks: dict[int, disks.Disk] = {}
        if disks.why_unavailable() is None:
            for broker in self._layout.broker_ids:
                mount = Path(self.local.data_directory(broker))
                self._disks[broker] = disks.Disk(mount.with_name("device"), mount)

    def __enter__(self) -> "ProcessCluster":
        try:
            for disk in self._disks.values():
                disk.make()
            if self._hosts is not None:
                self._hosts.make()
            self.local.start(self._layout)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ClusterError):
            self.local.stop()
        for disk in self._disks.values():
            disk.remove()
        if self._hosts is not None:
            self._hosts.remove()

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

        self._topic = self._topic or name
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

    def log_lines(self) -> tuple[Counter[str], Counter[str]]:
        """The lines of the brokers' logs by level; and the errors, those that are alike as one."""
        levels: Counter[str] = Counter()
        errors: Counter[str] = Counter()
        for broker in self.brokers:
            log = Path(self.local.log_path(broker_name(broker))).read_text(errors="replace")
            for level, line in _LEVEL.findall(log):
                levels[level.upper()] += 1
                if level != "warning":
                    errors[_NUMBER.sub("N", line.replace(self.local.directory, ""))] += 1
            errors[_TRACEBACK] += log.count(_TRACEBACK)
        return levels, +errors

    # -- faults ----------------------------------------------------------------------------------

    def kill(self, broker: int) -> None:
        self.local.kill(broker_name(broker))

    def restart(self, broker: int) -> None:
        self.local.start_processes([broker_name(broker)])

    def kill_controller(self, _broker: int) -> None:
        controller = None

        def is_elected() -> bool:  # The fault before may just have ended one.
            nonlocal controller
            controller = self.controller()
            return controller is not None

        self._wait(lambda: self.local.wait(is_elected, _HEALTHY_S, "there is no controller"))
        assert controller is not None
        self.kill(controller)

    def restart_all(self, _broker: int) -> None:
        """Start what was killed."""
        layout = self.local.layout
        self.local.start_processes(map(zookeeper_name, layout.servers()))
        self.local.start_processes(map(broker_name, layout.broker_ids))

    def lose_power(self, broker: int) -> None:
        """Of the machine: what was not synced is lost."""
        self.pause(broker)  # it must not notice that its disk has gone before
        self._disks[broker].cut_power()
        self.kill(broker)
        self._disks[broker].switch_on()

    def fill_disk(self, broker: int) -> None:
        self._disks[broker].fill()

    def free_disk(self, broker: int) -> None:
        """One that has ended because of it is started again."""
        self._disks[broker].free()
        self.restart(broker)

    def roll_over_a_full_disk(self, full: int) -> None:
        """Restart one broker after another; the disk of one is full while it stops and starts."""
        for broker in self.brokers:
            if broker == full:
                self.fill_disk(broker)
            self.local.restart(broker_name(broker))
            if broker == full:
                self.free_disk(broker)
            self.wait_until_healthy(_HEALTHY_S)

    def take_port(self, broker: int) -> None:
        """Another program has the port of a broker that is to start again: it must say so."""
        self.kill(broker)
        address = self.local.layout.client_address(broker)
        launcher = self.local.launcher(broker_name(broker))
        self._squatter = subprocess.Popen(
            [*launcher, sys.executable, "-c", _SQUAT, address.host, str(address.port)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._squatter.stdout is not None
        if not self._squatter.stdout.readline():
            raise NotInTime(f"port {address.port} of a broker that was killed is not free")
        try:
            self.restart(broker)
        except ClusterError as error:
            if str(address.port) in str(error):
                return
            raise NotInTime(f"the port is not named: {error}") from None
        raise NotInTime(f"broker {broker} serves although its port is taken")

    def free_port(self, broker: int) -> None:
        assert self._squatter is not None
        self._squatter.kill()
        self._squatter.communicate()
        self.restart(broker)

    def step_clock(self, broker: int) -> None:
        """Forward for brokers with an even number, backward for the others."""
        step(self._home(broker), _STEP_MS if broker % 2 == 0 else -_STEP_MS)

    def step_clock_back(self, broker: int) -> None:
        step(self._home(broker), 0)

    def _home(self, broker: int) -> Path:
        return Path(self.local.directory) / broker_name(broker)

    def use_up_descriptors(self, broker: int) -> None:
        """It can open no file and accept no connection."""
        pid = self.local.state.processes[broker_name(broker)].pid
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        self._descriptors[broker] = soft, hard
        used = len(os.listdir(f"/proc/{pid}/fd"))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used, hard))

    def free_descriptors(self, broker: int) -> None:
        """One that has ended because of it is started again."""
        limits = self._descriptors.pop(broker)
        if self.local.process_state(broker_name(broker)) is not ProcessState.DEAD:
            pid = self.local.state.processes[broker_name(broker)].pid
            resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        self.restart(broker)

    def damage_segment(self, broker: int) -> None:
        """Change bytes in the middle of a closed segment. Returns when the broker has noticed."""
        found = [
            segment
            for partition in sorted(self.files(broker).glob(f"{self._topic}-*"))
            if "." not in partition.name  # not one that was moved away and is to be deleted
            for segment in sorted(partition.glob("*.log"))[:-1]
            if segment.stat().st_size
        ]
        if not found:
            return
        noticed = self._times_noticed(broker, "kind=damaged-batch")
        before = noticed()
        with found[len(found) // 2].open("r+b") as segment:
            middle = os.fstat(segment.fileno()).st_size // 2
            kept = os.pread(segment.fileno(), _DAMAGED_BYTES, middle)
            os.pwrite(segment.fileno(), bytes(byte ^ 0xFF for byte in kept), middle)
        why_not = f"broker {broker} goes on with a damaged segment"
        self._wait(lambda: self.local.wait(lambda: noticed() > before, _FAILS_S, why_not))

    def fail_syncs(self, broker: int) -> None:
        """Returns when it has noticed. It must not use the disk any more until its restart."""
        noticed = self._times_noticed(broker, "kind=directory-offline")
        before = noticed()
        self._disks[broker].exhaust()
        why_not = f"broker {broker} goes on with a disk that cannot sync"
        self._wait(lambda: self.local.wait(lambda: noticed() > before, _FAILS_S, why_not))

    def _times_noticed(self, broker: int, text: str) -> Callable[[], int]:
        log = Path(self.local.log_path(broker_name(broker)))
        return lambda: log.read_text(errors="replace").count(text)

    def repair_disk(self, broker: int) -> None:
        self.lose_power(broker)
        self.restart(broker)

    def move_away_and_back(self, broker: int) -> None:
        """Remove its replicas of one topic, and begin to copy them back."""
        topic = self._topic

        def move(targets: Mapping[int, list[int]]) -> None:
            wanted = {TopicPartition(topic, PartitionIndex(p)): r for p, r in targets.items()}
            results = self._ask_controller(lambda cluster: Admin(cluster).reassign(wanted))
            errors = [error for error in results.values() if error is not None]
            if errors:
                raise NotInTime(f"a reassignment was refused: {errors[0]}")

        async def replicas(cluster: Cluster) -> dict[int, list[NodeId]]:
            partitions = (await cluster.topic(topic)).partitions
            return {int(each.index): list(each.replicas) for each in partitions}

        before = self._ask(replicas)
        move({p: [int(n) for n in nodes if n != broker] for p, nodes in before.items()})
        self._wait(lambda: self.local.wait(self._is_nothing_moved, _MOVE_S, "not moved away"))
        move({p: [int(n) for n in nodes] for p, nodes in before.items()})

    def _is_nothing_moved(self) -> bool:
        return not self._ask_controller(lambda cluster: Admin(cluster).reassignments())

    def move_and_kill(self, broker: int) -> None:
        self.move_away_and_back(broker)
        self.kill(broker)

    def start_second(self, broker: int) -> None:
        """A process with the id and the addresses of another one must refuse to start."""
        wrong = refusal(self.local, broker)
        if wrong is not None:
            raise NotInTime(wrong)

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

    def deafen(self, broker: int) -> None:
        """What other brokers and ZooKeeper send to it is lost; they still receive."""
        others = [str(other) for other in self.brokers if other != broker]
        self.local.cut([(start, str(broker)) for start in [*others, ZOOKEEPER]], one_way=True)

    def cut_from_zookeeper(self, broker: int) -> None:
        self.local.cut([(str(broker), ZOOKEEPER)])

    def silence_to_zookeeper(self, broker: int) -> None:
        """Only what it sends to ZooKeeper is lost."""
        self.local.cut([(str(broker), ZOOKEEPER)], one_way=True)

    def deafen_to_zookeeper(self, broker: int) -> None:
        """Only what ZooKeeper sends to it is lost."""
        self.local.cut([(ZOOKEEPER, str(broker))], one_way=True)

    def cut_from_one_broker(self, broker: int) -> None:
        other = broker % len(self.brokers) + 1
        self.local.cut([(str(broker), str(other))])

    def slow(self, broker: int) -> None:
        self.local.slow(broker)

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

    def pause_zookeeper(self, mode: str) -> None:
        """Freeze a server of this mode, `leader` or `follower`."""
        names: list[str] = []

        def is_found() -> bool:
            servers, _ = self.local.status()
            names[:] = [server.name for server in servers if server.role == mode]
            return bool(names)

        self._wait(lambda: self.local.wait(is_found, _FAILS_S, f"ZooKeeper has no {mode}"))
        self.local.pause(names[0])

    def resume_zookeeper(self, _broker: int) -> None:
        for name in map(zookeeper_name, self.local.layout.servers()):
            if self.local.process_state(name) is ProcessState.PAUSED:
                self.local.resume(name)

    def roll(self, _broker: int) -> None:
        self.local.roll()

    # -- calls -----------------------------------------------------------------------------------

    def _ask(self, work: Callable[[Cluster], Awaitable[Answer]]) -> Answer:
        async def run() -> Answer:
            addresses = parse_addresses(self.bootstrap_servers)
            async with Cluster(addresses, random=local_env().random) as cluster:
                return await work(cluster)

        return asyncio.run(run())

    def _ask_controller(self, work: Callable[[Cluster], Awaitable[Answer]]) -> Answer:
        """Again while there is none, or another one than a broker knows of."""
        until_s = time.monotonic() + _MOVE_S
        while True:
            try:
                return self._ask(work)
            except (OSError, NotController):
                if time.monotonic() > until_s:
                    raise
                time.sleep(0.2)

    def _wait(self, wait: Callable[[], None]) -> None:
        try:
            wait()
        except ClusterError as error:
            raise NotInTime(str(error)) from None
