"""Real clients that write and read until a test stops them, through all faults of the cluster.

A `LongRunner` runs a writer and a reader in their own threads, with the API of the client, and
records their requests and results in a `History`.
"""

import asyncio
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import count
from typing import Any, ClassVar

import aiokafka
import confluent_kafka
from aiokafka.structs import TopicPartition as AioTopicPartition

from simulation.history import History, Reading, Write

with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
    # kafka-python reads its schemas with a call that is deprecated in Python 3.11.
    import kafka
    from kafka.structs import TopicPartition as PythonTopicPartition

PATIENCE_S = 120.0
_AT_ONCE = 4
_PAUSE_S = 0.01
_IN_FLIGHT_MAX = 100
_POLL_S = 0.05
_TIMEOUT_MS = 1_500
"""The timeout of a client for a broker that does not respond."""


class Progress:
    """The numbers of records sent and acknowledged so far."""

    def __init__(
        self, history: History, writer: str, partition: str, *, bypasses_silence: bool
    ) -> None:
        self.bypasses_silence = bypasses_silence
        """Whether it switches to another broker if one accepts requests but does not respond."""
        self.sent = 0
        self.settled = 0
        self.acked = 0
        self.errors: list[str] = []
        """What the client said of records that it gave up."""
        self.failure: BaseException | None = None
        """The error that ended the writer or the reader too early."""
        self._history = history
        self._writer = writer
        self._partition = partition
        self._changed = threading.Condition()
        self._numbers = count()

    @property
    def in_flight(self) -> int:
        return self.sent - self.settled

    def next(self) -> Write:
        value = f"{self._writer}-{next(self._numbers)}".encode()
        with self._changed:
            self.sent += 1
            self._changed.notify_all()
        return self._history.send(self._writer, self._partition, value, idempotent=True)

    def done(self, write: Write, offset: int | None, error: object = None) -> None:
        """`offset` is None if the client failed: it is unknown whether the record is stored."""
        with self._changed:
            self.settled += 1
            if offset is not None:
                write.acked(offset)
                self.acked += 1
            else:
                self.errors.append(f"{write.value!r}: {error}")
            self._changed.notify_all()

    def wait_acked(self, more: int) -> None:
        """Wait for this many more acknowledgements."""
        goal = self.acked + more
        self._wait(lambda: self.acked >= goal, lambda: f"{self.acked} acknowledged of {goal}")

    def wait_stuck(self, records: int) -> None:
        """Wait until this many records are sent but not acknowledged."""
        self._wait(lambda: self.in_flight >= records, lambda: f"{self.in_flight} in flight")

    def fail(self, error: BaseException) -> None:
        with self._changed:
            self.failure = self.failure or error
            self._changed.notify_all()

    def _wait(self, is_met: Callable[[], bool], explain: Callable[[], str]) -> None:
        with self._changed:
            done = self._changed.wait_for(lambda: self.failure or is_met(), PATIENCE_S)
        if self.failure is not None:
            raise self.failure
        assert done, explain()


class LongRunner(ABC):
    name: ClassVar[str]
    bypasses_silence: ClassVar[bool] = True

    def __init__(self, address: str, topic: str, history: History) -> None:
        self.address = address
        self.topic = topic
        self.progress = Progress(
            history, self.name, f"{topic}-0", bypasses_silence=self.bypasses_silence
        )
        self.reading: Reading = history.reader(self.name)
        self.reading.start_at(f"{topic}-0", 0)
        self.end: int | None = None
        """The end offset for the reader, once it is known."""
        self._stop = threading.Event()
        self._position = 0

    @contextmanager
    def running(self) -> Iterator[Progress]:
        """Write and read in the block; then the writer has finished and the reader continues."""
        self._writer = self._begin(self.write)
        self._reader = self._begin(self.read)
        try:
            yield self.progress
        finally:
            self._stop.set()
            self._writer.join(PATIENCE_S)
        self._raise_failure()
        assert not self._writer.is_alive(), f"{self.progress.in_flight} records have no outcome"

    def read_up_to(self, end: int) -> None:
        """Wait until the reader has reached the end offset."""
        self.end = end
        self._reader.join(PATIENCE_S)
        self._raise_failure()
        assert not self._reader.is_alive(), f"{self.name} reads at {self._position} of {end}"
        self.reading.finished()

    def _begin(self, work: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                self.progress.fail(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def _raise_failure(self) -> None:
        if self.progress.failure is not None:
            raise self.progress.failure

    def saw(self, offset: int, value: bytes) -> None:
        self.reading.saw(f"{self.topic}-0", offset, value)
        self._position = offset + 1

    @property
    def has_read_all(self) -> bool:
        return self.end is not None and self._position >= self.end

    def may_send(self) -> Iterator[int]:
        """Yields how many records to send now, until the test stops the writer."""
        while not self._stop.wait(_PAUSE_S):
            yield _AT_ONCE if self.progress.in_flight < _IN_FLIGHT_MAX else 0

    @abstractmethod
    def write(self) -> None: ...

    @abstractmethod
    def read(self) -> None: ...


class Confluent(LongRunner):
    name = "confluent-kafka"

    def write(self) -> None:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.address,
                "enable.idempotence": True,
                "acks": "all",
                "socket.timeout.ms": _TIMEOUT_MS,
                "request.timeout.ms": _TIMEOUT_MS,
                "retry.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "topic.metadata.refresh.interval.ms": 500,
                "log_level": 0,
            }
        )
        for records in self.may_send():
            for _ in range(records):
                write = self.progress.next()
                producer.produce(
                    self.topic, write.value, partition=0, on_delivery=self._delivered(write)
                )
            producer.poll(0)
        producer.flush(PATIENCE_S)

    def _delivered(self, write: Write) -> Callable[[Any, Any], None]:
        return lambda error, message: self.progress.done(
            write, message.offset() if error is None else None, error
        )

    def read(self) -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": "none",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 100,
                "fetch.error.backoff.ms": 20,
                "socket.timeout.ms": _TIMEOUT_MS,
                "reconnect.backoff.max.ms": 200,
                "topic.metadata.refresh.interval.ms": 500,
                "auto.offset.reset": "error",
                "log_level": 0,
            }
        )
        with closing(consumer):
            consumer.assign([confluent_kafka.TopicPartition(self.topic, 0, 0)])
            while not self.has_read_all:
                message = consumer.poll(_POLL_S)
                if message is not None and message.error() is None:
                    self.saw(message.offset(), message.value())


class KafkaPython(LongRunner):
    name = "kafka-python"

    def write(self) -> None:
        producer = kafka.KafkaProducer(
            bootstrap_servers=self.address,
            enable_idempotence=True,
            acks="all",
            request_timeout_ms=_TIMEOUT_MS,
            retry_backoff_ms=20,
            reconnect_backoff_max_ms=200,
            metadata_max_age_ms=500,
        )
        with closing(producer):
            for records in self.may_send():
                for _ in range(records):
                    write = self.progress.next()
                    future = producer.send(self.topic, write.value, partition=0)
                    future.add_callback(self._stored(write))
                    future.add_errback(self._failed(write))
            producer.flush(PATIENCE_S)

    def _stored(self, write: Write) -> Callable[[Any], None]:
        return lambda metadata: self.progress.done(write, metadata.offset)

    def _failed(self, write: Write) -> Callable[[Any], None]:
        return lambda _: self.progress.done(write, None)

    def read(self) -> None:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=self.address,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            fetch_max_wait_ms=100,
            request_timeout_ms=_TIMEOUT_MS,
            retry_backoff_ms=20,
            reconnect_backoff_max_ms=200,
            metadata_max_age_ms=500,
        )
        with closing(consumer):
            assigned = PythonTopicPartition(self.topic, 0)
            consumer.assign([assigned])
            consumer.seek(assigned, 0)
            while not self.has_read_all:
                for messages in consumer.poll(_POLL_S * 1000).values():
                    for message in messages:
                        self.saw(message.offset, message.value)


class AioKafka(LongRunner):
    name = "aiokafka"
    # aiokafka drops a batch that is older than the request timeout, which breaks the sequence of
    # all later ones. So the timeout is long, and so is the wait for a broker that is unresponsive.
    bypasses_silence = False

    def write(self) -> None:
        asyncio.run(self._write())

    async def _write(self) -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=self.address,
            enable_idempotence=True,
            acks="all",
            request_timeout_ms=int(PATIENCE_S * 1000),
            retry_backoff_ms=20,
            metadata_max_age_ms=500,
        )
        await producer.start()
        try:
            while not self._stop.is_set():
                await asyncio.sleep(_PAUSE_S)
                if self.progress.in_flight < _IN_FLIGHT_MAX:
                    for _ in range(_AT_ONCE):
                        write = self.progress.next()
                        future = await producer.send(self.topic, write.value, partition=0)
                        future.add_done_callback(self._delivered(write))
            await producer.flush()
        finally:
            await producer.stop()

    def _delivered(self, write: Write) -> Callable[[Any], None]:
        return lambda future: self.progress.done(
            write, future.result().offset if future.exception() is None else None
        )

    def read(self) -> None:
        asyncio.run(self._read())

    async def _read(self) -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=self.address,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            fetch_max_wait_ms=100,
            request_timeout_ms=_TIMEOUT_MS,
            retry_backoff_ms=20,
            metadata_max_age_ms=500,
        )
        await consumer.start()
        try:
            assigned = AioTopicPartition(self.topic, 0)
            consumer.assign([assigned])
            consumer.seek(assigned, 0)
            while not self.has_read_all:
                for messages in (await consumer.getmany(timeout_ms=int(_POLL_S * 1000))).values():
                    for message in messages:
                        self.saw(message.offset, message.value)
        finally:
            await consumer.stop()


CLIENTS: tuple[type[LongRunner], ...] = (Confluent, KafkaPython, AioKafka)
