"""A leader is killed under load: how long until another leads, and until a produce works again.

Three brokers of the test kit, one topic with three replicas, a producer that sends a record every
few milliseconds with acks=all. The leader is killed as by `kill -9`: its connections break and
its port refuses new ones. Apache Kafka would need three JVMs for this; by default it notices
a killed broker after nine seconds (`broker.session.timeout.ms`).
"""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from confluent_kafka import KafkaError, Message, Producer

from bench.clients import Metrics
from bench.measure import Figure, take_turns
from bench.plan import Plan
from bench.servers import SUWI
from suwi.testing import Cluster

JOB = "death of a leader until a produce is acknowledged again, librdkafka, 3 replicas"
_TOPIC = "orders"
_PAUSE_S = 0.002
_PATIENCE_S = 60


def measure(plan: Plan, _brokers: tuple[str, ...]) -> list[Figure]:
    with Cluster(brokers=3) as cluster:
        cluster.create_topic(_TOPIC, partitions=1, replication_factor=3)
        runs = {SUWI: lambda: _kill_once(cluster)}
        return take_turns(JOB, runs, 2 * plan.repetitions)


def _kill_once(cluster: Cluster) -> Metrics:
    # A new producer each time: one whose broker was killed waits longer and longer before it
    # connects to that one again.
    with _Stream(cluster.bootstrap_servers).running() as stream:
        leader = cluster.wait_leader(_TOPIC)
        # Its timers have a period of a second: each kill is at another moment of it.
        stream.acknowledged_of(time.perf_counter() + random.uniform(0.5, 1.5))
        killed = time.perf_counter()
        cluster.kill(leader)
        while cluster.wait_leader(_TOPIC) == leader:
            pass
        led = time.perf_counter()
        acknowledged = stream.acknowledged_of(killed)
    cluster.restart(leader)
    cluster.wait_until_healthy()
    return {"leader_ms": (led - killed) * 1000, "first_ack_ms": (acknowledged - killed) * 1000}


class _Stream:
    """Sends records without end, and finds when those of a certain moment were acknowledged."""

    def __init__(self, servers: str) -> None:
        self._producer = Producer({"bootstrap.servers": servers, "log_level": 3})
        self._news = threading.Condition()
        self._last_sent = self._last_acknowledged = 0.0
        self._ends = threading.Event()

    @contextmanager
    def running(self) -> Iterator["_Stream"]:
        sender = threading.Thread(target=self._send)
        sender.start()
        try:
            yield self
        finally:
            self._ends.set()
            sender.join()
            self._producer.flush(_PATIENCE_S)

    def acknowledged_of(self, moment: float) -> float:
        """When the first record that was sent after this moment was acknowledged."""
        with self._news:
            if not self._news.wait_for(lambda: self._last_sent > moment, _PATIENCE_S):
                raise RuntimeError("no acknowledgements any more")
            return self._last_acknowledged

    def _send(self) -> None:
        while not self._ends.is_set():
            told = partial(self._delivered, time.perf_counter())
            self._producer.produce(_TOPIC, b"x", on_delivery=told)
            self._producer.poll(_PAUSE_S)

    def _delivered(self, sent: float, error: KafkaError | None, _message: Message) -> None:
        if error is None:
            with self._news:
                self._last_sent, self._last_acknowledged = sent, time.perf_counter()
                self._news.notify_all()
