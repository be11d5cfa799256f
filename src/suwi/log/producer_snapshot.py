"""`.snapshot`: the producer state of a partition at an offset, so that a start need not read the
whole log.

Apache Kafka's version 1: version, CRC-32C of what follows it, count, then an entry for each
producer with its last batch only. `loading_producers` loads the newest valid snapshot and replays
later batches, in slices: a segment may have millions of them.
"""

import logging
import struct
from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise

from suwi.env import Disk
from suwi.log import names
from suwi.log.batch_scan import header_row
from suwi.log.file_cache import FileCache
from suwi.log.producer_state import ProducedBatch, Producer, ProducerStates
from suwi.log.segment import Segment
from suwi.log.sliced_work import TURN, Steps
from suwi.model.errors import CorruptMessage, InvalidRecord
from suwi.model.ids import NO_SEQUENCE, Offset, ProducerEpoch, ProducerId
from suwi.records.batch import BatchHeader
from suwi.records.checksum import crc32c
from suwi.records.record import Marker, read_marker

log = logging.getLogger(__name__)

_VERSION = 1
_HEAD = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")
BATCHES_AT_ONCE = 256
"""How many batches are replayed before the event loop is yielded: about a millisecond."""


class DamagedSnapshot(Exception):
    """The snapshot is unusable; its contents can be rebuilt from the log."""


def encode_snapshot(producers: list[Producer]) -> bytes:
    body = bytearray(_COUNT.pack(len(producers)))
    for producer in producers:
        last = producer.batches[-1] if producer.batches else None
        body += _ENTRY.pack(
            producer.producer_id,
            producer.epoch,
            last.last_sequence if last else NO_SEQUENCE,
            last.last_offset if last else -1,
            last.offset_delta if last else 0,
            producer.last_timestamp,
            producer.coordinator_epoch,
            producer.txn_first_offset,
        )
    return _HEAD.pack(_VERSION, crc32c(body)) + bytes(body)


def decode_snapshot(data: bytes) -> list[Producer]:
    """Raises `DamagedSnapshot`."""
    try:
        version, crc = _HEAD.unpack_from(data)
        if version != _VERSION:
            raise DamagedSnapshot(f"snapshot version {version} is not supported")
        if crc32c(data[_HEAD.size :]) != crc:
            raise DamagedSnapshot("the checksum is wrong")
        (count,) = _COUNT.unpack_from(data, _HEAD.size)
        first = _HEAD.size + _COUNT.size
        if count < 0 or len(data) != first + count * _ENTRY.size:
            raise DamagedSnapshot("the length is wrong")
        return [_producer(_ENTRY.unpack_from(data, first + i * _ENTRY.size)) for i in range(count)]
    except struct.error:
        raise DamagedSnapshot("the file is too short") from None


def _producer(entry: tuple[int, ...]) -> Producer:
    producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, txn_first = entry
    producer = Producer(
        ProducerId(producer_id),
        ProducerEpoch(epoch),
        last_timestamp=timestamp,
        coordinator_epoch=coordinator_epoch,
        txn_first_offset=Offset(txn_first),
    )
    if sequence != NO_SEQUENCE:
        first_sequence = (sequence - delta) & 0x7FFF_FFFF
        producer.batches.append(
            ProducedBatch(first_sequence, sequence, Offset(offset), delta, timestamp)
        )
    return producer


def loading_producers(
    files: FileCache,
    directory: str,
    segments: list[Segment],
    start: Offset,
    end: Offset,
    snapshots: list[Offset],
) -> Steps[ProducerStates]:
    """The producer state after the batches from `start` to `end`.

    `snapshots` are those in the directory, in order. Snapshots above `end` describe removed records
    and are deleted.
    """
    newest = newest_snapshot(files.disk, directory, snapshots, end)
    producers = newest if newest is not None else ProducerStates(end_offset=start)
    ends = [following.base_offset for _, following in pairwise(segments)] + [end]
    for segment in segments[bisect_right(ends, producers.end_offset) :]:
        if segment.size_bytes:
            yield from _replaying_segment(files, segment, producers, end)
    producers.end_offset = end
    return producers


def find_snapshots(disk: Disk, directory: str) -> list[Offset]:
    """The offsets of the snapshots, in order. Runs in a thread: there may be thousands."""
    return names.offsets_by_suffix(disk.list_dir(directory)).get(names.SNAPSHOT, [])


def remove_stray_snapshots(
    disk: Disk, directory: str, snapshots: list[Offset], bases: Iterable[Offset]
) -> None:
    """Keep the snapshots at segment starts, which a truncation may need, and the newest."""
    kept = set(bases)
    for offset in snapshots[:-1]:
        if offset not in kept:
            disk.remove(_snapshot_path(directory, offset))


def remove_snapshots(disk: Disk, directory: str) -> None:
    """Remove all snapshots of a log that becomes empty."""
    for offset in find_snapshots(disk, directory):
        disk.remove(_snapshot_path(directory, offset))


def newest_snapshot(
    disk: Disk, directory: str, snapshots: list[Offset], end: Offset
) -> ProducerStates | None:
    """The newest usable snapshot; unusable ones are removed, also from the list."""
    while snapshots:
        path = _snapshot_path(directory, snapshots[-1])
        if snapshots[-1] <= end:
            try:
                return ProducerStates(decode_snapshot(disk.read_bytes(path)), snapshots[-1])
            except DamagedSnapshot as error:
                log.warning("producer snapshot damaged", extra={"path": path, "reason": str(error)})
        disk.remove(path)
        snapshots.pop()
    return None


def write_snapshot(disk: Disk, directory: str, end: Offset, producers: ProducerStates) -> None:
    """Write a snapshot at the end of the log. May fail: the log has the same information."""
    path = _snapshot_path(directory, end)
    data = encode_snapshot(producers.all())
    try:
        disk.write_atomically(path, data, sync=False)
    except OSError as error:
        log.warning("producer snapshot not written", extra={"path": path, "reason": str(error)})


def _snapshot_path(directory: str, offset: Offset) -> str:
    return f"{directory}/{names.offset_name(offset)}{names.SNAPSHOT}"


def _replaying_segment(
    files: FileCache, segment: Segment, producers: ProducerStates, end: Offset
) -> Steps[None]:
    path = segment.log_path
    try:
        found = segment.locate(producers.end_offset)
        first = found.position if found is not None else segment.size_bytes
        for position, part_end in segment.readable_parts(first):
            while position < part_end:
                row = header_row(files.get(path), position, part_end, BATCHES_AT_ONCE)
                if not row or row[0][1].base_offset >= end:
                    return
                _replay_row(files, path, row, producers, end)
                position = row[-1][0] + row[-1][1].size_bytes
                yield TURN
    except (CorruptMessage, InvalidRecord) as error:
        log.warning("batch unreadable", extra={"path": path, "reason": str(error)})


def _replay_row(
    files: FileCache,
    path: str,
    row: list[tuple[int, BatchHeader]],
    producers: ProducerStates,
    end: Offset,
) -> None:
    """Replay the batches of a row that are below `end` and not replayed yet."""
    first = producers.end_offset
    usual: list[BatchHeader] = []
    for position, header in row:
        if not first <= header.base_offset < end:
            continue
        if header.is_control:
            producers.replay_all(usual)
            usual = []
            producers.replay(header, _marker_at(files, path, position, header))
        else:
            usual.append(header)
    producers.replay_all(usual)


def _marker_at(files: FileCache, path: str, position: int, header: BatchHeader) -> Marker | None:
    """The transaction marker in the control batch at `position`."""
    return read_marker(files.get(path).pread(header.size_bytes, position), header)
