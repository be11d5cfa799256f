"""Client quotas: Apache Kafka answers the same requests as Suwi does, and its clients obey them."""

import asyncio
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, ThrottleEvent

from compat.kafka import KafkaServer, run_java
from suwi.client.addresses import parse_addresses
from suwi.client.cluster import Cluster
from suwi.client.quotas import BrokerUsages, ClientQuotas
from suwi.env import SystemRandom
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
from tests.broker.test_quotas_over_a_minute import Load
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
FREE_PER_S = 2_000
"""Records that a producer without a quota sends per second beside one with a quota."""
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


def perf(role: str, address: str, topic: str, records: int, *more: str) -> tuple[float, float]:
    """What one of Kafka's performance tools reached, in bytes per second, and the longest time for
    which it was throttled."""
    how = ("--bootstrap-server", address, "--topic", topic, "--num-records", str(records))
    tool = f"org.apache.kafka.tools.{role}Performance"
    printed = run_java(tool, *how, "--print-metrics", *more, time_s=300)
    if role == "Producer":
        per_s = float(re.findall(r"records sent, ([\d.]+) records/sec", printed)[-1])
        return per_s * RECORD_BYTES, throttled_ms(printed, "produce-throttle-time")
    (figures,) = (line for line in printed.splitlines() if f", {records}, " in line)
    per_s = float(figures.split(", ")[-1])
    return per_s * RECORD_BYTES, throttled_ms(printed, "fetch-throttle-time")


@pytest.mark.usefixtures("quotas")
def test_javas_clients_keep_within_their_quotas_for_a_minute_and_others_are_not_slowed(
    suwi: BrokerProcess, topic: str
) -> None:
    other, free = f"{topic}-other", ("--command-property", "client.id=free")
    with RawClient(suwi.address) as root:
        root.create_topic(other)
    sized = ("--record-size", str(RECORD_BYTES), "--throughput")
    patient = ("--timeout", "60000", "--hide-header")
    with ThreadPoolExecutor(1) as beside:
        unthrottled = beside.submit(
            perf, "Producer", suwi.address, other, 2 * RECORDS, *sized, str(FREE_PER_S), *free
        )
        rate, waited_ms = perf("Producer", suwi.address, topic, RECORDS, *sized, "-1")
        assert rate == pytest.approx(RATE, rel=0.1)
        assert waited_ms > 0
        rate, waited_ms = unthrottled.result()
        assert rate == pytest.approx(FREE_PER_S * RECORD_BYTES, rel=0.1)
        assert waited_ms == 0
        unthrottled = beside.submit(
            perf, "Consumer", suwi.address, other, 2 * RECORDS, *patient, *free
        )
        rate, waited_ms = perf("Consumer", suwi.address, topic, RECORDS, *patient)
        assert rate == pytest.approx(RATE, rel=0.1)
        assert waited_ms > 0
        rate, waited_ms = unthrottled.result()
        assert rate > FREE_PER_S * RECORD_BYTES
        assert waited_ms == 0


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


SHARE = 2.0
"""Percent of the time of the broker's loop: much less than the client asks for."""
COUNTED_LATE_S = 30
"""So long the count of the broker, in which older use fades, takes to settle."""


async def used_of_quota(address: str, client_id: str, seconds: int) -> list[float]:
    """What the broker counts of this client's request time, once a second."""
    used = []
    async with Cluster(parse_addresses(address), random=SystemRandom()) as client:
        for _ in range(seconds):
            await asyncio.sleep(1)
            (told,) = (await ClientQuotas(client).usages()).values()
            assert isinstance(told, BrokerUsages)
            used += [usage.used for usage in told.usages if usage.client_id == client_id]
    return used


def test_librdkafkas_producer_keeps_within_its_request_time_for_a_minute_and_others_are_not_slowed(
    suwi: BrokerProcess,
) -> None:
    timed, free = Load(suwi.address, "timed"), Load(suwi.address, "free")
    timed.settings |= {"batch.num.messages": 1, "max.in.flight": 5}  # many requests
    with RawClient(suwi.address) as root, ExitStack() as stack:
        root.create_topic("written")
        alter(root, {"client-id": "timed"}, request_percentage=SHARE)
        stack.callback(alter, root, {"client-id": "timed"}, request_percentage=None)
        eventually(partial(describe, root, ("client-id", 0, "timed")), 1)
        stack.enter_context(timed.running(timed.produce, 4 * RATE))
        stack.enter_context(free.running(free.produce, RATE))
        time.sleep(COUNTED_LATE_S)
        began_s, before, sent = time.monotonic(), free.bytes, timed.bytes
        used = asyncio.run(used_of_quota(suwi.address, "timed", 60))
        others_rate = (free.bytes - before) / (time.monotonic() - began_s)
        assert timed.bytes > sent
        assert len(used) == 60
        assert sum(used) / len(used) == pytest.approx(SHARE, rel=0.1)
        assert max(timed.throttled) > 0
        assert others_rate == pytest.approx(RATE, rel=0.1)
        assert free.throttled == []
