"""A copier in its own process: it consumes, transforms and produces in transactions.

`python -m chaos.copier KIND ID NAME SERVERS SOURCE TARGET PARTITIONS FIRST` copies until its
standard input ends. The records of a batch go to several partitions, in one transaction with the
group's offsets; some transactions are aborted on purpose. `Copy` is what a copied record says of
its transaction.
Invariant: after a transaction that has not certainly been committed, a copier reads on where its
group has committed; who else had its partitions is fenced by then.
"""

import asyncio
import faulthandler
import logging
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from chaos.journal import key_in, number_of

_RECORDS_MAX = 100
_POLL_S = 0.2
_ABORT_CHANCE = 0.05
_SESSION_MS = 6_000
_HEARTBEAT_MS = 1_000
TRANSACTION_TIMEOUT_MS = 10_000
_TRANSACTION_S_MAX = TRANSACTION_TIMEOUT_MS // 1_000
"""Its coordinator has aborted it by then."""
_RETRY_S = 0.5


class Record(NamedTuple):
    """Of the source."""

    partition: int
    offset: int
    value: bytes


class Copy(NamedTuple):
    """Of a record, as one of `size` in its transaction."""

    transaction: str
    size: int
    aborts: bool
    """The copier aborts the transaction on purpose."""
    value: bytes

    def encode(self) -> bytes:
        about = f"{self.transaction} {self.size} {int(self.aborts)} "
        return about.encode() + self.value

    @classmethod
    def decode(cls, copied: bytes) -> "Copy":
        transaction, size, aborts, value = copied.split(b" ", 3)
        return cls(transaction.decode(), int(size), aborts == b"1", value)


def target_partition(value: bytes, partitions: int) -> int:
    """By the number that a record's writer gave it; the first for what no writer has sent."""
    return number_of(key_in(value) or 0) % partitions


class Batch(NamedTuple):
    """What one transaction copies."""

    copies: list[tuple[int, bytes]]
    """Target partitions and values."""
    offsets: dict[int, int]
    """By source partition where to read on afterwards."""
    aborts: bool


def batch_of(records: Sequence[Record], transaction: str, targets: range, *, aborts: bool) -> Batch:
    copies = [
        (
            targets[target_partition(record.value, len(targets))],
            Copy(transaction, len(records), aborts, record.value).encode(),
        )
        for record in records
    ]
    return Batch(copies, {record.partition: record.offset + 1 for record in records}, aborts)


class Copier(Protocol):
    async def poll(self) -> list[Record]:
        """Those of one transaction."""

    async def copy(self, batch: Batch) -> None:
        """Commit, or abort on purpose. An error leaves open what has become of it."""

    async def recover(self) -> None:
        """End the transaction and read on where the group has committed."""


class About(NamedTuple):
    transactional_id: str
    servers: str
    group: str
    source: str
    target: str
    security: Mapping[str, str] = {}
    """Settings of librdkafka, to log in."""


class Librdkafka:
    """If a seek meets the answer to a ListOffsets that is on its way, its consumer begins half a
    second later at the start again (2.16.1, `rd_kafka_toppar_handle_Offset` of an outdated answer):
    hence `_read_on`."""

    def __init__(self, about: About) -> None:
        from confluent_kafka import Consumer

        self._about = about
        self._consumer = Consumer(
            {
                "bootstrap.servers": about.servers,
                "group.id": about.group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "session.timeout.ms": _SESSION_MS,
                "heartbeat.interval.ms": _HEARTBEAT_MS,
                **about.security,
            }
        )
        self._group: Any = None
        self._read_on: dict[int, int] = {}
        """By partition of the source what this copier's seeks and commits since it was assigned
        say: records before it are not wanted again."""
        self._consumer.subscribe([about.source], on_assign=self._assigned)
        self._producer: Any = None

    def _assigned(self, _consumer: object, _assigned: object) -> None:
        self._read_on.clear()
        # Not later: who is expelled unawares would commit with a generation that is not fenced.
        self._group = self._consumer.consumer_group_metadata()

    def _new_producer(self) -> None:
        from confluent_kafka import Producer

        self._producer = None
        producer = Producer(
            {
                "bootstrap.servers": self._about.servers,
                "transactional.id": self._about.transactional_id,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                **self._about.security,
            }
        )
        self._until_not_retriable(lambda: producer.init_transactions(30))
        self._producer = producer

    def _until_not_retriable(self, call: Callable[[], object]) -> None:
        from confluent_kafka import KafkaException

        while True:
            try:
                call()
                return
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise

    async def poll(self) -> list[Record]:
        if self._producer is None:
            self._new_producer()
        messages = self._consumer.consume(_RECORDS_MAX, _POLL_S)
        records = [Record(m.partition(), m.offset(), m.value()) for m in messages if not m.error()]
        return [each for each in records if each.offset >= self._read_on.get(each.partition, 0)]

    async def copy(self, batch: Batch) -> None:
        from confluent_kafka import TopicPartition

        producer, about = self._producer, self._about
        producer.begin_transaction()
        for partition, value in batch.copies:
            producer.produce(about.target, value, partition=partition)
        offsets = [TopicPartition(about.source, *place) for place in batch.offsets.items()]
        self._until_not_retriable(
            lambda: producer.send_offsets_to_transaction(offsets, self._group)
        )
        if batch.aborts:
            self._until_not_retriable(producer.abort_transaction)
            self._rewind()
        else:
            self._until_not_retriable(producer.commit_transaction)
            self._read_on.update(batch.offsets)

    async def recover(self) -> None:
        from confluent_kafka import KafkaException

        if self._producer is not None:
            try:
                self._until_not_retriable(self._producer.abort_transaction)
            except KafkaException:
                self._new_producer()
        self._rewind()

    def _rewind(self) -> None:
        for each in self._consumer.committed(self._consumer.assignment(), timeout=30):
            if each.error is not None:
                raise RuntimeError(str(each.error))
            each.offset = max(each.offset, 0)
            self._consumer.seek(each)
            self._read_on[each.partition] = each.offset


@contextmanager
def _limited(seconds: int = _TRANSACTION_S_MAX) -> Iterator[None]:
    """Raises TimeoutError after that time, also within a call that blocks."""

    def stop(_signal: int, _frame: object) -> None:
        raise TimeoutError(f"not done after {seconds} s")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


class KafkaPython:
    """If a connection to a coordinator is refused, its producer forgets what it wanted to send and
    waits for ever (3.0.12, `Sender._maybe_send_pending_request`): hence the time limits."""

    def __init__(self, about: About) -> None:
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            import kafka

        copier = self

        class Listener(kafka.ConsumerRebalanceListener):  # type: ignore[misc]
            def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
                pass

            def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
                copier._group = copier._consumer.group_metadata()  # As of `Librdkafka`.

        self._about = about
        self._group: Any = None
        self._kafka = kafka
        self._consumer = kafka.KafkaConsumer(
            bootstrap_servers=about.servers,
            group_id=about.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
            session_timeout_ms=_SESSION_MS,
            heartbeat_interval_ms=_HEARTBEAT_MS,
        )
        self._consumer.subscribe([about.source], listener=Listener())
        self._producer: Any = None

    def _new_producer(self) -> None:
        old, self._producer = self._producer, None
        if old is not None:
            with _limited():
                old.close(timeout=0)
        with _limited():
            producer = self._kafka.KafkaProducer(
                bootstrap_servers=self._about.servers,
                transactional_id=self._about.transactional_id,
                transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            )
            try:
                producer.init_transactions()
            except BaseException:
                producer.close(timeout=0)
                raise
        self._producer = producer

    async def poll(self) -> list[Record]:
        if self._producer is None:
            self._new_producer()
        polled = self._consumer.poll(int(_POLL_S * 1000), max_records=_RECORDS_MAX)
        return [Record(r.partition, r.offset, r.value) for each in polled.values() for r in each]

    async def copy(self, batch: Batch) -> None:
        with _limited():
            self._copy(batch)
        if batch.aborts:
            self._rewind()

    def _copy(self, batch: Batch) -> None:
        from kafka.structs import OffsetAndMetadata, TopicPartition

        producer, about = self._producer, self._about
        producer.begin_transaction()
        for partition, value in batch.copies:
            producer.send(about.target, value, partition=partition)
        offsets = {
            TopicPartition(about.source, partition): OffsetAndMetadata(offset, "", -1)
            for partition, offset in batch.offsets.items()
        }
        producer.send_offsets_to_transaction(offsets, self._group)
        if batch.aborts:
            producer.abort_transaction()
        else:
            producer.commit_transaction()

    async def recover(self) -> None:
        self._new_producer()
        self._rewind()

    def _rewind(self) -> None:
        for each in self._consumer.assignment():
            self._consumer.seek(each, self._consumer.committed(each) or 0)


class Aiokafka:
    """This client's producer does not know of generations: a producer for each partition of the
    source fences the one that had the partition before. A transaction copies of one partition."""

    def __init__(self, about: About) -> None:
        self._about = about
        self._consumer: Any = None
        self._producers: dict[int, Any] = {}
        self._is_new: set[int] = set()
        """Partitions that were assigned, and are not read before they have a producer."""
        self._polled: list[list[Record]] = []

    async def _start(self) -> None:
        import aiokafka

        copier = self

        class Listener(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
            def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
                pass

            def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
                copier._is_new = {each.partition for each in assigned}

        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=self._about.servers,
            group_id=self._about.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
            session_timeout_ms=_SESSION_MS,
            heartbeat_interval_ms=_HEARTBEAT_MS,
        )
        await consumer.start()
        consumer.subscribe([self._about.source], listener=Listener())
        self._consumer = consumer

    async def _new_producer(self, partition: int) -> None:
        """End what was open in this partition, and read on where it is committed."""
        import aiokafka
        from aiokafka.structs import TopicPartition

        old = self._producers.pop(partition, None)
        if old is not None:
            await _stop(old)
        source = TopicPartition(self._about.source, partition)
        if source not in self._consumer.assignment():
            return
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=self._about.servers,
            transactional_id=f"{self._about.group}-{partition}",
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
        )
        try:
            await asyncio.wait_for(producer.start(), 30)
            self._consumer.seek(source, await self._consumer.committed(source) or 0)
        except BaseException:
            await _stop(producer)
            raise
        self._producers[partition] = producer

    async def poll(self) -> list[Record]:
        if self._consumer is None:
            await self._start()
        await self._renew()
        if not self._polled:
            wait_ms = int(_POLL_S * 1000)
            polled = await self._consumer.getmany(timeout_ms=wait_ms, max_records=_RECORDS_MAX)
            self._polled = [
                [Record(r.partition, r.offset, r.value) for r in each] for each in polled.values()
            ]
        while self._polled and not self._is_new:
            records = self._polled.pop()
            if records[0].partition in self._producers:
                return records
        return []

    async def _renew(self) -> None:
        """New producers for the partitions that have been assigned, or that have had an error."""
        while is_new := self._is_new:
            partition = min(is_new)
            self._polled = [each for each in self._polled if each[0].partition != partition]
            await self._new_producer(partition)
            is_new.discard(partition)  # It may have been assigned once more meanwhile.

    async def copy(self, batch: Batch) -> None:
        from aiokafka.structs import TopicPartition

        ((partition, offset),) = batch.offsets.items()
        producer, about = self._producers[partition], self._about
        try:
            await producer.begin_transaction()
            sent = [
                await producer.send(about.target, value, partition=target)
                for target, value in batch.copies
            ]
            await asyncio.gather(*sent)
            source = TopicPartition(about.source, partition)
            await producer.send_offsets_to_transaction({source: offset}, about.group)
            if batch.aborts:
                await producer.abort_transaction()
            else:
                await producer.commit_transaction()
        except BaseException:
            self._is_new.add(partition)
            raise
        if batch.aborts:
            self._is_new.add(partition)

    async def recover(self) -> None:
        await self._renew()


async def _stop(producer: Any) -> None:
    """A producer whose errors do not matter any more."""
    try:
        await asyncio.wait_for(producer.stop(), 5)
    except Exception as error:
        print(f"stopping a producer: {error!r}", file=sys.stderr, flush=True)


KINDS: dict[str, type[Librdkafka] | type[KafkaPython] | type[Aiokafka]] = {
    "librdkafka": Librdkafka,
    "kafka-python": KafkaPython,
    "aiokafka": Aiokafka,
}


async def copy_all(
    copier: Copier, name: str, targets: range, is_over: Callable[[], bool], chance: random.Random
) -> None:
    number, is_lost = 0, False
    while not is_over():
        try:
            if is_lost:
                await copier.recover()
                is_lost = False
            records = await copier.poll()
            if not records:
                continue
            number += 1
            is_lost = True
            aborts = chance.random() < _ABORT_CHANCE
            await copier.copy(batch_of(records, f"{name}/{number}", targets, aborts=aborts))
            is_lost = False
        except Exception as error:
            print(f"{name}/{number}: {error!r}", file=sys.stderr, flush=True)
            await asyncio.sleep(_RETRY_S)


def main() -> None:
    kind, transactional_id, name, servers, source, target, partitions, first = sys.argv[1:]
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    faulthandler.register(signal.SIGUSR1)  # Where it is stuck.
    over = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.buffer.read()
        over.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    copier = KINDS[kind](About(transactional_id, servers, kind, source, target))

    async def run() -> None:
        targets = range(int(first), int(first) + int(partitions))
        await copy_all(copier, name, targets, over.is_set, random.Random(name))

    asyncio.run(run())


if __name__ == "__main__":
    main()
