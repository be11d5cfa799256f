"""`suwi cluster drain` and `suwi topics alter --replication-factor`, on four brokers."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from suwi.admin.reassignment import kept
from suwi.model.ids import NodeId
from suwi.testing import Cluster
from tests.cli.support import Suwi
from tests.testing.clients import PATIENCE_S, send, until


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


def kill_and_wait(cluster: Cluster, suwi: Suwi, dead: int) -> None:
    """Returns when the controller knows that the broker is away."""
    cluster.kill(dead)

    def state() -> str:
        status = json.loads(suwi("status", "--json").stdout)
        return str({each["node"]: each["state"] for each in status["brokers"]}.get(dead))

    until(lambda: state() in ("fenced", "missing", "None"), state)


def test_a_fenced_broker_gets_no_replicas() -> None:
    with Cluster(brokers=4, session_timeout_s=60) as cluster:
        suwi = Suwi(cluster.bootstrap_servers)
        suwi.ok("topics", "create", "water", "--replication-factor", "1")
        leader = cluster.wait_leader("water")
        dead = min(node for node in cluster.brokers if node != leader)
        kill_and_wait(cluster, suwi, dead)
        suwi.ok("cluster", "drain", leader)
        until(lambda: len(replicas_of(suwi, "water")[0]) == 1)
        ((replica,),) = replicas_of(suwi, "water")
        assert replica not in (leader, dead)
        refused = suwi("topics", "alter", "water", "-r", "4")
        assert refused.exit_code == 1
        assert "the number of live brokers, 3" in refused.stderr


def test_a_replica_on_a_dead_broker_is_replaced_too_while_another_is_drained() -> None:
    with Cluster(brokers=5) as cluster:
        suwi = Suwi(cluster.bootstrap_servers)
        suwi.ok("topics", "create", "water", "--replication-factor", "3")
        cluster.wait_until_healthy()
        (replicas,) = replicas_of(suwi, "water")
        leaving, dead, staying = replicas
        kill_and_wait(cluster, suwi, dead)
        suwi.ok("cluster", "drain", leaving)
        expected = {staying, *cluster.brokers} - {leaving, dead}
        until(lambda: set(replicas_of(suwi, "water")[0]) == expected)


@contextmanager
def draining(suwi: Suwi, node: int) -> "Iterator[subprocess.Popen[bytes]]":
    with suwi.start("cluster", "drain", node, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def one_dead_of_four(cluster: Cluster, suwi: Suwi) -> tuple[int, int]:
    """A topic with a replica on a broker that is to leave, and one on another that is dead."""
    suwi.ok("topics", "create", "water", "--replication-factor", "3")
    cluster.wait_until_healthy()
    ((leaving, dead, _),) = replicas_of(suwi, "water")
    kill_and_wait(cluster, suwi, dead)
    return leaving, dead


def test_a_drain_says_for_which_dead_broker_it_waits(cluster: Cluster, suwi: Suwi) -> None:
    leaving, dead = one_dead_of_four(cluster, suwi)
    with draining(suwi, leaving) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, b"")
        waiting = next(line for line in lines if line.startswith(b"waiting"))
        assert waiting.decode() == f"waiting for broker {dead}, which is not running: water-0\n"
        cluster.restart(dead)
        *_, last = lines
        assert last.decode() == f"broker {leaving} has no replicas left: it can be switched off\n"
        assert process.wait(PATIENCE_S) == 0


def test_a_drain_that_is_started_again_waits_for_the_moves_that_run(
    cluster: Cluster, suwi: Suwi
) -> None:
    leaving, _ = one_dead_of_four(cluster, suwi)
    for _ in range(2):
        with draining(suwi, leaving) as process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith(b"moving 1 partition;")


def test_the_replicas_of_a_partition_are_moved_and_its_preferred_leader_elected(
    cluster: Cluster, suwi: Suwi
) -> None:
    suwi.ok("topics", "create", "water", "--replication-factor", "2")
    (before,) = replicas_of(suwi, "water")
    target = [*sorted({1, 2, 3, 4} - set(before)), before[0]]
    to = ",".join(map(str, target))
    assert suwi.ok("topics", "move", "water", "0", "--to", to).endswith(f"replicas on {to}\n")
    until(lambda: replicas_of(suwi, "water") == [target])
    assert "not being reassigned" in suwi.refusal("topics", "move", "water", "0", "--cancel")
    assert "not running" in suwi.refusal("topics", "move", "water", "0", "--to", "9")
    assert "--cancel" in suwi.misuse("topics", "move", "water", "0")

    def is_led_by_the_first() -> bool:
        suwi("topics", "elect", "water")
        return (
            suwi("topics", "describe", "water", "--json").stdout.count(f'"leader": {target[0]}')
            == 1
        )

    until(is_led_by_the_first)
    assert "preferred leader already" in suwi.refusal("topics", "elect", "water")
