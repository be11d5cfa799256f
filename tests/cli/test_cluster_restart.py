"""A whole cluster of processes starts again: after a stop, after SIGKILL of every process, and
after ZooKeeper has lost its data, when it refuses."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from suwi.local_cluster import zookeeper
from suwi.local_cluster.cluster import ClusterError, LocalCluster
from suwi.local_cluster.layout import Layout, broker_name, zookeeper_name
from suwi.local_cluster.process import ProcessState
from tests.cli.support import Suwi
from tests.local_cluster.ports import free_ports

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.zookeeper,
    pytest.mark.slow,
    pytest.mark.skipif(zookeeper.why_unavailable() is not None, reason="no ZooKeeper here"),
]
_PATIENCE_S = 120
_TOPIC = "orders"
_PARTITIONS = 3
_RECORDS = 300


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    cluster = LocalCluster(str(tmp_path))
    try:
        cluster.start(Layout(3, 3, "", free_ports(), has_links=True))
        suwi = Suwi(cluster.bootstrap_servers)
        suwi.ok("topics", "create", _TOPIC, "--partitions", _PARTITIONS)
        write(cluster)
        yield cluster
    finally:
        cluster.stop()


def names(cluster: LocalCluster) -> list[str]:
    layout = cluster.layout
    return [*map(broker_name, layout.broker_ids), *map(zookeeper_name, layout.servers())]


def write(cluster: LocalCluster) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"})
    for number in range(_RECORDS):
        producer.produce(_TOPIC, str(number).encode(), partition=number % _PARTITIONS)
    assert producer.flush(_PATIENCE_S) == 0


def read(cluster: LocalCluster, count: int) -> list[int]:
    """The first records of all partitions, at most so many."""
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "readers"}
        | {"enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(_TOPIC, index, 0) for index in range(_PARTITIONS)])
    found: list[int] = []
    until_s = time.monotonic() + _PATIENCE_S
    while len(found) < count and time.monotonic() < until_s:
        for message in consumer.consume(count - len(found), 1.0):
            error = message.error()
            if error is not None:
                raise KafkaException(error)
            found.append(int(message.value()))
    consumer.close()
    return sorted(found)


def check_serves(cluster: LocalCluster) -> None:
    """All records are there, and more are accepted by replicas that are all in sync."""
    cluster.wait_in_sync(_PATIENCE_S)
    assert read(cluster, _RECORDS) == list(range(_RECORDS))
    write(cluster)
    assert len(read(cluster, 2 * _RECORDS)) == 2 * _RECORDS


def test_a_cluster_that_was_stopped_starts_cleanly(cluster: LocalCluster) -> None:
    cluster.stop()
    assert {cluster.process_state(name) for name in names(cluster)} == {ProcessState.DEAD}
    logs = [Path(cluster.data_directory(b)) for b in cluster.layout.broker_ids]
    assert all((log / ".kafka_cleanshutdown").exists() for log in logs)
    cluster.start()
    check_serves(cluster)


def test_a_cluster_whose_processes_were_all_killed_starts_with_all_its_records(
    cluster: LocalCluster,
) -> None:
    for name in names(cluster):
        cluster.kill(name)
    cluster.start()
    check_serves(cluster)


def test_a_cluster_whose_zookeeper_lost_its_data_refuses_and_says_what_to_do(
    cluster: LocalCluster,
) -> None:
    cluster.stop()
    kept = {}
    for number in cluster.layout.servers():
        data = Path(cluster.directory) / zookeeper_name(number) / "data"
        kept[data] = data.rename(data.with_name("kept"))
    with pytest.raises(ClusterError) as refused:
        cluster.start()
    for said in ("has ended", "the metadata store holds no cluster", "restore the data"):
        assert said in str(refused.value)
    cluster.stop()
    for data, copy in kept.items():
        shutil.rmtree(data)
        copy.rename(data)
    cluster.start()
    check_serves(cluster)
