"""Adoption of data directories: Suwi serves what Apache Kafka wrote, and the other way round.

The longest path is Kafka → Suwi → Kafka: filled and half compacted by Kafka, adopted, written and
compacted by Suwi, killed, recovered, and then started by Kafka again, which compacts it once more.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Producer

from compat.directories import (
    CODECS,
    Stored,
    check_files,
    cleaned_to,
    commit,
    committed,
    create,
    fill_idempotent,
    fill_transactions,
    read,
    records_in,
    survivors,
    wait_until,
    write_one,
)
from compat.kafka import KafkaServer, run_java
from tests.broker_process import BrokerProcess, environment

CONFIGS = "kafka.admin.ConfigCommand"

# About one record per segment, compacted at once on request.
COMPACTED = ("cleanup.policy=compact", "segment.ms=1", "min.cleanable.dirty.ratio=0.01")
KEPT, BURIED = "kept", "buried"
"""Compacted topics: one keeps tombstones for a day, one removes them in the next run."""


GROUP = "billing"


class Filled(NamedTuple):
    """A directory that Kafka has written, the server, and what its clients read of each topic."""

    kafka: KafkaServer
    expected: dict[str, list[Stored]]


def configure(address: str, topic: str, *configs: str) -> None:
    entity = ("--entity-type", "topics", "--entity-name", topic)
    run_java(
        CONFIGS,
        "--bootstrap-server",
        address,
        "--alter",
        *entity,
        "--add-config",
        ",".join(configs),
    )


def compact_by_writing(address: str, data: Path, topic: str) -> int:
    """Write a record that ends the active segment; its offset, once all before is compacted.

    Background compaction has nothing left to do afterwards.
    """
    write_one(address, topic, "last", "of the old segment")
    end = write_one(address, topic, "last", "of all")
    wait_until(lambda: cleaned_to(data, topic) >= end, f"{topic} to be compacted up to {end}")
    return end


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    kafka = KafkaServer(
        tmp_path_factory.mktemp("kafka"),
        log_cleaner_backoff_ms="100",
        log_segment_delete_delay_ms="100",
    )
    kafka.format()
    kafka.start()
    try:
        create(kafka.address, "codecs")
        fill_idempotent(kafka.address, "codecs")
        create(kafka.address, "txns")
        fill_transactions(kafka.address, "txns")
        create(kafka.address, KEPT, *COMPACTED)
        create(kafka.address, BURIED, *COMPACTED, "delete.retention.ms=0")
        for topic in (KEPT, BURIED):
            fill_idempotent(kafka.address, topic)
            fill_transactions(kafka.address, topic)
            wait_until(
                lambda topic=topic: cleaned_to(kafka.data, topic) > 0, f"Kafka to compact {topic}"
            )
            # From here on Kafka does not compact: something is left for us to do.
            configure(kafka.address, topic, "min.compaction.lag.ms=86400000")
            fill_transactions(kafka.address, topic)
            fill_idempotent(kafka.address, topic, keys=3)
        commit(kafka.address, GROUP, "codecs", 7)
        names = ("codecs", "txns", KEPT, BURIED)
        expected = {name: read(kafka.address, name) for name in names}
    finally:
        kafka.stop()
    return Filled(kafka, expected)


def adopted_copy(filled: Filled, tmp_path: Path) -> BrokerProcess:
    shutil.copytree(filled.kafka.data, tmp_path / "data")
    return BrokerProcess(tmp_path / "data", "log.cleaner.backoff.ms=50", options=["--adopt"])


# -- Kafka's directory, served by Suwi -----------------------------------------------------------


def test_suwi_dumps_what_kafka_wrote(filled: Filled) -> None:
    files = [
        str(file)
        for name in ("codecs-0", "txns-0", f"{KEPT}-0", f"{BURIED}-0")
        for file in sorted((filled.kafka.data / name).iterdir())
    ]
    files += [str(file) for file in filled.kafka.data.glob("*-checkpoint")]
    ended = subprocess.run(
        [sys.executable, "-c", "from suwi.cli.main import app; app()", "dump", "--records", *files],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr
    for seen in ("txn-0-0-0", "zstd-3-5", "COMMIT", "ABORT"):
        assert seen in ended.stdout


def test_suwi_serves_a_directory_of_kafkas(filled: Filled, tmp_path: Path) -> None:
    with adopted_copy(filled, tmp_path) as broker:
        for topic, expected in filled.expected.items():
            assert read(broker.address, topic) == expected
        assert len(read(broker.address, "txns", "read_uncommitted")) == 80
        assert len(filled.expected["txns"]) == 40
        write_one(broker.address, "codecs", "after", "adoption")
        broker.kill()
        broker.start()
        assert read(broker.address, "codecs")[:-1] == filled.expected["codecs"]
        assert read(broker.address, "txns") == filled.expected["txns"]
        broker.stop()


def test_groups_go_on_in_suwi_and_then_in_kafka_again(filled: Filled, tmp_path: Path) -> None:
    with adopted_copy(filled, tmp_path) as broker:
        assert committed(broker.address, GROUP, "codecs") == 7
        commit(broker.address, GROUP, "codecs", 9)
        commit(broker.address, "of suwi", "codecs", 3)
        broker.stop()
    kafka = filled.kafka.with_data(tmp_path / "data", tmp_path / "kafka")
    kafka.start()
    try:
        assert committed(kafka.address, GROUP, "codecs") == 9
        assert committed(kafka.address, "of suwi", "codecs") == 3
    finally:
        kafka.stop()


def test_suwi_recovers_a_directory_that_kafka_left_uncleanly(
    filled: Filled, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    shutil.copytree(filled.kafka.data, data)
    (data / ".kafka_cleanshutdown").unlink()
    for checkpoint in data.glob("*-checkpoint"):
        checkpoint.unlink()
    for index in data.glob("*/*.*index"):
        index.unlink()
    with (data / "codecs-0" / f"{0:020d}.log").open("ab") as segment:
        segment.write(b"torn")
    with BrokerProcess(data, options=["--adopt"]) as broker:
        for topic, expected in filled.expected.items():
            assert read(broker.address, topic) == expected
        # Kafka's compaction has left gaps; a second crash must not change them either.
        broker.kill()
        broker.start()
        for topic, expected in filled.expected.items():
            assert read(broker.address, topic) == expected
        broker.stop()


class Compacted(NamedTuple):
    """Kafka's directory after Suwi has written to it and compacted it, and stopped."""

    data: Path
    original: dict[str, list[Stored]]
    """What was committed before the compaction, including our own records."""
    ends: dict[str, int]
    uncommitted: dict[str, list[Stored]]
    """What `read_uncommitted` sees after it."""
    committed: dict[str, list[Stored]]


@pytest.fixture(scope="module")
def compacted(filled: Filled, tmp_path_factory: pytest.TempPathFactory) -> Compacted:
    broker = adopted_copy(filled, tmp_path_factory.mktemp("compacted"))
    original, ends, committed, uncommitted = {}, {}, {}, {}
    with broker:
        for topic in (KEPT, BURIED):
            fill_idempotent(broker.address, topic, keys=2)
            before = read(broker.address, topic)
            retention = "delete.retention.ms=" + ("0" if topic == BURIED else "86400000")
            configure(broker.address, topic, *COMPACTED, retention, "min.compaction.lag.ms=0")
            ends[topic] = compact_by_writing(broker.address, broker.data, topic)
            after = read(broker.address, topic)
            original[topic] = before + [r for r in after if r.offset > before[-1].offset]
        broker.kill()
        broker.start()
        for topic in (KEPT, BURIED):
            committed[topic] = read(broker.address, topic)
            uncommitted[topic] = read(broker.address, topic, "read_uncommitted")
        broker.stop()
    return Compacted(broker.data, original, ends, uncommitted, committed)


def test_suwi_compacts_a_directory_of_kafkas(filled: Filled, compacted: Compacted) -> None:
    assert len(filled.expected[KEPT]) > 100
    kept = compacted.committed[KEPT]
    assert kept == survivors(compacted.original[KEPT], compacted.ends[KEPT])
    assert any(record.value is None for record in kept)
    for topic in (KEPT, BURIED):
        # Nothing of an aborted transaction is left; readers see everything that is there.
        assert compacted.uncommitted[topic] == compacted.committed[topic]


def test_tombstones_of_kafkas_go_when_their_time_has_come(compacted: Compacted) -> None:
    newest = survivors(compacted.original[BURIED], compacted.ends[BURIED])
    buried = compacted.committed[BURIED]
    # One run gives a tombstone its horizon and a later one removes it; some have had one only.
    assert [r for r in buried if r.value is not None] == [r for r in newest if r.value is not None]
    assert sum(r.value is None for r in buried) <= sum(r.value is None for r in newest)


def test_kafkas_tool_reads_what_suwi_compacted(compacted: Compacted) -> None:
    for topic in (KEPT, BURIED):
        partition = compacted.data / f"{topic}-0"
        found = records_in(partition)
        assert [record.offset for record in found if record.marker is None] == [
            record.offset for record in compacted.uncommitted[topic]
        ]
        check_files(partition)
    checkpoint = compacted.data / "cleaner-offset-checkpoint"
    printed = run_java(str(Path(__file__).with_name("ReadCheckpoints.java")), str(checkpoint))
    for topic, end in compacted.ends.items():
        assert f"{checkpoint.name} {topic}-0 {end}" in printed.splitlines()


def test_kafka_goes_on_with_what_suwi_compacted(
    filled: Filled, compacted: Compacted, tmp_path: Path
) -> None:
    kafka = filled.kafka.with_data(compacted.data, tmp_path)
    kafka.start()
    try:
        assert read(kafka.address, "codecs") == filled.expected["codecs"]
        assert read(kafka.address, "txns") == filled.expected["txns"]
        for topic in (KEPT, BURIED):
            assert read(kafka.address, topic) == compacted.committed[topic]
        configure(kafka.address, KEPT, "min.compaction.lag.ms=0")
        fill_transactions(kafka.address, KEPT)
        fill_idempotent(kafka.address, KEPT, keys=5)
        before = read(kafka.address, KEPT)
        end = compact_by_writing(kafka.address, compacted.data, KEPT)
        after = read(kafka.address, KEPT)
        original = before + [r for r in after if r.offset > before[-1].offset]
        assert after == survivors(original, end)
    finally:
        kafka.stop()


# -- our directory, served by Kafka --------------------------------------------------------------


def test_kafka_adopts_and_compacts_what_suwi_wrote_and_compacted(tmp_path: Path) -> None:
    with BrokerProcess(
        tmp_path / "ours", "log.cleaner.backoff.ms=50", "log.segment.bytes=16384"
    ) as broker:
        create(broker.address, "orders")
        for codec in CODECS:
            producer = Producer({"bootstrap.servers": broker.address, "compression.type": codec})
            for i in range(500):
                producer.produce("orders", key=f"{codec}{i}", value=b"v" * 300)
            assert producer.flush(30) == 0
        create(broker.address, KEPT, *COMPACTED)
        fill_idempotent(broker.address, KEPT)
        compact_by_writing(broker.address, broker.data, KEPT)
        fill_idempotent(broker.address, KEPT, keys=3)
        expected = {topic: read(broker.address, topic) for topic in ("orders", KEPT)}
        broker.stop()
    for topic in expected:
        assert len(list((broker.data / f"{topic}-0").glob("*.log"))) > 1
        check_files(broker.data / f"{topic}-0")

    kafka = KafkaServer(
        tmp_path / "kafka", log_cleaner_backoff_ms="100", log_segment_delete_delay_ms="100"
    )
    kafka.format()
    kafka.start()
    create(kafka.address, "orders")
    create(kafka.address, KEPT, *COMPACTED, "min.compaction.lag.ms=86400000")
    kafka.stop()
    for topic in expected:
        _give(broker.data / f"{topic}-0", kafka.data / f"{topic}-0")
    for checkpoint in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        (kafka.data / checkpoint).unlink()
    (kafka.data / ".kafka_cleanshutdown").unlink(missing_ok=True)
    kafka.start()
    try:
        for topic in expected:
            assert read(kafka.address, topic) == expected[topic]
        configure(kafka.address, KEPT, "min.compaction.lag.ms=0")
        end = compact_by_writing(kafka.address, kafka.data, KEPT)
        after = read(kafka.address, KEPT)
        original = expected[KEPT] + [r for r in after if r.offset > expected[KEPT][-1].offset]
        assert after == survivors(original, end)
        assert len(after) < len(original)
    finally:
        kafka.stop()


def _give(ours: Path, theirs: Path) -> None:
    """Replace the files of their partition with ours; Kafka's topic id stays."""
    for old in theirs.iterdir():
        if old.name != "partition.metadata":
            old.unlink()
    for file in ours.iterdir():
        if file.name != "partition.metadata":
            shutil.copy(file, theirs)
