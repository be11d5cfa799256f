"""`suwi cluster drain` and `suwi topics alter --replication-factor`, on four brokers."""

import json
from collections.abc import Iterator

import pytest

from suwi.cli.reassign import kept
from suwi.model.ids import NodeId
from suwi.testing import Cluster
from tests.cli.support import Suwi
from tests.testing.clients import send, until


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=4) as running:
        yield running


@pytest.fixture
def suwi(cluster: Cluster) -> Suwi:
    return Suwi(cluster.bootstrap_servers)


def replicas_of(suwi: Suwi, topic: str) -> list[list[int]]:
    """By the image of one broker, which may lag behind the controller's."""
    (described,) = suwi.json("topics", "describe", topic)
    return [partition["replicas"] for partition in described["partitions"]]


def test_a_drained_broker_has_no_replicas_left(cluster: Cluster, suwi: Suwi) -> None:
    suwi.ok("topics", "create", "water", "--partitions", "4", "--replication-factor", "3")
    send(cluster.bootstrap_servers, "water", "a", "b")
    shown = suwi.ok("cluster", "drain", "2")
    assert "moved" in shown
    assert shown.endswith("broker 2 has no replicas left: it can be switched off\n")
    until(lambda: all(2 not in r and len(r) == 3 for r in replicas_of(suwi, "water")))
    assert suwi.json("cluster", "drain", "2") == {"broker": 2, "partitions_moved": 0}


def test_a_broker_is_not_drained_if_too_few_are_left(cluster: Cluster, suwi: Suwi) -> None:
    suwi.ok("topics", "create", "water", "--replication-factor", "4")
    refused = suwi("cluster", "drain", "2")
    assert refused.exit_code == 1
    assert "suwi topics alter water --replication-factor 3" in refused.stderr
    unknown = suwi("cluster", "drain", "9")
    assert unknown.exit_code == 1
    assert "there is no broker 9" in unknown.stderr


def test_a_topic_gets_more_and_fewer_replicas(cluster: Cluster, suwi: Suwi) -> None:
    suwi.ok("topics", "create", "water", "--partitions", "2", "--replication-factor", "1")
    assert "replication factor 3" in suwi.ok("topics", "alter", "water", "-r", "3")
    until(lambda: [len(set(r)) for r in replicas_of(suwi, "water")] == [3, 3])
    before = replicas_of(suwi, "water")
    assert suwi.json("topics", "alter", "water", "-r", "2")["replication_factor"] == 2
    until(lambda: replicas_of(suwi, "water") == [replicas[:2] for replicas in before])
    refused = suwi("topics", "alter", "water", "-r", "9")
    assert refused.exit_code == 1
    assert "replication factor 9 is larger" in refused.stderr


def test_of_fewer_replicas_those_in_sync_stay_in_their_order() -> None:
    one, two, three = (NodeId(node) for node in (1, 2, 3))
    assert kept((one, two, three), (three, two, one), 2) == [one, two]
    assert kept((one, two, three), (three, two), 2) == [two, three]
    assert kept((one, two, three), (three,), 2) == [one, three]


def test_a_fenced_broker_gets_no_replicas() -> None:
    with Cluster(brokers=4, session_timeout_s=60) as cluster:
        suwi = Suwi(cluster.bootstrap_servers)
        suwi.ok("topics", "create", "water", "--replication-factor", "1")
        leader = cluster.wait_leader("water")
        dead = min(node for node in cluster.brokers if node != leader)
        cluster.kill(dead)

        def state() -> str:
            status = json.loads(suwi("status", "--json").stdout)
            return str({each["node"]: each["state"] for each in status["brokers"]}[dead])

        until(lambda: state() == "fenced", state)
        suwi.ok("cluster", "drain", leader)
        ((replica,),) = replicas_of(suwi, "water")
        assert replica not in (leader, dead)
        refused = suwi("topics", "alter", "water", "-r", "4")
        assert refused.exit_code == 1
        assert "the number of live brokers, 3" in refused.stderr
