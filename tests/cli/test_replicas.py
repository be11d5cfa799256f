"""`suwi topics describe --replicas`: the state of each replica."""

import json
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from suwi.testing import Cluster
from tests.broker_process import environment
from tests.cli.support import COMMAND, Suwi
from tests.testing.clients import send, until

TOPIC = "water"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3) as running:
        running.create_topic(TOPIC)
        yield running


@pytest.fixture
def suwi(cluster: Cluster) -> Suwi:
    return Suwi(cluster.bootstrap_servers)


def wait_for_watermark(cluster: Cluster, watermark: int) -> None:
    """Wait until the followers have the high watermark too."""

    def known() -> set[int]:
        return {state.high_watermark for state in cluster.replicas(TOPIC).values()}

    until(lambda: known() == {watermark}, known)


def test_each_replica_has_its_line(cluster: Cluster, suwi: Suwi) -> None:
    send(cluster.bootstrap_servers, TOPIC, "a", "b")
    wait_for_watermark(cluster, 2)
    leader = cluster.wait_leader(TOPIC)
    title, heading, *rows = suwi.ok("topics", "describe", TOPIC, "--replicas").splitlines()
    assert title.startswith(f"{TOPIC}-0 led by {leader}, in sync ")
    assert title.endswith("; epochs 0 from 0")
    assert heading.split() == [
        *("Replica", "Role", "Epoch", "LogStart", "LastStable", "HighWatermark", "LogEnd"),
        *("LagTime", "InSync"),
    ]
    cells = {int(row.split()[0]): row.split()[1:] for row in rows}
    assert cells.pop(leader) == ["leader", "0", "0", "2", "2", "2", "-", "yes"]
    assert list(cells.values()) == [["follower", "0", "0", "2", "2", "2", "0", "ms", "yes"]] * 2


def test_who_is_missing_since_when_is_told_for_one_topic(cluster: Cluster, suwi: Suwi) -> None:
    leader = cluster.wait_leader(TOPIC)
    follower = next(node for node in (1, 2, 3) if node != leader)
    (whole,) = suwi.json("topics", "describe", TOPIC)
    assert whole["missing"] == []
    cluster.kill(follower)

    def missing() -> Any:
        (found,) = suwi.json("topics", "describe", TOPIC)
        return found["missing"]

    until(lambda: len(missing()) == 1, missing)
    (member,) = missing()
    assert (member["partition"], member["node"], member["is_exact"]) == (0, follower, True)
    line = suwi.ok("topics", "describe", TOPIC).splitlines()[-1]
    assert line.startswith(f"partition 0: replica {follower} is not in sync since 2")
    assert line.endswith("): the broker is away or stopping")
    assert "not in sync" not in suwi.ok("topics", "describe")


def test_a_dead_broker_has_a_line_too(cluster: Cluster, suwi: Suwi) -> None:
    first = cluster.wait_leader(TOPIC)
    cluster.kill(first)
    leader = cluster.wait_leader(TOPIC)

    def described() -> Any:
        (found,) = suwi.json("topics", "describe", TOPIC, "--replicas")
        return found

    # The image of the broker that is asked may lag behind.
    until(lambda: described()["leader_epoch"] == 1, described)
    partition = described()
    assert partition["leader"] == leader
    replicas = {replica["node"]: replica for replica in partition["replicas"]}
    assert set(replicas) == {1, 2, 3}
    assert replicas[first]["role"] == "unknown"
    assert replicas[first]["in_sync"] == "no"
    # Until its session ends clients get its address, afterwards not.
    expected = ("connection refused", f"broker {first} is not among the live brokers")
    assert replicas[first]["problem"] in expected
    assert replicas[leader]["epochs"] == [[1, 0]]  # it has no record of epoch 0


def test_a_follower_that_is_behind_has_a_lag_time(cluster: Cluster, suwi: Suwi) -> None:
    leader = cluster.wait_leader(TOPIC)
    cluster.partition({leader}, set(cluster.brokers) - {leader})
    send(cluster.bootstrap_servers, TOPIC, "a", acks="1")
    (partition,) = suwi.json("topics", "describe", TOPIC, "--replicas")
    behind = [replica for replica in partition["replicas"] if replica["node"] != leader]
    assert all(replica["lag_ms"] > 0 for replica in behind)
    assert {replica["log_end"] for replica in behind} == {0}


def test_with_follow_every_change_is_printed(cluster: Cluster) -> None:
    def ends(line: str) -> set[int]:
        (partition,) = json.loads(line)
        return {replica["log_end"] for replica in partition["replicas"]}

    arguments = ["topics", "describe", TOPIC, "--replicas", "--follow", "--json"]
    with subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=subprocess.PIPE,
        env={**environment(), "SUWI_BROKER": cluster.bootstrap_servers},
        text=True,
    ) as process:
        assert process.stdout is not None
        assert ends(process.stdout.readline()) == {0}
        send(cluster.bootstrap_servers, TOPIC, "a")
        while ends(process.stdout.readline()) != {1}:
            pass
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0


def test_follow_requires_replicas(suwi: Suwi) -> None:
    assert "requires --replicas" in suwi.misuse("topics", "describe", "--follow")


def test_without_topics_there_is_a_hint() -> None:
    with Cluster(brokers=1) as empty:
        said: Any = Suwi(empty.bootstrap_servers).ok("topics", "describe", "--replicas")
    assert "there are no topics yet" in said
