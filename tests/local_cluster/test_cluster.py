"""A local cluster whose processes only sleep: what is recorded, waited for and shown."""

import json
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from suwi.local_cluster import cluster as module
from suwi.local_cluster.cluster import ClusterError, LocalCluster
from suwi.local_cluster.layout import (
    FOLLOWED,
    ClusterState,
    Layout,
    version_of_state,
    write_state,
)
from suwi.local_cluster.process import ProcessId, ProcessState
from suwi.local_cluster.view import View
from suwi.local_cluster.zookeeper import HOST
from tests.cli.support import Suwi
from tests.local_cluster.ports import free_ports


class Sleepers(LocalCluster):
    missing: tuple[str, ...] = ()
    """What cannot be started."""
    awake: tuple[str, ...] = ()
    """What does not sleep."""

    def launcher(self, name: str) -> list[str]:
        if name in self.missing:
            raise FileNotFoundError(name)
        if name in self.awake:
            return super().launcher(name)
        return [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sleepers]:
    monkeypatch.setattr(module, "START_S", 0.1)
    monkeypatch.setattr(module, "STOP_S", 60.0)
    layout = Layout(2, 0, "127.0.0.1:1/none", free_ports(), has_links=True)
    write_state(str(tmp_path), ClusterState(layout))
    cluster = Sleepers(str(tmp_path))
    yield cluster
    cluster.stop_processes(list(cluster.state.processes))


@pytest.fixture
def with_links(cluster: Sleepers) -> Sleepers:
    """The links do not sleep."""
    cluster.awake = ("links",)
    cluster.start_processes(["links"])
    return cluster


def test_what_was_started_before_an_error_is_recorded(cluster: Sleepers) -> None:
    cluster.missing = ("broker-2",)
    with pytest.raises(FileNotFoundError):
        cluster.start_processes(["broker-1", "broker-2"])
    assert list(cluster.state.processes) == ["broker-1"]
    assert cluster.process_state("broker-1") is ProcessState.RUNNING


def test_start_waits_for_what_runs_already(cluster: Sleepers) -> None:
    cluster.start_processes(["links"])
    for _ in range(2):
        with pytest.raises(ClusterError, match="not everything serves"):
            cluster.start()


def test_start_names_paused_processes_and_does_not_wait_for_them(with_links: Sleepers) -> None:
    cluster = with_links
    with pytest.raises(ClusterError, match="not everything serves"):
        cluster.start_processes(["broker-1", "broker-2"])
    cluster.pause("broker-1")
    cluster.isolate(2)
    said = Suwi("").refusal("cluster", "start", "--data", cluster.directory)
    assert said.startswith("not all processes serve: ")
    assert "broker-1 is paused (`suwi cluster resume broker-1`)" in said
    assert "broker-2 is cut off (`suwi cluster heal`)" in said


def test_nobody_waits_for_a_broker_that_is_started_while_it_is_cut_off(
    with_links: Sleepers,
) -> None:
    cluster = with_links
    cluster.isolate(2)
    with pytest.raises(ClusterError, match=r"broker-2 is started, and does not serve: it is cut "):
        cluster.restart("broker-2")
    assert cluster.process_state("broker-2") is ProcessState.RUNNING


def test_a_process_that_is_killed_at_last_is_dead_when_stop_returns(
    cluster: Sleepers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(self: ProcessId, number: signal.Signals) -> bool:
        if number is signal.SIGKILL:
            threading.Timer(0.2, send_now, (self, number)).start()
            return True
        return send_now(self, number)

    send_now = ProcessId.send
    monkeypatch.setattr(module, "STOP_S", 5.0)
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # its children inherit it
    try:
        cluster.start_processes(["links"])
    finally:
        signal.signal(signal.SIGTERM, before)
    with monkeypatch.context() as patched:
        patched.setattr(ProcessId, "send", send)
        cluster.stop_processes(["links"])
    assert cluster.process_state("links") is ProcessState.DEAD


def test_the_links_are_shown_and_restarted_as_other_processes(cluster: Sleepers) -> None:
    def state() -> str:
        rows, _ = cluster.status()
        return {row.name: row.state for row in rows}["links"]

    assert state() == "dead"
    cluster.restart("links")
    assert state() == "running"
    cluster.kill("links")
    assert state() == "dead"


def test_links_are_cut_and_slowed_by_commands_until_they_are_healed(cluster: Sleepers) -> None:
    def suwi(*words: object) -> str:
        return Suwi("").ok("cluster", *words, "--data", cluster.directory)

    assert suwi("cut", 1, "zookeeper", "--one-way").startswith(
        "nothing arrives from 1 to zookeeper;"
    )
    assert suwi("cut", 2, 1).startswith("nothing arrives between 2 and 1;")
    assert suwi("slow", 2, 1).startswith("the links of broker-2 are slow;")
    assert cluster.state.cuts == [("1", "zookeeper"), ("2", "1"), ("1", "2")]
    assert cluster.state.slow == ["2", "1"]
    suwi("heal")
    assert (cluster.state.cuts, cluster.state.slow) == ([], [])


def test_what_is_broken_holds_when_the_command_returns(with_links: Sleepers) -> None:
    cluster = with_links
    for change in (lambda: cluster.cut([("1", "2")]), lambda: cluster.slow(1), cluster.heal):
        change()
        followed = Path(cluster.directory, FOLLOWED).read_text()
        assert followed == version_of_state(cluster.directory)


def test_links_that_do_not_follow_are_told(
    cluster: Sleepers, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.start_processes(["links"])
    monkeypatch.setattr(module, "STOP_S", 1.0)
    with pytest.raises(ClusterError, match="the links do not follow"):
        cluster.slow(1)


def test_only_links_that_exist_are_cut_and_slowed(cluster: Sleepers) -> None:
    def refusal(*words: object) -> str:
        return Suwi("").refusal("cluster", *words, "--data", cluster.directory)

    assert refusal("cut", 1, 9) == "1 and 9: give two of 1, 2, zookeeper"
    assert refusal("cut", 1, 1) == "1 and 1: give two of 1, 2, zookeeper"
    assert "there is no broker-9 here" in refusal("slow", 9)
    layout = replace(cluster.layout, has_links=False)
    write_state(cluster.directory, ClusterState(layout))
    for command in (("cut", 1, 2), ("slow", 1), ("isolate", 1)):
        assert "started with --no-links" in refusal(*command)


def test_a_taken_port_is_refused_before_anything_changes(cluster: Sleepers) -> None:
    cluster.start_processes(["links"])
    before = cluster.state
    port = before.layout.ensemble_link_port(3, 0)
    with socket.create_server((HOST, port)):
        said = Suwi("").refusal("cluster", "start", "--brokers", 3, "--data", cluster.directory)
    assert said.startswith(f"port {port} (links of broker-3) is taken by another program: end it")
    assert cluster.state == before


def test_a_new_cluster_on_a_taken_port_writes_nothing(tmp_path: Path) -> None:
    data, port = tmp_path / "new", free_ports()
    options = ["--zookeeper", "127.0.0.1:1", "--port", port, "--data", data]
    try:
        with socket.create_server((HOST, port + 1)):
            said = Suwi("").refusal("cluster", "start", *options)
    finally:
        if data.exists():
            LocalCluster(str(data)).stop()
    assert said.startswith(f"port {port + 1} (broker-2) is taken by another program")
    assert "--port" in said
    assert not data.exists()


def test_ports_of_processes_that_run_are_not_taken(cluster: Sleepers) -> None:
    with pytest.raises(ClusterError, match="not everything serves"):
        cluster.start_processes(["links", "broker-1"])
    layout = cluster.layout
    with (
        socket.create_server((HOST, layout.client_port(1))),
        socket.create_server((HOST, layout.ensemble_link_port(2, 0))),
        pytest.raises(ClusterError, match="not everything serves"),
    ):
        cluster.start()


def test_without_links_the_status_does_not_say_that_replicas_are_in_sync(
    cluster: Sleepers, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = View(frozenset({1, 2}), 1, {"t-0": 1}, {"t-0": (1, 2)}, ())
    monkeypatch.setattr(module, "views", lambda addresses: dict.fromkeys(addresses, view))

    def status(*options: str) -> tuple[int, str]:
        found = Suwi("")("cluster", "status", "--data", cluster.directory, *options)
        return found.exit_code, found.stdout

    cluster.start_processes(["links", "broker-1", "broker-2"])
    code, said = status()
    assert (code, "all replicas in sync" in said) == (0, True)
    cluster.kill("links")
    code, said = status()
    assert code == 0
    assert "in sync" not in said
    assert "links is dead: no broker reaches ZooKeeper or another broker" in said
    assert "`suwi cluster restart links`" in said
    assert json.loads(status("--json")[1])["not_in_sync"] is None
