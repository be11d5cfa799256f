"""A local cluster whose processes only sleep: what is recorded, waited for and shown."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from suwi.local_cluster import cluster as module
from suwi.local_cluster.cluster import LocalCluster
from suwi.local_cluster.layout import ClusterState, Layout, write_state
from suwi.local_cluster.process import ProcessState


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
