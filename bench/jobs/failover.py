"""A leader is killed under load: how long until another leads, and until a produce works again.

Three brokers of the test kit, one topic with three replicas, a producer that sends a record every
few milliseconds with acks=all. The leader is killed as by `kill -9`: its connections break and
its port refuses new ones. Apache Kafka would need three JVMs for this; by default it notices
a killed broker after nine seconds (`broker.session.timeout.ms`). `cluster_failover` does the same
to processes.
"""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count

from confluent_kafka import KafkaError, Message, Producer

from bench.clients import Metrics
from bench.measure import Figure, take_turns
from bench.plan import Plan
from bench.servers import SUWI
from suwi.testing import Cluster

JOB = "death of a leader until a produce is acknowledged again, librdkafka, 3 replicas"
TOPIC = "orders"
_PAUSE_S = 0.002
_PATIENCE_S = 60


def measure(plan: Plan, _brokers: tuple[str, ...]) -> list[Figure]:
    with Cluster(brokers=3) as cluster:
        cluster.create_topic(TOPIC, partitions=1, replication_factor=3)
        runs = {SUWI: lambda: _kill_once(cluster)}
        return take_turns(JOB, runs, 2 * plan.repetitions)


def _kill_once(cluster: Cluster) -> Metrics:
    # A new producer each time: one whose broker was killed waits longer and longer before it
    # connects to that one again.
    with Stream(cluster.bootstrap_servers).running() as stream:
        leader = cluster.wait_leader(TOPIC)
        wait_a_while(stream)
        killed = time.perf_counter()
        stream.watch(killed)
        cluster.kill(leader)
        while cluster.wait_leader(TOPIC) == leader:
            pass
        led = time.perf_counter()
        acknowledged = stream.acknowledged()
    cluster.restart(leader)
    cluster.wait_until_healthy()
    return {"leader_ms": (led - killed) * 1000, "first_ack_ms": (acknowledged - killed) * 1000}


def wait_a_while(stream: "Stream") -> None:
    """Until records flow; its timers have a period of a second: a kill is at any moment of it."""
    stream.watch(time.perf_counter() + random.uniform(0.5, 1.5))
    stream.acknowledged()


class Stream:
    """Sends records to all partitions in turn, and finds when each takes writes again."""

    def __init__(self, servers: str, partitions: int = 1, **settings: object) -> None:
        more = {key.replace("_", "."): value for key, value in settings.items()}
        self._producer = Producer({"bootstrap.servers": servers, "log_level": 0, **more})
        self._partitions = partitions
        self._news = threading.Condition()
        self._since = 0.0
        self._firsts: dict[int, float] = {}
        """By partition: when the first record sent since then was acknowledged."""
        self._lasts: dict[int, float] = {}
        """By partition: when the last record was acknowledged."""
        self._silence_s = 0.0
        self._ends = threading.Event()

    @contextmanager
    def running(self) -> Iterator["Stream"]:
        sender = threading.Thread(target=self._send)
        sender.start()
        try:
            yield self
        finally:
            self._ends.set()
            sender.join()
            self._producer.flush(_PATIENCE_S)

    def watch(self, moment: float) -> None:
        """From now on look at records that are sent after this moment."""
        with self._news:
            self._since, self._firsts = moment, {}
            self._silence_s = 0.0

    def acknowledged(self) -> float:
        """When every partition had acknowledged a record that was sent after the moment."""
        with self._news:
            if not self._news.wait_for(lambda: len(self._firsts) == self._partitions, _PATIENCE_S):
                raise RuntimeError("no acknowledgements any more")
            return max(self._firsts.values())

    def silence_s(self) -> float:
        """The longest time since `watch` without an acknowledgement of a partition."""
        with self._news:
            return self._silence_s

    def _send(self) -> None:
        for number in count():
            if self._ends.is_set():
                return
            told = partial(self._delivered, time.perf_counter())
            partition = number % self._partitions
            self._producer.produce(TOPIC, b"x", partition=partition, on_delivery=told)
            self._producer.poll(_PAUSE_S)

    def _delivered(self, sent: float, error: KafkaError | None, message: Message) -> None:
        with self._news:
            if error is not None:
                return
            now, partition = time.perf_counter(), message.partition() or 0
            self._silence_s = max(self._silence_s, now - self._lasts.get(partition, now))
            self._lasts[partition] = now
            if sent > self._since:
                self._firsts.setdefault(partition, now)
                self._news.notify_all()
