"""How a follower that truncates, and one that returns, affect the loop: three brokers on one loop.

Brokers 1 and 2 have the replicas, broker 3 has the small producer's topic. Apache Kafka would need
three JVMs for this, so it is not measured.
"""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from bench.admin import Admin
from bench.beside import Recorders, beside, take_all
from bench.clients import Metrics
from bench.clients.sockets import Wire
from bench.measure import Figure
from bench.messages import base_offset, batch_of, produce_request
from bench.plan import KIB, StallPlan
from bench.recorders import Recorder, idle_heartbeat, pinger, watched_cluster
from bench.servers import SUWI
from bench.works import pipeline
from suwi.records.builder import build_batch
from suwi.records.record import Record

_LEADER, _FOLLOWER, _OTHER = 1, 2, 3
_PING_TOPIC = "ping"
_ALL, _LEADER_ONLY = -1, 1
_CUT_OFF = 100  # batches that only the old leader has
_AT_ONCE = 5_000
_BATCH_BYTES = 16 * KIB
# A follower that is cut off stays in sync long enough to be elected.
_SETTINGS = {"replica.lag.time.max.ms": "60000"}


def truncation_job(plan: StallPlan) -> str:
    return f"follower truncates, {plan.truncated:,} small batches stay"


def recovery_job(plan: StallPlan) -> str:
    return f"follower fetches {plan.recovered_mb} MB in {plan.recovered_partitions} partitions"


def measure(plan: StallPlan) -> list[Figure]:
    with _brokers(plan) as brokers:
        return [
            *take_all(truncation_job(plan), SUWI, plan, brokers.truncate),
            *take_all(recovery_job(plan), SUWI, plan, brokers.recover),
        ]


@dataclass
class _Brokers:
    plan: StallPlan
    cluster: Recorder
    addresses: list[str]
    recorders: Recorders
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def truncate(self) -> tuple[Metrics, str]:
        """A leader with records that no follower has is stopped for a while, then follows.

        Its log ends a little later than the new leader's. To truncate it, the broker has to rebuild
        the producer state of what stays.
        """
        topic = self._new_topic(1)
        with Admin(self._address(_LEADER)) as leader:
            producer = leader.new_producer()
        count = self.plan.truncated
        self._produce_small(_LEADER, topic, producer, range(count), _ALL)
        self.cluster.do("partition", [_LEADER], [_FOLLOWER])
        self._produce_small(_LEADER, topic, producer, range(count, count + _CUT_OFF), _LEADER_ONLY)
        self.cluster.do("pause", _LEADER)
        self.cluster.do("wait_leader", topic, 0, _FOLLOWER)
        self.cluster.do("heal")
        self._produce_small(_FOLLOWER, topic, producer, range(count, count + 1), _LEADER_ONLY)

        def resume() -> None:
            self.cluster.do("resume", _LEADER)
            self.cluster.do("wait_until_healthy")

        result = beside(self.recorders, resume, self.plan.section_s_min)
        self.cluster.do("delete_topic", topic)
        return result

    def recover(self) -> tuple[Metrics, str]:
        """A follower is killed, much is written, and it returns."""
        partitions = self.plan.recovered_partitions
        topic = self._new_topic(partitions)
        self.cluster.do("kill", _FOLLOWER)
        batch, _ = batch_of(_BATCH_BYTES)
        each = self.plan.recovered_mb * 1_000_000 // _BATCH_BYTES // partitions
        with Wire(self._address(_LEADER)) as wire:
            for partition in range(partitions):
                request = produce_request(topic, batch, _LEADER_ONLY, partition)
                wire.first_produce(request)
                if each:
                    assert base_offset(pipeline(wire, [request] * each)) is not None

        def come_back() -> None:
            self.cluster.do("restart", _FOLLOWER)
            self.cluster.do("wait_until_healthy")

        result = beside(self.recorders, come_back, self.plan.section_s_min)
        self.cluster.do("delete_topic", topic)
        return result

    def _new_topic(self, partitions: int) -> str:
        """Led by broker 1, followed by broker 2."""
        topic = f"replicated-{next(self._numbers)}"
        with Admin(self._address(_LEADER)) as admin:
            admin.create({topic: partitions}, replicas=[_LEADER, _FOLLOWER])
        for partition in range(partitions):
            self.cluster.do("wait_leader", topic, partition, _LEADER)
        return topic

    def _produce_small(
        self, broker: int, topic: str, producer: tuple[int, int], sequences: range, acks: int
    ) -> None:
        """One record in each batch; the last one waits for the others."""
        with Wire(self._address(broker)) as wire:
            for at in range(0, len(sequences), _AT_ONCE):
                requests = (
                    produce_request(topic, _small(producer, sequence), acks)
                    for sequence in sequences[at : at + _AT_ONCE]
                )
                assert base_offset(pipeline(wire, requests)) is not None

    def _address(self, broker: int) -> str:
        return self.addresses[broker - 1]


def _small(producer: tuple[int, int], sequence: int) -> bytes:
    record = Record(timestamp=1_000, value=b"x" * 100)
    number, epoch = producer
    made = build_batch([record], producer_id=number, producer_epoch=epoch, base_sequence=sequence)
    return bytes(made)


@contextmanager
def _brokers(plan: StallPlan) -> Iterator[_Brokers]:
    with watched_cluster(3, _SETTINGS) as (cluster, addresses):
        address = addresses[_OTHER - 1]
        with Admin(address) as admin:
            admin.create({_PING_TOPIC: 1}, replicas=[_OTHER])
        cluster.do("wait_leader", _PING_TOPIC, 0, _OTHER)
        with (
            pinger(address, _PING_TOPIC, plan.ping_every_s) as ping,
            idle_heartbeat() as idle,
        ):
            recorders = {"ping": ping, "loop": cluster, "idle": idle}
            yield _Brokers(plan, cluster, addresses, recorders)
