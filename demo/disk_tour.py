"""The files of a broker, read with Suwi's own modules while it runs or after it was killed."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from messages import TOPIC

from suwi.env import LocalDisk
from suwi.log import checkpoints, names
from suwi.log.file_cache import FileCache
from suwi.log.indexes import OffsetIndex, TimeIndex
from suwi.model.ids import Offset
from suwi.records.batch import BatchHeader, batches
from suwi.records.record import Record, iter_records

_OPEN_FILES_MAX = 16

IN_DATA_DIRECTORY = {
    names.META_PROPERTIES: "cluster id and broker id",
    names.LOCK: "prevents a second broker",
    names.HIGH_WATERMARKS: "the high watermark of each partition",
    names.RECOVERY_POINTS: "how far each log is synced",
    names.LOG_START_OFFSETS: "where logs start, if not at a segment",
    names.CLEAN_SHUTDOWN: "written at a clean shutdown",
    "suwi-metadata.sqlite": "Suwi's own: topics and leaders",
    "suwi-metadata.sqlite-wal": "its write-ahead journal",
}
IN_PARTITION = {
    names.LOG: "the batches, as they were sent",
    names.OFFSET_INDEX: "offset -> position in the .log",
    names.TIME_INDEX: "time -> offset",
    names.SNAPSHOT: "producers and their sequences",
    names.LEADER_EPOCHS: "the start offset of each epoch",
    names.PARTITION_METADATA: "the topic's id",
}


def listing(directory: Path, purposes: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    """Name, size and purpose of each file; a purpose is found by full name or by suffix."""
    for path in sorted(directory.iterdir()):
        if path.is_file():
            purpose = purposes.get(path.name) or purposes.get(path.suffix) or ""
            yield path.name, f"{path.stat().st_size:,}", purpose


def segments(partition: Path) -> list[Path]:
    return sorted(partition.glob(f"*{names.LOG}"))


def stored_batches(log: Path) -> Iterator[tuple[int, BatchHeader, bytes]]:
    """Each whole batch of a segment with its position."""
    data = log.read_bytes()
    for position, header in batches(data):
        yield position, header, data[position : position + header.size_bytes]


def stored_records(partition: Path) -> Iterator[Record]:
    for log in segments(partition):
        for _, header, batch in stored_batches(log):
            yield from iter_records(batch, header)


def first_batch(log: Path) -> tuple[BatchHeader, list[Record]]:
    _, header, batch = next(stored_batches(log))
    return header, list(iter_records(batch, header))


def header_rows(header: BatchHeader) -> list[tuple[str, str, str]]:
    """The most important fields, each with its purpose."""
    first, last = header.base_offset, header.last_offset
    return [
        ("base offset", f"{first}", "assigned by the broker"),
        ("length", f"{header.batch_length}", "bytes after this field"),
        ("leader epoch", f"{header.partition_leader_epoch}", "assigned by the broker, too"),
        ("CRC-32C", f"{header.crc:08x}", "the client's, of all that follows"),
        ("codec", header.codec.name.lower(), "the client's; nothing was unpacked"),
        ("newest time", clock_time(header.max_timestamp), "used by the time index"),
        ("producer", f"{header.producer_id}", "an idempotent producer's id"),
        ("sequence", f"{header.base_sequence}", "a retry has the same: it is stored once"),
        ("records", f"{header.record_count}", f"offsets {first} to {last}"),
    ]


def offset_index(log: Path) -> OffsetIndex:
    return OffsetIndex(_files(), _beside(log, names.OFFSET_INDEX), _base(log), create=False)


def time_index(log: Path) -> TimeIndex:
    return TimeIndex(_files(), _beside(log, names.TIME_INDEX), _base(log), create=False)


def high_watermarks(data: Path) -> dict[int, int]:
    """Of the topic, by partition; empty if none are written yet."""
    found = checkpoints.read_offsets(LocalDisk(), str(data / names.HIGH_WATERMARKS)) or {}
    return {tp.partition: offset for tp, offset in found.items() if tp.topic == TOPIC}


def clock_time(timestamp_ms: int) -> str:
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%H:%M:%S.%f")[:-3]


def _base(log: Path) -> Offset:
    base = names.parse_offset_name(log.name, names.LOG)
    assert base is not None
    return base


def _beside(log: Path, suffix: str) -> str:
    return str(log.with_suffix(suffix))


def _files() -> FileCache:
    return FileCache(LocalDisk(), _OPEN_FILES_MAX)
