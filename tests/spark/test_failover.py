"""Reading goes on when leaders die: three replicas, one of them killed in the middle of a range."""

from collections.abc import Iterator

import pytest

from suwi.records.compression import Compression
from suwi.testing import Cluster
from tests.spark.readers import batch_reader, read_all, stop_readers, stream_reader, values
from tests.spark.topics import fill

TOPIC = "orders"
SENT = [b"%d" % number for number in range(20_000)]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3) as running:
        yield running
    stop_readers()


def test_a_task_reads_on_from_the_next_leader(cluster: Cluster) -> None:
    cluster.create_topic(TOPIC, partitions=1, replication_factor=3)
    servers = cluster.bootstrap_servers
    fill(servers, TOPIC, SENT, codec=Compression.LZ4)
    cluster.wait_isr(TOPIC, 0, cluster.brokers)
    # Small fetches, so that most of the range is still to come when the leader dies.
    reader = batch_reader(servers, subscribe=TOPIC, kafka__max__partition__fetch__bytes="20000")
    (partition,) = reader.partitions()
    found: list[bytes] = []
    killed = False
    for batch in reader.read(partition):
        found += batch.column("value").to_pylist()  # type: ignore[union-attr]
        if not killed:
            assert len(found) < len(SENT) / 2
            cluster.kill(cluster.wait_leader(TOPIC, 0))
            killed = True
    assert found == SENT


def test_a_driver_finds_offsets_at_the_next_leader(cluster: Cluster) -> None:
    cluster.create_topic(TOPIC, partitions=3, replication_factor=3)
    servers = cluster.bootstrap_servers
    reader = stream_reader(servers, subscribe=TOPIC, startingOffsets="earliest")
    assert reader.initialOffset()[TOPIC] == {"0": 0, "1": 0, "2": 0}
    cluster.wait_isr(TOPIC, 1, cluster.brokers)
    cluster.kill(cluster.wait_leader(TOPIC, 1))
    fill(servers, TOPIC, [b"after"], partition=1)
    start = {TOPIC: {"0": 0, "1": 0, "2": 0}}
    partitions = reader.partitions(start, {TOPIC: {"0": 0, "1": 1, "2": 0}})
    assert values(read_all(reader, partitions)) == ["after"]
    # New partitions make the driver ask for offsets, too.
    partitions = reader.partitions({}, start)
    assert partitions == []
