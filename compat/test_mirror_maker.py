"""MirrorMaker 2 between two brokers of Suwi, and from Apache Kafka to Suwi and back."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from compat.kafka import JavaProcess, KafkaServer
from tests.broker_process import BrokerProcess

MIRROR_MAKER = "org.apache.kafka.connect.mirror.MirrorMaker"
COUNT, READ = 200, 120
TOPIC, GROUP = "orders", "billing"
PATIENCE_S = 180


@contextmanager
def mirrored(directory: Path, source: str, target: str) -> Iterator[JavaProcess]:
    """From the cluster `a` to `b`, with the offsets of its groups; topics get the prefix `a.`."""
    properties = directory / "mirror.properties"
    properties.write_text(
        f"""clusters = a, b
a.bootstrap.servers = {source}
b.bootstrap.servers = {target}
a->b.enabled = true
a->b.topics = {TOPIC}
b->a.enabled = false
replication.factor = 1
checkpoints.topic.replication.factor = 1
heartbeats.topic.replication.factor = 1
offset-syncs.topic.replication.factor = 1
offset.storage.replication.factor = 1
status.storage.replication.factor = 1
config.storage.replication.factor = 1
offset.lag.max = 0
sync.group.offsets.enabled = true
sync.group.offsets.interval.seconds = 1
emit.checkpoints.interval.seconds = 1
refresh.topics.interval.seconds = 2
refresh.groups.interval.seconds = 2
sync.topic.configs.interval.seconds = 2
dedicated.mode.enable.internal.rest = false
"""
    )
    with JavaProcess(directory / "mirror.log", MIRROR_MAKER, str(properties), heap="512m") as maker:
        yield maker


def write(servers: str, first: int, end: int) -> None:
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    for number in range(first, end):
        producer.produce(TOPIC, f"order {number}", key=str(number), partition=number % 2)
    assert producer.flush(PATIENCE_S) == 0


def read(servers: str, topic: str, count: int) -> list[str]:
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    found: list[str] = []
    while len(found) < count:
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        assert message.error() is None
        found.append(message.value().decode())
    positions = consumer.position(consumer.assignment())
    consumer.commit(offsets=positions, asynchronous=False)
    consumer.close()
    return found


def wait_until(maker: JavaProcess, what: str, holds: Callable[[], bool]) -> None:
    limit = time.monotonic() + PATIENCE_S
    while not holds():
        maker.check()
        assert time.monotonic() < limit, f"not in time: {what}; see {maker.output}"
        time.sleep(0.5)


def end_offsets(servers: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "none"})
    try:
        partitions = [TopicPartition(topic, index) for index in (0, 1)]
        return sum(consumer.get_watermark_offsets(tp, PATIENCE_S)[1] for tp in partitions)
    finally:
        consumer.close()


def committed(servers: str, topic: str) -> int:
    admin = AdminClient({"bootstrap.servers": servers})
    asked = ConsumerGroupTopicPartitions(
        GROUP, [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    )
    found = admin.list_consumer_group_offsets([asked])[GROUP].result(PATIENCE_S)
    return sum(max(0, partition.offset) for partition in found.topic_partitions)


def mirror(directory: Path, source: str, target: str) -> None:
    admin = AdminClient({"bootstrap.servers": source})
    admin.create_topics([NewTopic(TOPIC, 2, 1, config={"retention.ms": "7200000"})])[TOPIC].result(
        PATIENCE_S
    )
    write(source, 0, COUNT)
    before = read(source, TOPIC, READ)
    with mirrored(directory, source, target) as maker:
        there = AdminClient({"bootstrap.servers": target})
        copy = f"a.{TOPIC}"
        wait_until(maker, "the topic", lambda: copy in there.list_topics(timeout=60).topics)
        wait_until(maker, "records", lambda: end_offsets(target, copy) == COUNT)
        write(source, COUNT, 2 * COUNT)
        wait_until(maker, "newer records", lambda: end_offsets(target, copy) == 2 * COUNT)
        # Translated offsets are never too far on; how far they are back is not promised.
        wait_until(maker, "offsets", lambda: committed(target, copy) > 0)
    begin = committed(target, copy)
    assert begin <= READ
    after = read(target, copy, 2 * COUNT - begin)
    assert {*before, *after} == {f"order {number}" for number in range(2 * COUNT)}


def test_between_two_brokers_of_suwi(suwi: BrokerProcess, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "source") as source:
        mirror(tmp_path, source.address, suwi.address)


@pytest.mark.parametrize("from_kafka", [True, False], ids=["from Kafka", "to Kafka"])
def test_with_apache_kafka(tmp_path: Path, from_kafka: bool) -> None:
    kafka = KafkaServer(tmp_path / "kafka", heap="512m")
    kafka.format()
    kafka.start()
    try:
        with BrokerProcess(tmp_path / "suwi") as suwi:
            places = kafka.address, suwi.address
            mirror(tmp_path, *(places if from_kafka else places[::-1]))
    finally:
        kafka.stop()
