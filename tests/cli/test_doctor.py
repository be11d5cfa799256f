"""`suwi doctor`: what it finds in configurations, data directories and clusters, and its advice."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from suwi.admin.cluster_checks import _CHECKS, Found
from suwi.client.cluster_status import ALIVE, BrokerStatus, ClusterStatus, DiskStatus
from suwi.testing import Cluster
from tests.broker_process import BrokerProcess
from tests.cli.support import Suwi
from tests.testing.clients import send, until

SOUND = {
    "node.id": "1",
    "zookeeper.connect": "z1:2181,z2:2181,z3:2181/suwi",
    "listeners": "SSL://0.0.0.0:9093",
    "advertised.listeners": "SSL://b1.example:9093",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
}


@pytest.fixture
def suwi() -> Suwi:
    return Suwi("")  # no cluster: files only


def findings(suwi: Suwi, *arguments: object, exit_code: int = 1) -> list[dict[str, Any]]:
    result = suwi("doctor", "--json", *arguments)
    assert result.exit_code == exit_code, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)
    assert all(finding["advice"] for finding in found)
    return found


def problems(suwi: Suwi, *arguments: object) -> list[str]:
    return [finding["problem"] for finding in findings(suwi, *arguments)]


# -- a configuration -------------------------------------------------------------------------------


def write(path: Path, **changes: str) -> Path:
    values = SOUND | {"log.dirs": str(path.parent / "data")} | changes
    path.write_text("".join(f"{key}={value}\n" for key, value in values.items() if value))
    path.chmod(0o640)
    return path


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A directory that does not count as one for temporary files, although it is."""
    monkeypatch.setattr("suwi.admin.config_checks._VOLATILE", ("/nowhere",))
    monkeypatch.setattr("suwi.admin.config_checks._OPEN_FILES_MIN", 0)
    return tmp_path


def test_a_sound_configuration_has_no_findings(suwi: Suwi, home: Path) -> None:
    path = write(home / "server.properties")
    assert suwi.ok("doctor", "--config", path) == "nothing to complain about\n"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"log.retention.mss": "1"}, "log.retention.mss"),
        ({"num.partitions": "many"}, "invalid value 'many' for configuration num.partitions"),
        ({"num.io.threads": "4"}, "num.io.threads has no effect"),
        ({"default.replication.factor": "1", "min.insync.replicas": "1"}, "is 1: a new topic is"),
        ({"offsets.topic.replication.factor": "1"}, "groups stop with one broker"),
        ({"min.insync.replicas": "3"}, "min.insync.replicas equals default.replication.factor"),
        ({"min.insync.replicas": "4"}, "is more than default.replication.factor=3"),
        ({"advertised.listeners": ""}, "listens on all addresses and advertises localhost"),
        ({"listeners": "SSL://127.0.0.1:1", "advertised.listeners": ""}, "from this machine only"),
        (
            {"listeners": "PLAINTEXT://10.0.0.1:1", "advertised.listeners": ""},
            "would serve other machines in plain text",
        ),
        ({"unclean.leader.election.enable": "true"}, "an election may lose committed records"),
        ({"log.dirs": "data"}, "data depends on the directory in which the broker is started"),
        ({"log.dirs": "/nowhere/data"}, "/nowhere/data is a directory for temporary files"),
        ({"log.dirs": "/proc/version/data"}, "this user cannot write to /proc/version"),
        ({"listeners": "rubbish"}, "rubbish"),
        ({"zookeeper.connect": "z1:x"}, "zookeeper.connect z1:x: give it as HOST:PORT"),
        ({"zookeeper.auth.file": "/nowhere/auth"}, "zookeeper.auth.file /nowhere/auth: No such"),
        (
            {
                "zookeeper.ssl.client.enable": "true",
                "zookeeper.ssl.truststore.location": "/nowhere/ca.pem",
            },
            "/nowhere/ca.pem",
        ),
    ],
)
def test_a_configuration_is_checked(
    suwi: Suwi, home: Path, changes: dict[str, str], problem: str
) -> None:
    (found,) = problems(suwi, "--config", write(home / "server.properties", **changes))
    assert problem in found


def test_every_bad_key_is_named(suwi: Suwi, home: Path) -> None:
    path = write(home / "server.properties", **{"a.b": "1", "c.d": "2", "zookeeper.auth": "x"})
    path.chmod(0o644)
    found = problems(suwi, "--config", path)
    assert [text for text in found if "a.b" in text or "c.d" in text] == found[:2]
    assert "other users can read the passwords in it" in found


def test_a_low_limit_of_open_files_is_found(
    suwi: Suwi, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("suwi.admin.config_checks._OPEN_FILES_MIN", 1 << 62)
    monkeypatch.setattr("resource.getrlimit", lambda _: (256, 1024))
    (found,) = findings(suwi, "--config", write(home / "server.properties"))
    assert found["problem"].startswith("this shell may open 1024 files")
    assert "LimitNOFILE=" in found["advice"]


def test_a_file_that_is_missing_is_a_finding(suwi: Suwi, tmp_path: Path) -> None:
    missing = tmp_path / "none"
    assert problems(suwi, "--config", missing, "--data", missing) == [
        "No such file or directory",
        "No such file or directory",
    ]


# -- a data directory ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data of a broker that was stopped."""
    with BrokerProcess(tmp_path_factory.mktemp("doctor") / "data") as broker:
        assert send(broker.address, "water", "high") == []
        broker.stop()
    return broker.data


@pytest.fixture
def data(stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("suwi.admin.data_checks._FREE_MIN", 0)
    copied = tmp_path / "data"
    shutil.copytree(stopped, copied)
    copied.chmod(0o700)
    return copied


def test_a_directory_of_a_stopped_broker_is_sound(suwi: Suwi, data: Path) -> None:
    assert suwi.ok("doctor", "--data", data) == "nothing to complain about\n"


def test_a_directory_in_use_is_sound_although_it_is_not_shut_down(suwi: Suwi, data: Path) -> None:
    with BrokerProcess(data):
        suwi.ok("doctor", "--data", data)


def test_kill_and_power_loss_are_told_apart(suwi: Suwi, data: Path) -> None:
    with BrokerProcess(data) as broker:
        broker.kill()
    assert problems(suwi, "--data", data) == [
        "the broker was killed: the next start checks the end of each log"
    ]
    (data / ".suwi-running").write_text("another boot")
    assert problems(suwi, "--data", data) == [
        "the machine stopped while the broker ran: records may be missing"
    ]
    (data / ".suwi-running").write_text("unsynced\n")
    assert "syncs failed in the last run" in problems(suwi, "--data", data)[0]


def test_damaged_small_files_have_a_remedy(suwi: Suwi, data: Path) -> None:
    (data / "meta.properties").write_text("rubbish\n")
    (data / "water-0" / "partition.metadata").write_text("")
    (data / "recovery-point-offset-checkpoint").write_text("rubbish\n")
    by_file = {
        Path(found["about"]).name: found["advice"] for found in findings(suwi, "--data", data)
    }
    assert by_file["partition.metadata"] == (
        f"suwi repair partition-metadata {data}/water-0 --topic-id ID"
    )
    assert by_file["meta.properties"] == "restore it from a backup"
    assert "remove the file" in by_file["recovery-point-offset-checkpoint"]


def test_leftovers_are_named(suwi: Suwi, data: Path) -> None:
    (data / "orders-0.0123-stray").mkdir()
    (data / "orders-1.0123-delete").mkdir()
    (data / "water-0" / "00000000000000000000.log.swap").touch()
    strays, leftovers = problems(suwi, "--data", data)
    assert "orders-0.0123-stray" in strays
    assert leftovers.startswith("2 leftovers of deletion or compaction: orders-1.0123-delete")


def test_space_permissions_and_identity(
    suwi: Suwi, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("suwi.admin.data_checks._FREE_MIN", 2)
    data.chmod(0o755)
    (data / "meta.properties").unlink()
    identity, space, permissions = findings(suwi, "--data", data)
    assert "no meta.properties" in identity["problem"]
    assert space["problem"].endswith(" are free")
    assert permissions["advice"] == f"chmod 700 {data}"


# -- a cluster -------------------------------------------------------------------------------------


def test_a_cluster_is_checked_with_causes_and_advice() -> None:
    with Cluster(brokers=3) as cluster:
        suwi = Suwi(cluster.bootstrap_servers)
        cluster.create_topic("water")
        cluster.create_topic("one", replication_factor=1)
        suwi.ok("configs", "set", "topic", "water", "min.insync.replicas=3")
        cluster.wait_until_healthy()
        found = {f["about"]: f for f in findings(suwi)}
        found.pop("cluster", None)  # a full disk of this machine
        assert found["one"]["problem"].startswith("one replica in a cluster of several brokers")
        assert found["water"]["advice"] == "suwi configs set topic water min.insync.replicas=2"
        leader = cluster.wait_leader("water")
        other = next(node for node in cluster.brokers if node not in (leader, 1))
        cluster.kill(other)
        until(lambda: any("under-replicated: water-0" in p for p in problems(suwi)))
        assert any(p.startswith(f"broker {other} is ") for p in problems(suwi))


def test_no_broker_has_exit_code_2() -> None:
    assert Suwi("127.0.0.1:1")("doctor").exit_code == 2


BROKER = BrokerStatus(1, "h:1", None, ALIVE, True, 0, 0, 0, "1.0", "embedded", True, 0)
OTHER = replace(BROKER, node=2, is_controller=False)


def cluster_problems(*brokers: BrokerStatus, **changes: Any) -> list[str]:
    status = ClusterStatus("c", 1, brokers, 0, 0, (), (), (), (), 0, ())
    found = Found(replace(status, **changes), (), {}, ())
    return [finding.problem for check in _CHECKS for finding in check(found)]


def test_brokers_that_differ_are_found() -> None:
    assert cluster_problems(BROKER, OTHER) == []
    assert cluster_problems(BROKER, replace(OTHER, clock_ahead_ms=-1500)) == [
        "its clock is 1.5 s behind this machine's"
    ]
    assert cluster_problems(BROKER, replace(OTHER, version="1.1")) == [
        "brokers of several versions: 1.0, 1.1"
    ]
    closed = replace(OTHER, access={"super.users": "User:a", "authorizer.class.name": "X"})
    opened = replace(BROKER, access={"super.users": "User:a", "authorizer.class.name": ""})
    (problem,) = cluster_problems(opened, closed)
    assert problem.startswith("brokers differ in authorizer.class.name")
    assert problem.endswith("broker 1: '', broker 2: 'X'")
    full = DiskStatus("/data", False, 1 << 30, 1 << 20)
    assert cluster_problems(replace(BROKER, disks=(full,))) == [
        "/data: only 1.0 MiB of 1.0 GiB are free"
    ]


def test_files_are_checked_without_the_cluster_of_the_environment(home: Path) -> None:
    path = write(home / "server.properties")
    assert Suwi("127.0.0.1:1").ok("doctor", "--config", path) == "nothing to complain about\n"


def test_findings_in_files_are_shown_although_no_broker_responds(home: Path) -> None:
    sound = write(home / "server.properties")
    result = Suwi("")("doctor", "--config", sound, "--broker", "127.0.0.1:1")
    assert (result.exit_code, result.stdout) == (2, "")
    bad = write(home / "bad.properties", **{"num.io.threads": "4"})
    result = Suwi("")("doctor", "--config", bad, "--broker", "127.0.0.1:1")
    assert result.exit_code == 2
    assert "num.io.threads has no effect" in result.stdout
    assert "no broker at 127.0.0.1:1" in result.stderr
