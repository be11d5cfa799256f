"""A cluster of processes, live: what the console records is what the brokers' files and logs say,
and what is broken by click is seen by clients of the cluster."""

import asyncio
import json
import re
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from suwi.client.addresses import parse_addresses
from suwi.client.connection import PeerConnection
from suwi.console.clusters import Breakable, ClusterAddress
from suwi.lab.events import InSync, Loss, Recording, Replicas, Truncation, read
from suwi.local_cluster import zookeeper
from suwi.local_cluster.cluster import LocalCluster
from suwi.local_cluster.layout import Layout, broker_name
from suwi.local_cluster.process import ProcessState
from suwi.records.batch import batches
from tests.broker.simulated import produce
from tests.broker_process import unique_name
from tests.cli.support import Suwi
from tests.console.support import Browser, ConsoleThread, RunningConsole, run_copied
from tests.console.test_command import needs_pages, started
from tests.console.test_live import (
    SETTINGS,
    Load,
    checkpoint,
    elections,
    lines_of,
    log_end,
    wait_checkpoint,
)
from tests.local_cluster.ports import free_ports
from tests.testing.clients import send, until

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.zookeeper,
    pytest.mark.slow,
    pytest.mark.skipif(zookeeper.why_unavailable() is not None, reason="no ZooKeeper here"),
]
PATIENCE_S = 180
BROKERS = {1, 2, 3}
LARGE = "x" * 100_000
"""Takes two seconds on a link that is slow."""
_LINE = re.compile(r"^(\S+) info \S+: (leader elected|isr confirmed|truncated) (.*)$", re.MULTILINE)
_FIELD = re.compile(r"(\w+)=(\[.*?\]|\".*?\"|\S+)")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    cluster = LocalCluster(str(tmp_path_factory.mktemp("cluster")))
    settings = {key: str(value) for key, value in SETTINGS.items()}
    settings["replica.lag.time.max.ms"] = "4000"
    try:
        cluster.start(Layout(3, 1, "", free_ports(), has_links=True, settings=settings))
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def topic(cluster: LocalCluster) -> str:
    """A topic with one partition, whose replicas are in sync."""
    name = unique_name("live")
    Suwi(cluster.bootstrap_servers).ok("topics", "create", name, "--replication-factor", 3)
    cluster.wait_in_sync(PATIENCE_S)
    return name


def click(browser: Browser, fault: str, cluster: str = "local", **values: object) -> str:
    """Cause a fault as the page does; what the console says was done."""
    path = f"/api/clusters/{cluster}/faults/{fault}"
    answer = browser.post(path, {"values": values, "is_preview": False})
    assert answer.status == 200, answer.body
    return str(answer.json()["text"])


# -- what is recorded ------------------------------------------------------------------------------


class FaultsUnderLoad(threading.Thread):
    """Leaders and a follower are killed under load, and a leader is cut off, by click. The next
    fault waits until the recording has all replicas in sync."""

    def __init__(
        self, cluster: LocalCluster, browser: Browser, topic: str, recorded: Replicas
    ) -> None:
        super().__init__()
        self._cluster = cluster
        self._browser = browser
        self._topic = topic
        self._name = f"{topic}-0"
        self._recorded = recorded
        self._load = Load(cluster.bootstrap_servers, topic)
        self.failure: BaseException | None = None
        self.cut_off: tuple[int, int] = (0, 0)
        """The leader that was cut off, and where its log ended then."""
        self.end = 0
        """Where all logs end, once it is known."""

    def run(self) -> None:
        try:
            self._wait_until_recorded(BROKERS)
            self._wait_for_load()
            for _ in range(2):
                self._kill(self._leader)
            self._kill(min(BROKERS - {self._leader}))
            self._cut_off(self._leader)
            self._load.stop()
            self.end = self._end_of(self._leader) + 1
            self._load.send()  # So that there is an event after the end is known.
        except BaseException as error:
            self.failure = error
        finally:
            self._load.stop()

    @property
    def _leader(self) -> int:
        leader, _ = self._recorded.leaders[self._name]
        assert leader is not None
        return leader

    def _kill(self, broker: int) -> None:
        click(self._browser, "kill", broker=broker)
        self._wait_until_recorded(BROKERS - {broker})
        self._wait_for_load()
        click(self._browser, "restart", broker=broker)
        self._wait_until_recorded(BROKERS)

    def _cut_off(self, broker: int) -> None:
        click(self._browser, "isolate", broker=broker)
        asyncio.run(self._write_alone(broker))
        self._wait_until_recorded(BROKERS - {broker})
        self._wait_for_load()
        self.cut_off = broker, self._end_of(broker)
        click(self._browser, "heal", links="all")
        self._wait_until_recorded(BROKERS)

    async def _write_alone(self, broker: int) -> None:
        """With acks=1, until another leads: it does not know that."""
        address = self._cluster.layout.client_address(broker)
        connection = await PeerConnection.open(*address)
        async with asyncio.timeout(PATIENCE_S):
            while self._leader == broker:
                await produce(connection, self._topic, [b"alone"], acks=1)
                await asyncio.sleep(0.1)
        await connection.close()

    def _end_of(self, broker: int) -> int:
        return log_end(Path(self._cluster.data_directory(broker)) / self._name)

    def _wait_until_recorded(self, in_sync: set[int]) -> None:
        """Also until they all answer: what a broker has noted and nobody has read dies with it."""

        def is_recorded() -> bool:
            recorded = set(self._recorded.in_sync.get(self._name, ()))
            is_heard = self._recorded.down.isdisjoint(in_sync)
            return recorded == in_sync and self._leader in in_sync and is_heard

        now = self._recorded
        until(is_recorded, lambda: (in_sync, now.in_sync, now.leaders), timeout_s=PATIENCE_S)

    def _wait_for_load(self) -> None:
        sent = self._load.sent
        until(lambda: self._load.sent > sent + 100, timeout_s=PATIENCE_S)


class Logged(NamedTuple):
    """A line of a broker's log."""

    at: str
    broker: int
    message: str
    fields: dict[str, Any]


def logged(cluster: LocalCluster, partition: str) -> list[Logged]:
    """What the brokers have logged of a partition, in the order of time: it is one machine."""
    found = []
    for broker in BROKERS:
        text = Path(cluster.log_path(broker_name(broker))).read_text()
        for at, message, rest in _LINE.findall(text):
            fields = dict(_FIELD.findall(rest))
            if fields.pop("partition") == partition:
                known = {
                    key: json.loads(value) for key, value in fields.items() if key != "election"
                }
                found.append(Logged(at, broker, message, known))
    return sorted(found, key=lambda line: line.at)


def without_repetition(sets: Iterable[Iterable[int]]) -> list[set[int]]:
    found: list[set[int]] = []
    for each in map(set, sets):
        if not found or found[-1] != each:
            found.append(each)
    return found


def first_offsets(directory: Path) -> dict[int, int]:
    """Of each leader epoch that a batch of the log has."""
    found: dict[int, int] = {}
    for segment in sorted(directory.glob("*.log")):
        for _, header in batches(memoryview(segment.read_bytes())):
            found.setdefault(header.partition_leader_epoch, header.base_offset)
    return found


def removed(event: Truncation) -> tuple[int | None, int | None, int | None]:
    """Whose log it is, and between which offsets all was removed."""
    return event.broker, event.offset, event.removed[-1][1] + 1 if event.removed else event.offset


def record(browser: Browser, topic: str, total: Replicas, faults: FaultsUnderLoad) -> Recording:
    """What the console streams until all replicas have all records."""
    steps, kept, name = browser.events("live", topic=topic), list[str](), f"{topic}-0"

    def is_final() -> bool:
        views = [total.replicas.get((name, broker)) for broker in BROKERS]
        return all(view and view.end == view.high_watermark == faults.end for view in views)

    for line in lines_of(steps):
        kept.append(json.dumps(line))
        if len(kept) == 1:
            faults.start()
            continue
        (event,) = read([kept[0], kept[-1]]).events
        total.add(event)
        if faults.failure is not None:
            raise faults.failure
        if faults.end and is_final():
            break
    steps.close()  # type: ignore[attr-defined]
    faults.join()
    return read(kept)


def test_under_load_and_kills_what_is_recorded_is_what_the_brokers_files_and_logs_say(
    cluster: LocalCluster, topic: str, static: Path
) -> None:
    servers, name, total = cluster.bootstrap_servers, f"{topic}-0", Replicas()
    breakable = Breakable(cluster, cluster.directory)
    shown = ClusterAddress("local", parse_addresses(servers), None, (), breakable=breakable)
    with ConsoleThread(static, [shown]) as console:
        browser = Browser(console).log_in(console)
        faults = FaultsUnderLoad(cluster, browser, topic, total)
        recording = record(browser, topic, total, faults)
    lines = logged(cluster, name)
    first, *later = [(event.broker, event.epoch) for event in elections(recording, name)]
    elected = [line.fields for line in lines if line.message == "leader elected"]
    assert first[1] == 0
    assert later == [(each["leader"], each["epoch"]) for each in elected]
    assert len(later) >= 3
    in_sync = [e.members for e in recording.events if isinstance(e, InSync) and e.is_confirmed]
    confirmed = [line.fields["isr"] for line in lines if "isr" in line.fields]
    assert without_repetition(in_sync) == without_repetition([BROKERS, *confirmed])
    truncations = [removed(e) for e in recording.events if isinstance(e, Truncation)]
    truncated = [
        (at.broker, at.fields["to"], at.fields["from"]) for at in lines if "to" in at.fields
    ]
    assert sorted(truncations) == sorted(truncated)
    leader, end_alone = faults.cut_off
    ends = [end or 0 for broker, _, end in truncations if broker == leader]
    assert ends[-1] >= end_alone  # More may have been sent to it before its links were restored.
    assert not any(isinstance(event, Loss) for event in recording.events)
    for broker in BROKERS:
        files, view = Path(cluster.data_directory(broker)), total.replicas[name, broker]
        assert [list(entry) for entry in view.epochs] == checkpoint(
            files / name / "leader-epoch-checkpoint"
        )
        assert first_offsets(files / name).items() <= dict(view.epochs).items()
        assert view.end == log_end(files / name) == faults.end
        assert view.leads == (broker == later[-1][0])
        wait_checkpoint(files / "replication-offset-checkpoint", [0, view.high_watermark])


# -- what is broken by click -----------------------------------------------------------------------


class Outside:
    """Clients of the cluster that know nothing of the console."""

    def __init__(self, cluster: LocalCluster, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic

    def partition(self, seen_by: int) -> Any:
        """As one broker describes it: one that is cut off does not know better."""
        asked = Suwi(str(self._cluster.layout.client_address(seen_by)))
        (described,) = asked.json("topics", "describe", self._topic)
        return described["partitions"][0]

    def wait_in_sync(self, *brokers: int) -> None:
        def in_sync() -> set[int]:
            return set(self.partition(brokers[-1])["isr"])

        until(lambda: in_sync() == set(brokers), in_sync, timeout_s=PATIENCE_S)

    def write(self, value: str = "x", through: int | None = None) -> float:
        """With acks=all; how long it took, in seconds. `through`: the broker that is asked who
        leads, because one that is cut off still names itself."""
        began_s, servers = time.monotonic(), self._cluster.bootstrap_servers
        if through is not None:
            servers = str(self._cluster.layout.client_address(through))
        assert send(servers, self._topic, value, timeout_s=60) == []
        return time.monotonic() - began_s

    def accepts(self, broker: int) -> bool:
        """Whether the broker accepts connections."""
        try:
            socket.create_connection(self._cluster.layout.client_address(broker), 10).close()
        except ConnectionRefusedError:
            return False
        return True


@needs_pages
def test_what_is_broken_by_click_is_seen_by_a_client_of_the_cluster(
    cluster: LocalCluster, topic: str
) -> None:
    outside, suwi = Outside(cluster, topic), Suwi(cluster.bootstrap_servers)
    options = ("--port", 0, "--broker", suwi.broker, "--faults", cluster.directory)
    with started(suwi, "console", *options) as (process, address):
        console = RunningConsole(address)
        browser = Browser(console).log_in(console)
        leader = outside.partition(1)["leader"]
        victim, other = sorted(BROKERS - {leader})

        def cause(fault: str, **values: object) -> str:
            return click(browser, fault, "cluster", **values)

        assert cause("kill", broker=victim) == f"killed broker-{victim}"
        assert not outside.accepts(victim)
        outside.wait_in_sync(leader, other)
        path, values = "/api/clusters/cluster/faults/kill", {"broker": victim}
        refused = browser.post(path, {"values": values, "is_preview": False})
        assert (refused.status, refused.json()["text"]) == (409, f"broker-{victim} does not run")
        outside.write()
        assert cause("restart", broker=victim) == f"broker-{victim} serves"
        assert outside.accepts(victim)
        outside.wait_in_sync(*BROKERS)

        cause("pause", broker=victim)
        assert cluster.process_state(broker_name(victim)) is ProcessState.PAUSED
        outside.wait_in_sync(leader, other)
        path, values = "/api/clusters/cluster/faults/resume", {"broker": victim}
        shown = browser.post(path, {"values": values, "is_preview": True}).json()
        run_copied(shown["command"])  # The same in a terminal.
        outside.wait_in_sync(*BROKERS)

        for one_way in (True, False):
            cause("cut", broker=leader, other=victim, one_way=one_way)
            outside.write()  # A replica that has everything stays in sync.
            outside.wait_in_sync(leader, other)
            cause("heal", links="all")
            outside.wait_in_sync(*BROKERS)

        cause("slow", broker=victim)
        assert outside.write(LARGE) > 2
        cause("heal", links="all")
        outside.wait_in_sync(*BROKERS)

        cause("isolate", broker=leader)
        outside.wait_in_sync(victim, other)
        assert outside.partition(other)["leader"] in (victim, other)
        outside.write(through=other)
        cause("heal", links="all")
        outside.wait_in_sync(*BROKERS)

        process.terminate()
        said, _ = process.communicate(timeout=PATIENCE_S)
    changes = [json.loads(line)["change"] for line in said.splitlines() if line.startswith(b"{")]
    broken = ["cut", "cut", "slow", "isolate"]
    links = [change for fault in broken for change in (fault, "heal")]
    assert changes == ["kill", "kill", "restart", "pause", *links]
