"""`suwi cluster start` and the faults, on one small cluster of real processes."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from suwi.local_cluster import zookeeper
from suwi.local_cluster.cluster import LocalCluster
from tests.broker_process import unique_name
from tests.cli.support import Suwi
from tests.local_cluster.ports import free_ports
from tests.testing.clients import read, send, until

pytestmark = pytest.mark.timeout(900)
_PATIENCE_S = 120
needs_zookeeper = [
    pytest.mark.zookeeper,
    pytest.mark.slow,
    pytest.mark.skipif(zookeeper.why_unavailable() is not None, reason="no ZooKeeper here"),
]


class Commands:
    def __init__(self, data: Path, port: int) -> None:
        self.suwi = Suwi(",".join(f"127.0.0.1:{port + at}" for at in range(3)))
        self.data = data
        self.port = port

    def __call__(self, *arguments: object) -> str:
        return self.suwi.ok("cluster", *arguments, "--data", self.data)

    def refusal(self, *arguments: object) -> str:
        return self.suwi.refusal("cluster", *arguments, "--data", self.data)

    def status(self) -> Any:
        return self.suwi.json("cluster", "status", "--data", self.data)

    def states(self) -> dict[str, str]:
        return {each["name"]: each["state"] for each in self.status()["processes"]}

    def wait_until_in_sync(self) -> None:
        LocalCluster(str(self.data)).wait_in_sync(_PATIENCE_S)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    commands = Commands(tmp_path_factory.mktemp("cluster"), free_ports())
    try:
        commands("start", "--brokers", 3, "--port", commands.port)
        yield commands
    finally:
        commands("stop")
        assert set(commands.states().values()) == {"dead"}


def topic_in_sync(cluster: Commands) -> str:
    name = unique_name("topic")
    create = ("topics", "create", name, "--partitions", 3, "--if-not-exists")
    # Not, while a broker that got no CPU has lost its session.
    until(lambda: cluster.suwi(*create).exit_code == 0, lambda: cluster.suwi(*create).output)
    cluster.wait_until_in_sync()
    return name


class TestRunning:
    pytestmark = needs_zookeeper

    def test_all_processes_run_and_one_broker_is_the_controller(self, cluster: Commands) -> None:
        topic_in_sync(cluster)
        status = cluster.status()
        by_name = {each["name"]: each for each in status["processes"]}
        assert list(by_name) == ["broker-1", "broker-2", "broker-3", "zookeeper-1", "links"]
        assert {each["state"] for each in by_name.values()} == {"running"}
        assert [each["role"] for each in by_name.values()].count("controller") == 1
        assert by_name["zookeeper-1"]["role"] == "standalone"
        assert by_name["broker-2"]["port"] == cluster.port + 1
        assert sum(each["leaders"] or 0 for each in by_name.values()) == status["partitions"]
        assert "all replicas in sync" in cluster("status")

    def test_its_znodes_are_closed_by_a_credential_that_it_made(self, cluster: Commands) -> None:
        assert (cluster.data / "zookeeper.auth").stat().st_mode & 0o077 == 0
        log = (cluster.data / "broker-1" / "broker.log").read_text()
        assert "anybody can change the metadata" not in log

    def test_a_killed_broker_is_dead_until_it_is_restarted(self, cluster: Commands) -> None:
        topic_in_sync(cluster)
        cluster("kill", 1)
        assert cluster.states()["broker-1"] == "dead"
        assert "broker-1 does not run" in cluster.refusal("pause", 1)
        cluster("restart", 1)
        assert cluster.states()["broker-1"] == "running"
        cluster.wait_until_in_sync()

    def test_start_starts_what_does_not_run(self, cluster: Commands) -> None:
        pids = {each["name"]: each["pid"] for each in cluster.status()["processes"]}
        cluster("kill", "broker-2")
        assert "starting broker-2" in cluster("start")
        after = {each["name"]: each["pid"] for each in cluster.status()["processes"]}
        assert {name for name, pid in pids.items() if after[name] != pid} == {"broker-2"}
        cluster.wait_until_in_sync()

    def test_a_paused_broker_is_resumed(self, cluster: Commands) -> None:
        cluster("pause", 3)
        assert cluster.states()["broker-3"] == "paused"
        cluster("resume", 3)
        assert cluster.states()["broker-3"] == "running"
        cluster.wait_until_in_sync()

    def test_others_lead_while_a_broker_is_isolated(self, cluster: Commands) -> None:
        topic_in_sync(cluster)
        cluster("isolate", 2)
        assert cluster.states()["broker-2"] == "isolated"
        until_s = time.monotonic() + _PATIENCE_S
        while {b["name"]: b for b in cluster.status()["processes"]}["broker-2"]["leaders"]:
            assert time.monotonic() < until_s
        cluster("heal")
        assert cluster.states()["broker-2"] == "running"
        cluster.wait_until_in_sync()

    def test_a_broker_without_zookeeper_loses_its_leaders(self, cluster: Commands) -> None:
        topic_in_sync(cluster)
        cluster("slow", 1)
        cluster("cut", 2, "zookeeper")
        until_s = time.monotonic() + _PATIENCE_S
        while {b["name"]: b for b in cluster.status()["processes"]}["broker-2"]["leaders"]:
            assert time.monotonic() < until_s
        assert cluster.states()["broker-2"] == "running"
        cluster("heal")
        cluster.wait_until_in_sync()

    def test_a_rolling_restart_restarts_every_broker_once(self, cluster: Commands) -> None:
        topic_in_sync(cluster)
        said = cluster("roll")
        assert [line for line in said.splitlines() if line.startswith("starting")] == [
            "starting broker-1",
            "starting broker-2",
            "starting broker-3",
        ]
        assert said.count("all replicas in sync after") == 3
        assert cluster.status()["not_in_sync"] == []

    def test_brokers_are_added_drained_and_removed_while_the_cluster_runs(
        self, cluster: Commands
    ) -> None:
        topic = topic_in_sync(cluster)
        servers, values = cluster.suwi.broker, [f"record {number}" for number in range(100)]
        assert send(servers, topic, *values) == []
        assert "starting broker-4" in cluster("start", "--brokers", 4)
        assert "`suwi cluster drain 3` moves them away" in cluster.refusal("remove", 3)
        assert "broker 3 has no replicas left" in cluster("drain", 3)
        cluster.wait_until_in_sync()
        assert "broker-3 is removed" in cluster("remove", 3)
        assert "broker-3" not in cluster.states()
        assert cluster("roll").count("all replicas in sync after") == 3
        assert read(servers, topic, len(values)) == values
        assert "starting broker-3" in cluster("start", "--brokers", 4)
        cluster("drain", 4)
        cluster("remove", 4)
        assert [name for name in cluster.states() if name.startswith("broker")] == [
            "broker-1",
            "broker-2",
            "broker-3",
        ]
        cluster.wait_until_in_sync()
        assert read(servers, topic, len(values)) == values

    def test_events_and_drain_find_the_cluster_by_its_directory(
        self, cluster: Commands, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        nobody = Suwi("127.0.0.1:1")
        assert nobody.ok("cluster", "events", "--data", cluster.data)
        assert "no broker 9" in nobody.refusal("cluster", "drain", 9, "--data", cluster.data)
        assert "give one of" in nobody.misuse("cluster", "events", "--data", "x", "--broker", "y:1")
        monkeypatch.chdir(cluster.data.parent)
        (cluster.data.parent / "suwi-cluster").symlink_to(cluster.data)
        assert Suwi("").ok("cluster", "events")

    def test_the_status_shows_the_state_of_zookeeper(self, cluster: Commands) -> None:
        cluster.wait_until_in_sync()
        status = cluster.suwi.json("status")
        assert [server["state"] for server in status["ensemble"]] == ["standalone"]

    def test_what_the_cluster_does_not_have_is_refused(self, cluster: Commands) -> None:
        assert "there is no broker-9 here" in cluster.refusal("kill", 9)
        assert "--port: the cluster was made with" in cluster.refusal("start", "--port", 9999)
        assert "`suwi cluster remove N` removes one" in cluster.refusal("start", "--brokers", 2)


def test_commands_without_a_cluster_say_how_to_make_one(tmp_path: Path) -> None:
    said = Commands(tmp_path, 0).refusal("status")
    assert "there is no cluster in" in said
    assert "suwi cluster start" in said


def test_without_java_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zookeeper, "find_java", lambda: None)
    commands = Commands(tmp_path / "new", 0)
    assert "pip install 'suwi[java]'" in commands.refusal("start")
    assert not (tmp_path / "new").exists()
    monkeypatch.setattr(zookeeper, "find_java", lambda: "java")
    monkeypatch.setattr(zookeeper, "find_jars", lambda: None)
    assert "pip install 'suwi[spark]'" in commands.refusal("start")


def test_an_ensemble_of_its_own_and_a_given_one_exclude_each_other(tmp_path: Path) -> None:
    said = Commands(tmp_path / "new", 0).refusal(
        "start", "--zookeepers", 3, "--zookeeper", "127.0.0.1:2181"
    )
    assert said == "--zookeepers and --zookeeper: give one of them"
