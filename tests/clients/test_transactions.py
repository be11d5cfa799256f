"""Transactions of clients with transaction version 1, on one broker and on three."""

import asyncio
import time
import warnings
from collections.abc import Iterator
from typing import Any

import aiokafka
import confluent_kafka
import pytest

from suwi.testing import Cluster
from tests.broker_process import unique_name
from tests.clients.drivers import PATIENCE_S

with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
    import kafka

PARTITIONS = 3
SETTINGS = {
    "transaction.state.log.num.partitions": 4,
    "offsets.topic.num.partitions": 4,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
}


@pytest.fixture(scope="module", params=[1, 3], ids=["one broker", "three brokers"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with Cluster(brokers=request.param, settings=SETTINGS) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster: Cluster) -> str:
    return cluster.create_topic(unique_name("orders"), PARTITIONS)


def producer(cluster: Cluster, name: str, **settings: Any) -> confluent_kafka.Producer:
    made = confluent_kafka.Producer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "transactional.id": name,
            **{key.replace("_", "."): value for key, value in settings.items()},
        }
    )
    made.init_transactions(PATIENCE_S)
    return made


def write(writer: confluent_kafka.Producer, topic: str, *values: str) -> None:
    """A value in each partition, within the open transaction."""
    for at, value in enumerate(values):
        writer.produce(topic, value, partition=at % PARTITIONS)


class Reader:
    """Reads a topic from its start."""

    def __init__(self, cluster: Cluster, topic: str, isolation: str = "read_committed") -> None:
        self.seen: list[str] = []
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "group.id": unique_name("reader"),
                "isolation.level": isolation,
                "enable.auto.commit": False,
            }
        )
        self._consumer.assign(
            [confluent_kafka.TopicPartition(topic, each, 0) for each in range(PARTITIONS)]
        )

    def poll(self, timeout_s: float) -> bool:
        message = self._consumer.poll(timeout_s)
        if message is None or message.error() is not None:
            return False
        value = message.value()
        assert value is not None
        self.seen.append(value.decode())
        return True

    def until(self, *values: str) -> None:
        """These are read, in any order, and nothing else."""
        end_s = time.monotonic() + PATIENCE_S
        while len(self.seen) < len(values) and time.monotonic() < end_s:
            self.poll(0.2)
        while self.poll(0.5):
            pass
        assert sorted(self.seen) == sorted(values)

    def close(self) -> None:
        self._consumer.close()


def test_committed_records_are_read_and_aborted_ones_are_not(cluster: Cluster, topic: str) -> None:
    writer = producer(cluster, unique_name("id"))
    for number in range(5):
        writer.begin_transaction()
        kind = "aborted" if number % 2 else "committed"
        write(writer, topic, *(f"{kind} {number}-{at}" for at in range(6)))
        if number % 2:
            assert writer.flush(PATIENCE_S) == 0
            writer.abort_transaction(PATIENCE_S)
        else:
            writer.commit_transaction(PATIENCE_S)
    committed = [f"committed {number}-{at}" for number in (0, 2, 4) for at in range(6)]
    aborted = [f"aborted {number}-{at}" for number in (1, 3) for at in range(6)]
    reader, everything = Reader(cluster, topic), Reader(cluster, topic, "read_uncommitted")
    reader.until(*committed)
    everything.until(*committed, *aborted)
    reader.close()
    everything.close()


def test_an_open_transaction_is_not_read(cluster: Cluster, topic: str) -> None:
    writer, reader = producer(cluster, unique_name("id")), Reader(cluster, topic)
    writer.begin_transaction()
    write(writer, topic, "a", "b", "c")
    assert writer.flush(PATIENCE_S) == 0
    assert not reader.poll(2)
    writer.commit_transaction(PATIENCE_S)
    reader.until("a", "b", "c")
    reader.close()


def test_a_new_producer_fences_the_old_one_and_aborts_its_transaction(
    cluster: Cluster, topic: str
) -> None:
    name = unique_name("id")
    zombie = producer(cluster, name)
    zombie.begin_transaction()
    write(zombie, topic, "zombie 1", "zombie 2")
    assert zombie.flush(PATIENCE_S) == 0
    successor = producer(cluster, name)
    successor.begin_transaction()
    write(successor, topic, "successor")
    successor.commit_transaction(PATIENCE_S)
    with pytest.raises(confluent_kafka.KafkaException) as fenced:
        zombie.commit_transaction(PATIENCE_S)
    assert fenced.value.args[0].code() in (
        confluent_kafka.KafkaError._FENCED,
        confluent_kafka.KafkaError.PRODUCER_FENCED,
        confluent_kafka.KafkaError.INVALID_PRODUCER_EPOCH,
    )
    reader = Reader(cluster, topic)
    reader.until("successor")
    reader.close()


def test_t8_a_transaction_that_times_out_is_aborted_and_readers_go_on(
    cluster: Cluster, topic: str
) -> None:
    slow = producer(cluster, unique_name("slow"), transaction_timeout_ms=2_000)
    slow.begin_transaction()
    write(slow, topic, "slow 1", "slow 2", "slow 3")
    assert slow.flush(PATIENCE_S) == 0
    other = producer(cluster, unique_name("other"))
    other.begin_transaction()
    write(other, topic, "a", "b", "c")
    other.commit_transaction(PATIENCE_S)
    reader = Reader(cluster, topic)
    reader.until("a", "b", "c")
    reader.close()
    with pytest.raises(confluent_kafka.KafkaException):
        slow.commit_transaction(PATIENCE_S)


def test_offsets_are_committed_together_with_the_output(cluster: Cluster, topic: str) -> None:
    group, output = unique_name("copier"), cluster.create_topic(unique_name("copy"), PARTITIONS)
    source = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers})
    write(source, topic, *(str(number) for number in range(30)))
    assert source.flush(PATIENCE_S) == 0
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    copier = producer(cluster, unique_name("id"))
    copied, end_s = 0, time.monotonic() + PATIENCE_S
    while copied < 30 and time.monotonic() < end_s:
        messages = consumer.consume(7, 0.5)
        if not messages:
            continue
        copier.begin_transaction()
        for message in messages:
            assert message.error() is None
            copier.produce(output, message.value(), partition=message.partition())
        offsets = consumer.position(consumer.assignment())
        copier.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), PATIENCE_S)
        copier.commit_transaction(PATIENCE_S)
        copied += len(messages)
    committed = consumer.committed(
        [confluent_kafka.TopicPartition(topic, each) for each in range(PARTITIONS)], PATIENCE_S
    )
    assert [each.offset for each in committed] == [10] * PARTITIONS
    consumer.close()
    reader = Reader(cluster, output)
    reader.until(*(str(number) for number in range(30)))
    reader.close()


def test_transactions_go_on_while_brokers_are_killed(cluster: Cluster, topic: str) -> None:
    if len(cluster.brokers) == 1:
        pytest.skip("nobody takes over")
    writer = producer(cluster, unique_name("id"), transaction_timeout_ms=60_000)
    committed = []
    for number in range(9):
        if number % 3 == 1:
            cluster.kill(number // 3 + 1)
        elif number % 3 == 2:
            cluster.restart(number // 3 + 1)
            cluster.wait_until_healthy()
        values = [f"{number}-{at}" for at in range(6)]
        writer.begin_transaction()
        write(writer, topic, *values)
        try:
            commit(writer)
        except confluent_kafka.KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            writer.abort_transaction(PATIENCE_S)
        else:
            committed += values
    assert committed
    reader = Reader(cluster, topic)
    reader.until(*committed)
    reader.close()


def commit(writer: confluent_kafka.Producer) -> None:
    """Retried for as long as librdkafka says that it may be."""
    end_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            writer.commit_transaction(PATIENCE_S)
        except confluent_kafka.KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > end_s:
                raise
        else:
            return


def test_aiokafka_commits_and_aborts_records_and_offsets(cluster: Cluster, topic: str) -> None:
    """It adds the offsets of a group before it looks for the group's coordinator."""
    group = unique_name("group")

    async def produce() -> None:
        writer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap_servers, transactional_id=unique_name("id")
        )
        await writer.start()
        for number, kind in enumerate(("committed", "aborted", "committed", "aborted")):
            await writer.begin_transaction()
            for at in range(PARTITIONS):
                await writer.send(topic, f"{kind} {number}-{at}".encode(), partition=at)
            offsets = {aiokafka.TopicPartition(topic, 0): 10 + number}
            await writer.send_offsets_to_transaction(offsets, group)
            if kind == "aborted":
                await writer.abort_transaction()
            else:
                await writer.commit_transaction()
        await writer.stop()

    asyncio.run(asyncio.wait_for(produce(), PATIENCE_S))
    reader = Reader(cluster, topic)
    reader.until(*(f"committed {number}-{at}" for number in (0, 2) for at in range(PARTITIONS)))
    reader.close()
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "group.id": group}
    )
    (committed,) = consumer.committed([confluent_kafka.TopicPartition(topic, 0)], PATIENCE_S)
    assert committed.offset == 12
    consumer.close()


def test_kafka_python_commits_and_aborts(cluster: Cluster, topic: str) -> None:
    writer = kafka.KafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers, transactional_id=unique_name("id")
    )
    writer.init_transactions()
    for number, kind in enumerate(("committed", "aborted", "committed", "aborted")):
        writer.begin_transaction()
        for at in range(PARTITIONS):
            writer.send(topic, f"{kind} {number}-{at}".encode(), partition=at)
        writer.flush()
        if kind == "aborted":
            writer.abort_transaction()
        else:
            writer.commit_transaction()
    writer.close()
    reader = Reader(cluster, topic)
    reader.until(*(f"committed {number}-{at}" for number in (0, 2) for at in range(PARTITIONS)))
    reader.close()
