"""librdkafka's clients keep within their quotas for a minute, and others are not slowed."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from suwi.testing import Cluster
from tests.broker.test_client_quotas import alter, describe, eventually
from tests.raw_client import RawClient

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]
RATE = 1_000_000
FREE_RATE = 3 * RATE
"""What a client without a quota sends beside those with one."""
WARM_UP_S, MINUTE_S = 5, 60
_VALUE = bytes(1_000)
_PATIENCE_S = 120


class Load:
    """A client in a thread. `bytes` counts what was acknowledged, or read."""

    def __init__(self, address: str, client_id: str) -> None:
        self.bytes = 0
        self.throttled: list[float] = []
        self.settings: dict[str, Any] = {
            "bootstrap.servers": address,
            "client.id": client_id,
            "throttle_cb": lambda event: self.throttled.append(event.throttle_time),
        }
        self._over = threading.Event()

    def _delivered(self, error: object, message: Any) -> None:
        assert error is None or self._over.is_set(), error
        self.bytes += len(message.value())

    def produce(self, rate: float) -> None:
        """So many bytes a second, as far as the broker lets it."""
        producer = Producer({**self.settings, "queue.buffering.max.kbytes": 4_000})
        began_s, sent = time.monotonic(), 0
        while not self._over.is_set():
            producer.poll(0.01)
            while sent < (time.monotonic() - began_s) * rate and not self._over.is_set():
                try:
                    producer.produce("written", _VALUE, on_delivery=self._delivered)
                except BufferError:
                    break
                sent += len(_VALUE)
        producer.purge()
        producer.flush(_PATIENCE_S)

    def consume(self) -> None:
        consumer = Consumer({**self.settings, "group.id": "none", "enable.auto.commit": False})
        consumer.assign([TopicPartition("read", 0, 0)])
        with closing(consumer):
            while not self._over.is_set():
                for message in consumer.consume(500, 0.2):
                    assert message.error() is None, message.error()
                    self.bytes += len(message.value())

    @contextmanager
    def running(self, work: Any, *arguments: object) -> Iterator["Load"]:
        thread = threading.Thread(target=work, args=arguments)
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            thread.join()


def fill(address: str, size_bytes: int) -> None:
    producer = Producer({"bootstrap.servers": address})
    for _ in range(size_bytes // len(_VALUE)):
        while True:
            try:
                producer.produce("read", _VALUE, partition=0)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(_PATIENCE_S) == 0


def test_quotas_hold_for_a_minute_and_others_are_not_slowed() -> None:
    with Cluster(brokers=1) as running, ExitStack() as stack:
        address = running.bootstrap_servers
        root = stack.enter_context(RawClient(address))
        for topic in ("written", "read"):
            root.create_topic(topic)
        fill(address, 2 * RATE * (WARM_UP_S + MINUTE_S))
        alter(root, {"client-id": "writer"}, producer_byte_rate=RATE)
        alter(root, {"client-id": "reader"}, consumer_byte_rate=RATE)
        eventually(lambda: describe(root), 2)
        writer, reader, free = (Load(address, name) for name in ("writer", "reader", "free"))
        stack.enter_context(writer.running(writer.produce, 2 * RATE))
        stack.enter_context(reader.running(reader.consume))
        stack.enter_context(free.running(free.produce, FREE_RATE))
        time.sleep(WARM_UP_S)
        loads, began_s = (writer, reader, free), time.monotonic()
        before = [load.bytes for load in loads]
        time.sleep(MINUTE_S)
        after, took_s = [load.bytes for load in loads], time.monotonic() - began_s
    rates = [(end - start) / took_s for start, end in zip(before, after, strict=True)]
    wanted = [RATE, RATE, FREE_RATE]
    assert [rate for rate, most in zip(rates, wanted, strict=True) if rate > 1.1 * most] == []
    # A machine that does something else may be late; how close clients come to their quotas on a
    # quiet one is in `compat/test_quotas.py`.
    assert [rate for rate, most in zip(rates, wanted, strict=True) if rate < 0.5 * most] == []
    assert writer.throttled
    assert reader.throttled
    assert free.throttled == []
