"""Logs to compact, and functions that inspect the result."""

from collections.abc import Iterable
from typing import NamedTuple

from suwi.log.compaction import Cleaned, CleanerPlan, clean, plan_cleaner_run
from suwi.log.partition_log import PartitionLog
from suwi.log.producer_snapshot import encode_snapshot
from suwi.log.sliced_work import run_steps
from suwi.model.ids import Offset
from suwi.model.topic_config import TopicConfig
from suwi.records.batch import BatchHeader
from suwi.records.builder import build_batch
from suwi.records.compression import Compression
from suwi.records.record import Record, iter_records
from tests.log.kit import NOW_MS, Bench, batches_in

COMPACT = TopicConfig(
    cleanup_policy=("compact",),
    segment_bytes=1024,
    index_interval_bytes=100,
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=1000,
)
MAP_BYTES = 1 << 20


class Seen(NamedTuple):
    """A record as a reader gets it."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int


def keyed(
    records: Iterable[tuple[bytes | None, bytes | None]],
    *,
    timestamp: int = NOW_MS,
    producer: tuple[int, int, int] = (-1, -1, -1),
    transactional: bool = False,
    codec: Compression = Compression.NONE,
    log_append_time_ms: int | None = None,
) -> bytearray:
    """A batch of keys and values; None is a tombstone."""
    producer_id, epoch, sequence = producer
    return build_batch(
        [
            Record(timestamp=timestamp + number, key=key, value=value, headers=(("h", b"1"),))
            for number, (key, value) in enumerate(records)
        ],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
        codec=codec,
        log_append_time_ms=log_append_time_ms,
    )


def put(bench: Bench, *records: tuple[str, str | None], roll: bool = False) -> None:
    """Append one batch, and optionally start a new segment after it."""
    pairs = [
        (key.encode(), value.encode() if value is not None else None) for key, value in records
    ]
    bench.append(keyed(pairs))
    if roll:
        bench.log.roll(bench.now_ms)


def plan(bench: Bench, *, stable: int | None = None) -> CleanerPlan | None:
    undecided = bench.log.producers.first_open_txn_offset
    limit = bench.log.end_offset if undecided is None else undecided
    return plan_cleaner_run(
        bench.log, Offset(limit if stable is None else min(stable, limit)), bench.now_ms
    )


def compact(bench: Bench, *, map_bytes: int = MAP_BYTES, remove: bool = True) -> Cleaned | None:
    """Compact the log; None if there is nothing to compact."""
    planned = plan(bench)
    if planned is None:
        return None
    done = Cleaned(planned.first_dirty, planned.first_dirty)
    deleted: list[str] = []
    run_steps(
        clean(
            planned,
            done,
            now_ms=bench.now_ms,
            map_bytes_max=map_bytes,
            remove_later=deleted.extend,
        )
    )
    for path in deleted if remove else ():
        if bench.disk.exists(path):
            bench.disk.remove(path)
    return done


def seen_in(log: PartitionLog) -> list[Seen]:
    """Every record that is not a marker, as `read_uncommitted` sees them."""
    return [
        Seen(record.offset, record.key, record.value, record.timestamp)
        for batch, header in batches_in(log)
        if not header.is_control
        for record in iter_records(batch, header)
        if record.offset >= log.start_offset
    ]


def keys_and_values(log: PartitionLog) -> list[tuple[str, str | None]]:
    return [
        ((seen.key or b"").decode(), None if seen.value is None else seen.value.decode())
        for seen in seen_in(log)
    ]


def markers_in(log: PartitionLog) -> list[BatchHeader]:
    return [header for _, header in batches_in(log) if header.is_control]


def producers_of(log: PartitionLog) -> list[tuple[int, int, int, int]]:
    """Id, epoch, last sequence and open transaction of each producer, as `check` uses them."""
    found = [
        (p.producer_id, p.epoch, p.last_sequence, p.txn_first_offset) for p in log.producers.all()
    ]
    assert encode_snapshot(log.producers.all())
    return sorted(found)


def compacted_bench(config: TopicConfig = COMPACT) -> Bench:
    return Bench(config=config)
