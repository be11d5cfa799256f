"""A local cluster whose processes only sleep: what is recorded, waited for and shown."""

import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from suwi.local_cluster import cluster as module
from suwi.local_cluster.cluster import ClusterError, LocalCluster
from suwi.local_cluster.layout import ClusterState, Layout, write_state
from suwi.local_cluster.process import ProcessId, ProcessState
from tests.cli.support import Suwi


class Sleepers(LocalCluster):
    missing: tuple[str, ...] = ()
    """What cannot be started."""

    def launcher(self, name: str) -> list[str]:
        if name in self.missing:
            raise FileNotFoundError(name)
        return [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sleepers]:
    monkeypatch.setattr(module, "START_S", 0.1)
    monkeypatch.setattr(module, "STOP_S", 2.0)
    layout = Layout(2, 0, "127.0.0.1:1/none", 1024, has_links=True)
    write_state(str(tmp_path), ClusterState(layout))
    cluster = Sleepers(str(tmp_path))
    yield cluster
    cluster.stop_processes(list(cluster.state.processes))


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


def test_start_names_paused_processes_and_does_not_wait_for_them(cluster: Sleepers) -> None:
    cluster.start_processes(["links"])
    with pytest.raises(ClusterError, match="not everything serves"):
        cluster.start_processes(["broker-1", "broker-2"])
    cluster.pause("broker-1")
    cluster.isolate(2)
    said = Suwi("").refusal("cluster", "start", "--data", cluster.directory)
    assert said.startswith("not all processes serve: ")
    assert "broker-1 is paused (`suwi cluster resume broker-1`)" in said
    assert "broker-2 is cut off (`suwi cluster heal`)" in said


def test_a_process_that_is_killed_at_last_is_dead_when_stop_returns(
    cluster: Sleepers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(self: ProcessId, number: signal.Signals) -> bool:
        if number is signal.SIGKILL:
            threading.Timer(0.2, send_now, (self, number)).start()
            return True
        return send_now(self, number)

    send_now = ProcessId.send
    monkeypatch.setattr(module, "STOP_S", 1.0)
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
