"""Data directories that both brokers use: what is written into them, and what they must contain.

`fill_compacted` writes everything a compacted topic may have; `survivors` is the model of
compaction; `records_in` and `check_files` read a partition's files with Kafka's own classes.
"""

import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from compat.kafka import run_java

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TOPICS = "org.apache.kafka.tools.TopicCommand"
DUMP = "org.apache.kafka.tools.DumpLogSegments"
_WAIT_S = 120


class Stored(NamedTuple):
    """A record as a reader gets it."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...]


# -- writing and reading through a broker --------------------------------------------------------


def create(address: str, topic: str, *configs: str) -> None:
    arguments = [part for config in configs for part in ("--config", config)]
    run_java(TOPICS, "--bootstrap-server", address, "--create", "--topic", topic, *arguments)


def commit(address: str, group: str, topic: str, offset: int) -> None:
    wanted = [TopicPartition(topic, 0, offset)]
    _of_group(address, group, lambda c: c.commit(offsets=wanted, asynchronous=False))


def committed(address: str, group: str, topic: str) -> int:
    wanted = [TopicPartition(topic, 0)]
    (found,) = _of_group(address, group, lambda c: c.committed(wanted, timeout=_WAIT_S))
    return int(found.offset)


def _of_group(address: str, group: str, ask: Callable[[Consumer], list[Any]]) -> list[Any]:
    """Again and again: the coordinator of a broker that was just started is not ready yet."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": group})
    answer: list[Any] = []

    def is_done() -> bool:
        try:
            answer[:] = ask(consumer)
        except KafkaException:
            return False
        return True

    try:
        wait_until(is_done, f"the coordinator of {group}")
    finally:
        consumer.close()
    return answer


def read(address: str, topic: str, isolation: str = "read_committed") -> list[Stored]:
    """Every visible record of partition 0, from the beginning to its present end."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found = []
    try:
        while True:
            message = consumer.poll(30)
            assert message is not None, "nothing came within the limit"
            if message.error() is not None:
                assert message.error().name() == "_PARTITION_EOF", message.error()
                return found
            found.append(_stored(message))
    finally:
        consumer.close()


def _stored(message: Message) -> Stored:
    headers = tuple(message.headers() or ())
    return Stored(message.offset(), message.key(), message.value(), message.timestamp()[1], headers)


def write_one(address: str, topic: str, key: str, value: str | None) -> int:
    """Write one record in its own batch; returns its offset.

    Without a producer id: Kafka assigns ids that are in use in logs which it did not write.
    """
    offsets = []
    producer = Producer({"bootstrap.servers": address})

    def delivered(error: object, message: Message) -> None:
        assert error is None, error
        offsets.append(message.offset())

    producer.produce(topic, key=key, value=value, partition=0, on_delivery=delivered)
    assert producer.flush(30) == 0
    return int(offsets[0])


def fill_idempotent(address: str, topic: str, keys: int = 7) -> None:
    """Every codec, batches of several records, headers, tombstones; each from its own producer."""
    for codec in CODECS:
        producer = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "compression.type": codec,
                "linger.ms": 50,
            }
        )
        for batch in range(4):
            for i in range(6):
                value = None if (batch, i) == (2, 3) else f"{codec}-{batch}-{i}".encode() * 20
                producer.produce(
                    topic,
                    key=f"k{(batch * 5 + i) % keys}",
                    value=value,
                    headers=[("codec", codec.encode())] if i % 2 else None,
                    partition=0,
                )
            assert producer.flush(30) == 0


def fill_transactions(address: str, topic: str) -> None:
    """Committed and aborted transactions: some keys are only in one of either kind."""
    for number, commits in enumerate([True, False, True, False]):
        producer = Producer(
            {
                "bootstrap.servers": address,
                "transactional.id": f"{topic}-{number % 2}",
                "compression.type": CODECS[number],
            }
        )
        producer.init_transactions(60)
        for attempt in range(2):
            producer.begin_transaction()
            for i in range(5):
                value = None if i == 4 else f"txn-{number}-{attempt}-{i}".encode()
                producer.produce(topic, key=f"k{number + i}", value=value, partition=0)
                producer.produce(topic, key=f"t{number}-{i}", value=value, partition=0)
            if commits:
                producer.commit_transaction(60)
            else:
                assert producer.flush(30) == 0
                producer.abort_transaction(60)


# -- the model of compaction ---------------------------------------------------------------------


def survivors(
    records: Iterable[Stored], cleaned_to: int, *, tombstones: bool = True
) -> list[Stored]:
    """Of each key only the newest record stays, up to the compacted offset."""
    records = list(records)
    newest = {record.key: record.offset for record in records if record.offset < cleaned_to}
    return [
        record
        for record in records
        if record.offset >= cleaned_to
        or (newest[record.key] == record.offset and (tombstones or record.value is not None))
    ]


def cleaned_to(data: Path, topic: str) -> int:
    """The offset up to which the topic's partition 0 is compacted, by the checkpoint."""
    try:
        lines = (data / "cleaner-offset-checkpoint").read_text().splitlines()[2:]
    except FileNotFoundError:
        return 0
    found = {(name, index): int(offset) for name, index, offset in map(str.split, lines)}
    return found.get((topic, "0"), 0)


def wait_until(reached: Callable[[], bool], what: str) -> None:
    limit = time.monotonic() + _WAIT_S
    while not reached():
        assert time.monotonic() < limit, f"timed out: {what}"
        time.sleep(0.05)


# -- reading the files with Kafka's classes ------------------------------------------------------


class Dumped(NamedTuple):
    offset: int
    marker: str | None
    """COMMIT or ABORT where it ends a transaction."""


_RECORD = re.compile(r"^\| offset: (\d+) .*?(?:endTxnMarker: (\w+) .*)?$", re.MULTILINE)


def records_in(partition: Path) -> list[Dumped]:
    """Every record of a partition's segments, in order; all batches are valid."""
    files = ",".join(str(file) for file in sorted(partition.glob("*.log")))
    printed = run_java(DUMP, "--deep-iteration", "--files", files)
    assert printed.count("isvalid: true") == printed.count("baseOffset:")
    return [Dumped(int(offset), marker or None) for offset, marker in _RECORD.findall(printed)]


def check_files(partition: Path) -> None:
    """Kafka's own tool finds no error in indexes, aborted transactions and producers."""
    for suffix in ("index", "timeindex", "txnindex", "snapshot"):
        files = [str(file) for file in sorted(partition.glob(f"*.{suffix}"))]
        if not files:
            continue
        printed = run_java(DUMP, "--files", ",".join(files))
        for complaint in ("Mismatches", "Found", "ERROR", "corrupt", "Exception"):
            assert complaint not in printed, printed
        if suffix == "index":
            printed = run_java(DUMP, "--index-sanity-check", "--files", ",".join(files))
            empty = sum(Path(file).stat().st_size == 0 for file in files)
            assert printed.count("passed sanity check") == len(files) - empty, printed
