"""A common interface to all client libraries.

A `Driver` produces and consumes with the client's own API and exchanges `Record`s with the test.
Consumers always get explicit partitions and offsets.
"""

import asyncio
import shutil
import subprocess
import warnings
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import closing
from itertools import groupby
from typing import Any, ClassVar, TypeVar

import aiokafka
import confluent_kafka
import pytest
from aiokafka.structs import TopicPartition as AioTopicPartition
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, TopicPartition

from suwi.model.ids import NO_TIMESTAMP
from suwi.records.record import Record

with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
    # kafka-python reads its schemas with a call that is deprecated in Python 3.11.
    import kafka
    from kafka.structs import TopicPartition as PythonTopicPartition

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
EARLIEST, LATEST = -2, -1
PATIENCE_S = 120
_REQUEST_BYTES_MAX = 8 << 20
_T = TypeVar("_T")


class Driver(ABC):
    name: ClassVar[str]

    def can_send(self, record: Record) -> bool:
        """Whether the client can represent this record."""
        return True

    @property
    def sets_timestamps(self) -> bool:
        return True

    @abstractmethod
    def produce(
        self,
        address: str,
        topic: str,
        records: Sequence[Record],
        *,
        partition: int = 0,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> None:
        """Send the records and wait until all are acknowledged. Raises if one fails."""

    @abstractmethod
    def consume(
        self, address: str, counts: Mapping[str, int], *, offset: int = 0, partition: int = 0
    ) -> dict[str, list[Record]]:
        """The given number of records of each topic, from the same offset on, or from EARLIEST."""

    @abstractmethod
    def offset_at(self, address: str, topic: str, timestamp: int, partition: int = 0) -> int | None:
        """The first offset at or after a timestamp, EARLIEST or LATEST; None if there is none."""


class Confluent(Driver):
    name = "confluent-kafka"

    def produce(
        self,
        address: str,
        topic: str,
        records: Sequence[Record],
        *,
        partition: int = 0,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> None:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": address,
                "compression.type": codec,
                "acks": acks,
                "enable.idempotence": idempotent,
                "linger.ms": 20,
                "message.max.bytes": _REQUEST_BYTES_MAX,
            }
        )
        errors: list[Any] = []
        for record in records:
            producer.produce(
                topic,
                partition=partition,
                key=record.key,
                value=record.value,
                headers=list(record.headers),
                timestamp=max(record.timestamp, 0),  # 0 means now
                on_delivery=lambda error, _: errors.append(error),
            )
        assert producer.flush(PATIENCE_S) == 0
        _raise_first(confluent_kafka.KafkaException(error) for error in errors if error is not None)

    def consume(
        self, address: str, counts: Mapping[str, int], *, offset: int = 0, partition: int = 0
    ) -> dict[str, list[Record]]:
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": address, "group.id": "none", "enable.auto.commit": False}
        )
        found: dict[str, list[Record]] = {topic: [] for topic in counts}
        with closing(consumer):
            consumer.assign([TopicPartition(topic, partition, offset) for topic in counts])
            while not _is_complete(found, counts):
                message = consumer.poll(PATIENCE_S)
                assert message is not None, f"no record arrived after {found}"
                if message.error() is not None:
                    raise confluent_kafka.KafkaException(message.error())
                found[message.topic()].append(_from_confluent(message))
        return _cut(found, counts)

    def offset_at(self, address: str, topic: str, timestamp: int, partition: int = 0) -> int | None:
        consumer = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": "none"})
        with closing(consumer):
            if timestamp < 0:
                assigned = TopicPartition(topic, partition)
                ends = consumer.get_watermark_offsets(assigned, timeout=PATIENCE_S)
                return ends[0] if timestamp == EARLIEST else ends[1]
            asked = [TopicPartition(topic, partition, timestamp)]
            (found,) = consumer.offsets_for_times(asked, timeout=PATIENCE_S)
            return found.offset if found.offset >= 0 else None


def _from_confluent(message: Any) -> Record:
    kind, timestamp = message.timestamp()
    return Record(
        message.offset(),
        NO_TIMESTAMP if kind == TIMESTAMP_NOT_AVAILABLE else timestamp,
        message.key(),
        message.value(),
        tuple(message.headers() or ()),
    )


class KafkaPython(Driver):
    name = "kafka-python"

    def produce(
        self,
        address: str,
        topic: str,
        records: Sequence[Record],
        *,
        partition: int = 0,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> None:
        producer = kafka.KafkaProducer(
            bootstrap_servers=address,
            compression_type=None if codec == "none" else codec,
            acks=acks if acks == "all" else int(acks),
            enable_idempotence=idempotent,
            linger_ms=20,
            max_request_size=_REQUEST_BYTES_MAX,
        )
        with closing(producer):
            futures = [
                producer.send(
                    topic,
                    partition=partition,
                    key=record.key,
                    value=record.value,
                    headers=list(record.headers),
                    timestamp_ms=None if record.timestamp < 0 else record.timestamp,
                )
                for record in records
            ]
            for future in futures:
                future.get(PATIENCE_S)

    def can_send(self, record: Record) -> bool:
        has_null_header = any(value is None for _, value in record.headers)
        return not has_null_header and (record.key, record.value) != (None, None)

    def consume(
        self, address: str, counts: Mapping[str, int], *, offset: int = 0, partition: int = 0
    ) -> dict[str, list[Record]]:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=address, group_id=None, enable_auto_commit=False
        )
        found: dict[str, list[Record]] = {topic: [] for topic in counts}
        with closing(consumer):
            consumer.assign([PythonTopicPartition(topic, partition) for topic in counts])
            for assigned in consumer.assignment():
                if offset == EARLIEST:
                    consumer.seek_to_beginning(assigned)
                else:
                    consumer.seek(assigned, offset)
            while not _is_complete(found, counts):
                polled = consumer.poll(PATIENCE_S * 1000)
                assert polled, f"no record arrived after {found}"
                _collect(found, polled)
        return _cut(found, counts)

    def offset_at(self, address: str, topic: str, timestamp: int, partition: int = 0) -> int | None:
        asked = PythonTopicPartition(topic, partition)
        with closing(kafka.KafkaConsumer(bootstrap_servers=address, group_id=None)) as consumer:
            if timestamp == EARLIEST:
                return consumer.beginning_offsets([asked])[asked]
            if timestamp == LATEST:
                return consumer.end_offsets([asked])[asked]
            found = consumer.offsets_for_times({asked: timestamp})[asked]
            return None if found is None else found.offset


class AioKafka(Driver):
    name = "aiokafka"

    def can_send(self, record: Record) -> bool:
        return (record.key, record.value) != (None, None)

    def produce(
        self,
        address: str,
        topic: str,
        records: Sequence[Record],
        *,
        partition: int = 0,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> None:
        async def run() -> None:
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=address,
                compression_type=None if codec == "none" else codec,
                acks=acks if acks == "all" else int(acks),
                enable_idempotence=idempotent,
                linger_ms=20,
                max_request_size=_REQUEST_BYTES_MAX,
            )
            await producer.start()
            try:
                futures = [
                    await producer.send(
                        topic,
                        partition=partition,
                        key=record.key,
                        value=record.value,
                        headers=list(record.headers),
                        timestamp_ms=None if record.timestamp < 0 else record.timestamp,
                    )
                    for record in records
                ]
                await asyncio.wait_for(asyncio.gather(*futures), PATIENCE_S)
            finally:
                await producer.stop()

        asyncio.run(run())

    def consume(
        self, address: str, counts: Mapping[str, int], *, offset: int = 0, partition: int = 0
    ) -> dict[str, list[Record]]:
        found: dict[str, list[Record]] = {topic: [] for topic in counts}

        async def run(consumer: aiokafka.AIOKafkaConsumer) -> None:
            assigned = [AioTopicPartition(topic, partition) for topic in counts]
            consumer.assign(assigned)
            for each in assigned:
                if offset == EARLIEST:
                    await consumer.seek_to_beginning(each)
                else:
                    consumer.seek(each, offset)
            while not _is_complete(found, counts):
                fetched = await consumer.getmany(timeout_ms=PATIENCE_S * 1000)
                assert fetched, f"no record arrived after {found}"
                _collect(found, fetched)

        with_aiokafka_consumer(address, run)
        return _cut(found, counts)

    def offset_at(self, address: str, topic: str, timestamp: int, partition: int = 0) -> int | None:
        asked = AioTopicPartition(topic, partition)

        async def look_up(consumer: aiokafka.AIOKafkaConsumer) -> int | None:
            if timestamp == EARLIEST:
                return (await consumer.beginning_offsets([asked]))[asked]
            if timestamp == LATEST:
                return (await consumer.end_offsets([asked]))[asked]
            found = (await consumer.offsets_for_times({asked: timestamp}))[asked]
            return None if found is None else found.offset

        return with_aiokafka_consumer(address, look_up)


def with_aiokafka_consumer(
    address: str, use: Callable[[aiokafka.AIOKafkaConsumer], Awaitable[_T]], **settings: Any
) -> _T:
    async def run() -> _T:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=address, group_id=None, enable_auto_commit=False, **settings
        )
        await consumer.start()
        try:
            return await asyncio.wait_for(use(consumer), PATIENCE_S)
        finally:
            await consumer.stop()

    return asyncio.run(run())


class Kcat(Driver):
    """librdkafka's command line. Messages are lines; nulls and headers apply to a whole run."""

    name = "kcat"

    def __init__(self) -> None:
        found = shutil.which("kcat")
        if found is None:
            pytest.skip("kcat is not installed (Debian and Homebrew call the package kcat)")
        self._kcat = found

    @property
    def sets_timestamps(self) -> bool:
        return False

    def can_send(self, record: Record) -> bool:
        fields = [field for field in (record.key, record.value) if field is not None]
        is_text = all(field.isascii() and not set(field) & set(b"\n\t") for field in fields)
        headers_are_text = all((value or b"").isascii() for _, value in record.headers)
        has_empty = b"" in fields or (record.key, record.value) == (None, None)
        return is_text and headers_are_text and not has_empty

    def produce(
        self,
        address: str,
        topic: str,
        records: Sequence[Record],
        *,
        partition: int = 0,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> None:
        settings = {
            "acks": acks,
            "enable.idempotence": str(idempotent).lower(),
            "linger.ms": "20",
            "message.max.bytes": str(_REQUEST_BYTES_MAX),
        }
        options = [word for key, value in settings.items() for word in ("-X", f"{key}={value}")]
        for (headers, has_null), run in groupby(records, lambda r: (r.headers, r.value is None)):
            lines = b"".join(_kcat_line(record) for record in run)
            options_of_run = ["-Z"] if has_null else []
            for name, value in headers:
                options_of_run += ["-H", name if value is None else f"{name}={value.decode()}"]
            self._run(
                address,
                ["-P", "-t", topic, "-p", str(partition), "-K", "\t", "-z", codec],
                [*options, *options_of_run],
                lines,
            )

    def consume(
        self, address: str, counts: Mapping[str, int], *, offset: int = 0, partition: int = 0
    ) -> dict[str, list[Record]]:
        found = {}
        for topic, count in counts.items():
            start = "beginning" if offset == EARLIEST else str(offset)
            action = ["-C", "-t", topic, "-p", str(partition), "-o", start, "-c", str(count)]
            printed = self._run(address, action, ["-q", "-f", "%o %T %K %S %h\n%k%s\n"])
            found[topic] = list(_from_kcat(printed))
            assert len(found[topic]) == count
        return found

    def offset_at(self, address: str, topic: str, timestamp: int, partition: int = 0) -> int | None:
        printed = self._run(address, ["-Q", "-t", f"{topic}:{partition}:{timestamp}"], [])
        offset = int(printed.split()[-1])
        return offset if offset >= 0 else None

    def _run(
        self, address: str, action: Iterable[str], options: Iterable[str], stdin: bytes = b""
    ) -> bytes:
        ended = subprocess.run(
            [self._kcat, "-b", address, *action, *options],
            input=stdin,
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
        if ended.returncode or b"Delivery failed" in ended.stderr:
            raise RuntimeError(ended.stderr.decode())
        return ended.stdout


def _kcat_line(record: Record) -> bytes:
    key = b"" if record.key is None else record.key + b"\t"
    return key + (record.value or b"") + b"\n"


def _from_kcat(printed: bytes) -> Iterable[Record]:
    at = 0
    while at < len(printed):
        end = printed.index(b"\n", at)
        offset, timestamp, key_size, value_size, headers = printed[at:end].split(b" ", 4)
        at = end + 1
        fields: list[bytes | None] = []
        for size in (int(key_size), int(value_size)):
            fields.append(None if size < 0 else printed[at : at + size])
            at += max(size, 0)
        pairs = [pair.split(b"=", 1) for pair in headers.split(b",")] if headers else []
        yield Record(
            int(offset),
            int(timestamp),
            *fields,
            tuple((name.decode(), None if v == b"NULL" else v) for name, v in pairs),
        )
        at += 1


def _collect(found: dict[str, list[Record]], fetched: Mapping[Any, Iterable[Any]]) -> None:
    """kafka-python and aiokafka use the same attribute names for records."""
    for assigned, records in fetched.items():
        found[assigned.topic] += [
            Record(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in records
        ]


def _is_complete(found: Mapping[str, Sequence[Record]], counts: Mapping[str, int]) -> bool:
    return all(len(found[topic]) >= count for topic, count in counts.items())


def _cut(found: Mapping[str, list[Record]], counts: Mapping[str, int]) -> dict[str, list[Record]]:
    return {topic: found[topic][:count] for topic, count in counts.items()}


def _raise_first(errors: Iterable[Exception]) -> None:
    for error in errors:
        raise error


DRIVERS: dict[str, type[Driver]] = {
    driver.name: driver for driver in (Confluent, KafkaPython, AioKafka, Kcat)
}
