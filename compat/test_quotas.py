"""Client quotas: Apache Kafka answers the same requests as Suwi does, and its clients obey them."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, ThrottleEvent

from compat.kafka import KafkaServer, run_java
from tests.broker.test_client_quotas import (
    CHECKS,
    INVALID_REQUEST,
    REFUSED,
    Entity,
    alter,
    check_descriptions,
    describe,
    eventually,
)
from tests.broker_process import BrokerProcess
from tests.raw_client import RawClient


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    server = KafkaServer(tmp_path_factory.mktemp("kafka"), heap="512m")
    server.format()
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.mark.parametrize(("entity", "quotas"), REFUSED)
def test_apache_kafka_refuses_the_same(
    kafka: KafkaServer, entity: Entity, quotas: dict[str, Any]
) -> None:
    with RawClient(kafka.address) as root:
        assert alter(root, entity, **quotas) == INVALID_REQUEST


def test_apache_kafka_describes_the_same(kafka: KafkaServer) -> None:
    with RawClient(kafka.address) as root:
        check_descriptions(root)


@pytest.mark.parametrize("check", CHECKS)
def test_apache_kafka_throttles_the_same(kafka: KafkaServer, check: str) -> None:
    with RawClient(kafka.address) as root, RawClient(kafka.address, check) as client:
        CHECKS[check](root, client, check)


# -- clients and a broker of Suwi, for a minute ----------------------------------------------------

RATE = 1_000_000
RECORDS, RECORD_BYTES = 60_000, 1_000
PRODUCER, CONSUMER = "perf-producer-client", "perf-consumer-client"
"""The client ids of Kafka's performance tools."""


@pytest.fixture
def quotas(suwi: BrokerProcess) -> Iterator[None]:
    with RawClient(suwi.address) as root:
        assert alter(root, {"client-id": PRODUCER}, producer_byte_rate=RATE) == 0
        assert alter(root, {"client-id": CONSUMER}, consumer_byte_rate=RATE) == 0
        for name in (PRODUCER, CONSUMER):
            eventually(partial(describe, root, ("client-id", 0, name)), 1)
        yield
        alter(root, {"client-id": PRODUCER}, producer_byte_rate=None)
        alter(root, {"client-id": CONSUMER}, consumer_byte_rate=None)


def throttled_ms(printed: str, metric: str) -> float:
    """The largest value of a metric that a tool has printed."""
    return max(map(float, re.findall(rf"{metric}-max\S*\s*:[^:\n]*?([\d.]+)\s*$", printed, re.M)))


@pytest.mark.usefixtures("quotas")
def test_javas_clients_keep_within_their_quotas_for_a_minute(
    suwi: BrokerProcess, topic: str
) -> None:
    how = ("--bootstrap-server", suwi.address, "--topic", topic, "--print-metrics")
    how += ("--num-records", str(RECORDS))
    sized = ("--record-size", str(RECORD_BYTES), "--throughput", "-1")
    printed = run_java("org.apache.kafka.tools.ProducerPerformance", *how, *sized, time_s=300)
    records_per_s = float(re.findall(r"records sent, ([\d.]+) records/sec", printed)[-1])
    assert records_per_s * RECORD_BYTES == pytest.approx(RATE, rel=0.1)
    assert throttled_ms(printed, "produce-throttle-time") > 0
    patient = ("--timeout", "60000", "--hide-header")
    printed = run_java("org.apache.kafka.tools.ConsumerPerformance", *how, *patient, time_s=300)
    (figures,) = (line for line in printed.splitlines() if f", {RECORDS}, " in line)
    records_per_s = float(figures.split(", ")[-1])
    assert records_per_s * RECORD_BYTES == pytest.approx(RATE, rel=0.1)
    assert throttled_ms(printed, "fetch-throttle-time") > 0


class Throttled(list[float]):
    """The throttle times that the broker has told a client of librdkafka."""

    def __call__(self, event: ThrottleEvent) -> None:
        self.append(event.throttle_time)


def bytes_per_s(work: Callable[[], None]) -> float:
    began_s = time.monotonic()
    work()
    return RECORDS * RECORD_BYTES / (time.monotonic() - began_s)


def send(address: str, topic: str, client_id: str, throttled: Throttled, times: int = 1) -> None:
    """`times` as much as a client with a quota sends in a minute."""
    failed: list[KafkaError] = []

    def told(error: KafkaError | None, _message: object) -> None:
        if error is not None:
            failed.append(error)

    where = {"bootstrap.servers": address, "client.id": client_id}
    patience = {"request.timeout.ms": 120_000, "message.timeout.ms": 240_000}
    producer = Producer({**where, **patience, "throttle_cb": throttled})
    for _ in range(RECORDS * times):
        while True:
            try:
                producer.produce(topic, bytes(RECORD_BYTES), on_delivery=told)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(240) == 0
    assert failed == []


def receive(address: str, topic: str, client_id: str, throttled: Throttled) -> None:
    where = {"bootstrap.servers": address, "client.id": client_id, "group.id": client_id}
    how = {"auto.offset.reset": "earliest", "throttle_cb": throttled}
    with closing(Consumer({**where, **how})) as consumer:
        consumer.subscribe([topic])
        count = 0
        while count < RECORDS:
            for message in consumer.consume(1_000, 10):
                assert message.error() is None
                count += 1


@pytest.mark.usefixtures("quotas")
def test_librdkafkas_clients_keep_within_their_quotas_for_a_minute_and_others_are_not_slowed(
    suwi: BrokerProcess, topic: str
) -> None:
    other, others_end = f"{topic}-other", list[float]()
    with RawClient(suwi.address) as root:
        root.create_topic(other)
    unthrottled, throttled = Throttled(), Throttled()

    def send_freely() -> None:
        send(suwi.address, other, "free", unthrottled, times=5)
        others_end.append(time.monotonic())

    beside = threading.Thread(target=send_freely)
    beside.start()
    rate = bytes_per_s(lambda: send(suwi.address, topic, PRODUCER, throttled))
    ended_s = time.monotonic()
    beside.join()
    assert rate == pytest.approx(RATE, rel=0.1)
    assert max(throttled) > 0
    assert others_end[0] < ended_s  # with five times as much
    throttled.clear()
    rate = bytes_per_s(lambda: receive(suwi.address, topic, CONSUMER, throttled))
    assert rate == pytest.approx(RATE, rel=0.1)
    assert max(throttled) > 0
    assert not any(unthrottled)
