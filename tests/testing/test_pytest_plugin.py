"""The fixtures as a user's project uses them, in a separate pytest run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.broker_process import SOURCE

ROOT = Path(__file__).parents[2]

TESTS = """
import os
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

def send(servers, topic, value):
    producer = Producer({"bootstrap.servers": servers, "acks": "all"})
    producer.produce(topic, value, partition=0)
    assert producer.flush(120) == 0

def first(servers, topic):
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "none", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    value = consumer.poll(120).value()
    consumer.close()
    return value

used = {}

@pytest.mark.parametrize("value", ["one", "two"])
def test_tests_share_a_cluster_but_no_topics(suwi, value):
    send(suwi.bootstrap_servers, suwi.topic("orders"), value)
    assert first(suwi.bootstrap_servers, suwi.topic("orders")) == value.encode()
    used[value] = suwi.bootstrap_servers, suwi.topic("orders")

def test_it_was_the_same_cluster(suwi):
    (servers, topic), (servers_again, other) = used["one"], used["two"]
    assert servers == servers_again == suwi.bootstrap_servers
    assert topic != other
    assert topic not in suwi.cluster.topics()

def test_settings_of_the_run(suwi):
    topic = suwi.create_topic("made", 2)
    assert suwi.cluster.brokers == (1, 2)
    send(suwi.bootstrap_servers, suwi.topic("unmade"), "x")
    assert len(suwi.cluster.replicas(suwi.topic("unmade"), 4)) == 2

def test_a_cluster_of_ones_own(suwi_cluster):
    suwi_cluster.create_topic("orders")
    suwi_cluster.kill(suwi_cluster.wait_leader("orders"))
    suwi_cluster.wait_leader("orders")

@pytest.mark.suwi(brokers=1, settings={"num.partitions": 7})
def test_made_to_measure(suwi_cluster):
    assert suwi_cluster.brokers == (1,)
    send(suwi_cluster.bootstrap_servers, "orders", "x")
    assert suwi_cluster.replicas("orders", 6)

prepared = []

def prepare(cluster):
    prepared.append(cluster)
    cluster.create_topic("orders")
    send(cluster.bootstrap_servers, "orders", "prepared")

@pytest.mark.parametrize("value", ["one", "two"])
@pytest.mark.suwi(prepare=prepare, brokers=2)
def test_a_copy_of_ones_own(suwi_cluster, value):
    assert suwi_cluster not in prepared and len(prepared) == 1
    assert first(suwi_cluster.bootstrap_servers, "orders") == b"prepared"
    send(suwi_cluster.bootstrap_servers, "orders", value)
    suwi_cluster.kill(suwi_cluster.wait_leader("orders"))

@pytest.mark.suwi(prepare=prepare, brokers=1)
def test_other_options_are_prepared_separately(suwi_cluster):
    assert first(suwi_cluster.bootstrap_servers, "orders") == b"prepared"
    assert len(prepared) == 2
"""
TEST_OF_A_WORKER = """
from pathlib import Path

def test_who_uses_which_cluster(suwi):
    told = Path(__file__).with_name(os.environ["PYTEST_XDIST_WORKER"])
    told.write_text(suwi.bootstrap_servers)
"""
CONFIG = """
[pytest]
addopts = --strict-markers
suwi_brokers = 2
suwi_settings =
    num.partitions = 5
filterwarnings = error
"""


def run(project: Path, *options: str) -> str:
    """Returns what pytest says if all tests pass."""
    return finish(start(project, *options))


def finish(process: "subprocess.Popen[str]") -> str:
    with process:
        try:
            said, _ = process.communicate()
        except BaseException:  # The limit of pytest-timeout.
            process.kill()
            raise
    assert process.returncode == 0, said
    return said


def start(project: Path, *options: str) -> "subprocess.Popen[str]":
    # Plugins are loaded explicitly, so that it does not matter whether Suwi is installed.
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "suwi.testing.pytest_plugin", *options]
    return subprocess.Popen(
        command,
        cwd=project,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "test_orders.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text(CONFIG)
    return tmp_path


@pytest.mark.slow
@pytest.mark.timeout(600)  # Two runs of pytest with their clusters, on a machine that others use.
def test_two_concurrent_runs_are_independent(project: Path) -> None:
    """As with workers of pytest-xdist, which are processes."""
    running = [start(project, "-p", "no:cacheprovider") for _ in range(2)]
    for said in map(finish, running):
        assert "9 passed" in said


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_workers_of_xdist_have_their_own_clusters(project: Path) -> None:
    for name in ("test_orders.py", "test_the_same_orders.py"):  # one for each worker
        (project / name).write_text(TESTS + TEST_OF_A_WORKER)
    said = run(project, "-p", "xdist.plugin", "-n", "2", "--dist", "loadfile")
    assert "20 passed" in said
    servers = {path.name: path.read_text().split(",") for path in project.glob("gw*")}
    assert servers.keys() == {"gw0", "gw1"}
    assert set(servers["gw0"]).isdisjoint(servers["gw1"])


def test_the_example_of_a_prepared_cluster_runs(project: Path) -> None:
    blocks = (ROOT / "docs" / "testing.md").read_text().split("```python\n")
    (example,) = [block.split("```")[0] for block in blocks if "prepare=" in block]
    (project / "test_orders.py").write_text(example)
    assert "2 passed" in run(project)


def test_the_fixtures_are_listed_and_load_nothing_unused(project: Path) -> None:
    (project / "test_orders.py").write_text(
        "import sys\n\ndef test_nothing_is_loaded():\n    assert 'suwi.broker' not in sys.modules\n"
    )
    run(project)
    assert "suwi_cluster" in run(project, "--fixtures")
