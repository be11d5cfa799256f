"""Helpers to write to a cluster and to read its records."""

import threading
import time
import warnings
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
    # kafka-python reads its schemas with a call that is deprecated in Python 3.11.
    from kafka import KafkaConsumer

PATIENCE_S = 120.0


def send(
    bootstrap_servers: str, topic: str, *values: str, acks: str = "all", timeout_s: float = 100
) -> list[KafkaError]:
    """Send to partition 0, or to `topic:N`. Returns the errors of unacknowledged records."""
    return send_with(make_producer(bootstrap_servers, acks, timeout_s), topic, *values)


def make_producer(bootstrap_servers: str, acks: str = "all", timeout_s: float = 100) -> Producer:
    return Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "acks": acks,
            "message.timeout.ms": int(timeout_s * 1000),
            "retry.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
    )


def send_with(producer: Producer, topic: str, *values: str) -> list[KafkaError]:
    """As `send`, with a producer that may be connected already."""
    name, _, partition = topic.partition(":")
    errors: list[KafkaError] = []
    for value in values:
        producer.produce(
            name,
            value,
            partition=int(partition or 0),
            on_delivery=lambda error, _: errors.append(error) if error is not None else None,
        )
    assert producer.flush(PATIENCE_S) == 0
    return errors


def read(bootstrap_servers: str, topic: str, end: int) -> list[str]:
    """All records below an offset, of partition 0, or of `topic:N`."""
    name, _, partition = topic.partition(":")
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "none",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(name, int(partition or 0), 0)])
    found: list[str] = []
    try:
        while len(found) < end:
            message = consumer.poll(PATIENCE_S)
            assert message is not None, f"no record arrived after {found}"
            if message.error() is None:
                found.append(message.value().decode())
            else:
                assert message.error().code() != KafkaError._PARTITION_EOF, f"no more than {found}"
        return found
    finally:
        consumer.close()


def subscribe(consumer: KafkaConsumer, topic: str) -> None:
    """Join the group only when the topic is known.

    Otherwise it assigns nothing and joins again when it hears of the topic. If a `poll` ends
    between the two answers of that second join, kafka-python 3.0 takes it for done: it has no
    partitions, sends no heartbeats, and stays so.
    """
    until(lambda: bool(consumer.partitions_for_topic(topic)))
    consumer.subscribe([topic])


def until(
    is_met: Callable[[], bool],
    explain: Callable[[], object] = lambda: "",
    *,
    timeout_s: float = PATIENCE_S,
) -> None:
    """Poll until a condition is true, for state without notifications such as a file."""
    deadline_s = time.monotonic() + timeout_s
    while not is_met():
        assert time.monotonic() < deadline_s, explain()
        threading.Event().wait(0.005)
