"""`suwi status`: the health of a cluster, for people and for scripts."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from suwi.admin.cluster_health import HealthCriteria, problems
from suwi.cli.cluster import DEFAULT_DATA, find_target
from suwi.cli.session import DEFAULT_BROKER
from suwi.cli.status import sections
from suwi.client import zookeeper_servers
from suwi.client.cluster_status import ALIVE, BrokerStatus, ClusterStatus, DiskStatus
from suwi.client.zookeeper_servers import ServerStatus, ask_servers, parse_connect
from suwi.local_cluster.layout import ClusterState, Layout, write_state
from suwi.local_cluster.process import ProcessState, spawn
from suwi.testing import Cluster
from suwi.testing.node import Reservation
from tests.broker_process import environment
from tests.cli.support import COMMAND, Suwi
from tests.testing.clients import send, until

TOPIC = "water"
_UNREACHABLE = 2
WANTED = HealthCriteria(lag_min=1000, timeout_s=5)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3, session_timeout_s=60) as running:
        running.create_topic(TOPIC, partitions=6)
        running.wait_until_healthy()
        yield running


@pytest.fixture
def suwi(cluster: Cluster) -> Suwi:
    return Suwi(cluster.bootstrap_servers)


def fields(suwi: Suwi, *arguments: object, exit_code: int) -> Any:
    result = suwi("status", "--json", *arguments)
    assert result.exit_code == exit_code, result.output
    return json.loads(result.stdout)


def test_a_healthy_cluster_has_exit_code_0_and_a_line_for_each_broker(
    cluster: Cluster, suwi: Suwi
) -> None:
    lines = suwi.ok("status", "--brokers", 3).splitlines()
    assert lines[0].startswith("Cluster ")
    assert lines[0].endswith(": healthy")
    assert lines[2].split() == ["Metadata", "embedded"]
    assert lines[3].split() == ["Partitions", "6", "of", "1", "topic"]
    rows = [line.split() for line in lines[-3:]]
    assert [row[:2] for row in rows] == [[str(node), "alive"] for node in cluster.brokers]
    assert [row[2] for row in rows].count("yes") == 1  # the controller
    told = fields(suwi, exit_code=0)
    assert (told["health"], told["problems"], told["unknown"]) == ("healthy", [], [])
    assert [len(broker["disks"]) for broker in told["brokers"]] == [1, 1, 1]
    assert all(b["disks"][0]["free_bytes"] > 0 for b in told["brokers"])


def test_a_killed_broker_makes_the_cluster_degraded(cluster: Cluster, suwi: Suwi) -> None:
    cluster.create_topic("one", replication_factor=1)
    leader = cluster.wait_leader("one")
    suwi.ok("topics", "alter", TOPIC, "--config", "min.insync.replicas=3")
    cluster.kill(leader)
    until(lambda: len(fields(suwi, exit_code=1)["under_replicated"]) == 6)
    told = fields(suwi, exit_code=1)
    states = {broker["node"]: broker["state"] for broker in told["brokers"]}
    assert states.pop(leader) in ("silent", "fenced", "missing")
    assert set(states.values()) == {"alive"}
    assert {p["topic"] for p in told["under_min_isr"]} == {TOPIC}
    assert [(p["topic"], p["partition"]) for p in told["offline"]] == [("one", 0)]
    text = suwi("status").stdout
    assert "1 partition without a leader: one-0" in text
    assert "6 partitions under-replicated: water-0, water-1" in text
    assert text.count(" and 1 more") == 2  # as many are under min.insync.replicas


def test_the_health_of_one_broker_is_judged_alone(cluster: Cluster, suwi: Suwi) -> None:
    cluster.kill(2)
    until(lambda: bool(fields(suwi, exit_code=1)["under_replicated"]))
    assert fields(suwi, "--node", 1, exit_code=0)["problems"] == []
    problem, *_ = fields(suwi, "--node", 2, exit_code=1)["problems"]
    assert problem.startswith("broker 2 is ")
    assert fields(suwi, "--node", 9, exit_code=1)["problems"] == ["broker 9 is not registered"]


def test_a_silent_broker_is_shown_as_silent_and_the_others_are_described(
    cluster: Cluster, suwi: Suwi
) -> None:
    leaders = {p: cluster.wait_leader(TOPIC, p) for p in range(6)}
    cluster.pause(3)
    try:
        told = fields(suwi, "--timeout", 10, exit_code=1)
    finally:
        cluster.resume(3)
    by_node = {broker["node"]: broker for broker in told["brokers"]}
    assert by_node[3]["state"] in ("silent", "fenced", "missing")
    assert [by_node[node]["state"] for node in (1, 2)] == ["alive", "alive"]
    assert set(leaders.values()) == {1, 2, 3}


def test_no_answer_at_all_has_exit_code_2() -> None:
    reservation = Reservation()  # nobody else listens on that port afterwards
    with socket.create_server(("127.0.0.1", reservation.port)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        result = Suwi(address)("status", "--timeout", 0.2)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"suwi: no broker at {address}: ")
    assert Suwi(address)("status").exit_code == 2  # connection refused
    reservation.release()


def test_a_group_that_is_behind_is_shown_and_does_not_count(cluster: Cluster, suwi: Suwi) -> None:
    assert send(cluster.bootstrap_servers, TOPIC, *"abcde") == []
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "late"})

    def commits() -> bool:
        try:
            consumer.commit(offsets=[TopicPartition(TOPIC, 0, 2)], asynchronous=False)
        except KafkaException:  # The coordinator may still be loading.
            return False
        return True

    until(commits)
    consumer.close()
    cluster.wait_until_healthy()
    told = fields(suwi, "--lag", 3, exit_code=0)
    assert (told["groups"], told["groups_behind"]) == (
        1,
        [{"group": "late", "state": "Empty", "lag": 3}],
    )
    assert fields(suwi, "--lag", 4, exit_code=0)["groups_behind"] == []
    assert "Groups 3 or more records behind: 1" in suwi.ok("status", "--lag", 3)


def test_with_watch_the_status_is_printed_until_interrupted(cluster: Cluster) -> None:
    with subprocess.Popen(
        [*COMMAND, "status", "--watch", "--json"],
        stdout=subprocess.PIPE,
        env={**environment(), "SUWI_BROKER": cluster.bootstrap_servers},
        text=True,
    ) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["health"] == "healthy"
        cluster.kill(1)
        while json.loads(process.stdout.readline())["health"] != "degraded":
            pass
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0


def test_a_status_that_is_interrupted_is_not_healthy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        process = Suwi(address).start("status", "--timeout", 60, stdout=subprocess.PIPE)
        with process, mute.accept()[0]:
            process.send_signal(signal.SIGINT)
            assert process.wait(120) == 130


def test_recent_elections_are_shown_with_their_cause(cluster: Cluster, suwi: Suwi) -> None:
    leader = cluster.wait_leader(TOPIC, 0)
    cluster.kill(leader)
    until(lambda: f"broker {leader} away" in suwi("status").stdout)
    told = fields(suwi, exit_code=1)
    causes = {e["cause"]: e["partitions"] for b in told["brokers"] for e in b["elections"]}
    assert causes[f"broker {leader} away"] >= 1


# -- ZooKeeper -------------------------------------------------------------------------------------

SRVR = """Zookeeper version: 3.9.3-c26634f34490bb0ea7a09cc51e05ede3b4e320ee, built on 2024-10-17
Latency min/avg/max: 0/0.1/3
Mode: {}
Node count: 5
"""


def serve_words(server: socket.socket, answer: bytes) -> None:
    with server, server.accept()[0] as connection:
        assert connection.recv(4) == b"srvr"
        connection.sendall(answer)


def test_each_zookeeper_server_is_asked_for_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper_servers, "_TIMEOUT_S", 120)
    reservation = Reservation()  # nobody listens there
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    answers = [SRVR.format("leader"), SRVR.format("follower"), "This ZooKeeper is not serving\n"]
    threads = [
        threading.Thread(target=serve_words, args=(server, answer.encode()))
        for server, answer in zip(servers, answers, strict=True)
    ]
    for thread in threads:
        thread.start()
    ports = [*(server.getsockname()[1] for server in servers), reservation.port]
    asked = parse_connect(",".join(f"127.0.0.1:{port}" for port in ports) + "/suwi").servers
    found = asyncio.run(ask_servers(asked))
    for thread in threads:
        thread.join()
    reservation.release()
    assert [(server.state, server.version) for server in found] == [
        ("leader", "3.9.3"),
        ("follower", "3.9.3"),
        ("not serving", None),
        ("away", None),
    ]


def test_a_silent_zookeeper_server_gives_no_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        asked = parse_connect(f"127.0.0.1:{mute.getsockname()[1]}").servers
        (found,) = asyncio.run(ask_servers(asked))
    assert found.state == "no answer"


def test_the_ensemble_is_a_table() -> None:
    status = replace(HEALTHY, ensemble=(ServerStatus("zk1:2181", "leader", "3.9.3"),))
    tables = [s for s in sections(status, [], WANTED) if not isinstance(s, str)]
    assert tables[-1][:2] == ("ZooKeeper State Version", [("zk1:2181", "leader", "3.9.3")])


def test_brokers_that_differ_in_access_rules_are_shown_and_do_not_count() -> None:
    """They differ while a cluster is closed broker by broker, which waits for a healthy one."""
    brokers = [
        replace(BROKER, node=node, access={"super.users": f"User:{node}"}) for node in (1, 2)
    ]
    status = replace(HEALTHY, brokers=tuple(brokers))
    assert problems(status, WANTED) == []
    told = [line for line in sections(status, [], WANTED) if "differ in super.users" in line]
    assert len(told) == 1


# -- what counts -----------------------------------------------------------------------------------

BROKER = BrokerStatus(1, "h:1", None, ALIVE, True, 0, 0, 0)
HEALTHY = ClusterStatus("c", 1, (BROKER,), 0, 0, (), (), (), (), 0, ())


@pytest.mark.parametrize(
    ("status", "problem"),
    [
        (replace(HEALTHY, controller=None), "there is no controller"),
        (
            replace(
                HEALTHY,
                brokers=(replace(BROKER, store="ZooKeeper z:1", is_store_connected=False),),
            ),
            "broker 1 is not connected to ZooKeeper z:1",
        ),
        (
            replace(HEALTHY, brokers=(replace(BROKER, disks=(DiskStatus("/d", True, 1, 1),)),)),
            "broker 1: /d is offline",
        ),
    ],
)
def test_what_makes_a_cluster_degraded(status: ClusterStatus, problem: str) -> None:
    assert problems(HEALTHY, WANTED) == []
    assert problems(status, WANTED) == [problem]


def test_fewer_brokers_than_expected_are_a_problem() -> None:
    assert problems(HEALTHY, WANTED._replace(brokers=2)) == ["1 of 2 brokers are alive"]


def test_a_full_disk_is_shown_as_full() -> None:
    disks = (DiskStatus("/a", False, 1 << 30, 1 << 29), DiskStatus("/b", False, 1 << 30, 0))
    status = replace(HEALTHY, brokers=(replace(BROKER, disks=disks),))
    ((columns, (row,), _),) = [s for s in sections(status, [], WANTED) if not isinstance(s, str)]
    cells = dict(zip(columns.split(), row, strict=True))
    assert (cells["Used"], cells["Free"]) == ("100 %", "0 B")


def test_the_local_cluster_of_this_directory_is_found_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeper = spawn(
        (sys.executable, "-c", "import time; time.sleep(600)"), str(tmp_path / "log"), {}
    )
    data = tmp_path / DEFAULT_DATA
    data.mkdir()
    monkeypatch.chdir(tmp_path)
    try:
        with Cluster(brokers=1) as running:
            port = int(running.bootstrap_servers.rpartition(":")[2])
            layout = Layout(1, 0, "127.0.0.1:1", port, has_links=False)
            write_state(str(data), ClusterState(layout, {"broker-1": sleeper}))
            assert f":{port} " in Suwi("").ok("status")
            assert Suwi("")("doctor").exit_code != _UNREACHABLE
            assert find_target(None, None, None).broker == running.bootstrap_servers
            assert find_target(None, "b:1", None).broker == "b:1"
    finally:
        sleeper.send(signal.SIGKILL)
    until(lambda: sleeper.state is ProcessState.DEAD)
    assert find_target(None, None, None).broker == DEFAULT_BROKER
