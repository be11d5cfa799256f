"""Loads the producer state of a log at an offset: the newest valid snapshot and later batches.

A segment may have millions of batches, so they are replayed in slices, see `log/sliced_work.py`.
"""

import logging
from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise

from suwi.env import Disk
from suwi.log import names
from suwi.log.batch_scan import header_row
from suwi.log.file_cache import FileCache
from suwi.log.producer_snapshot import DamagedSnapshot, decode_snapshot, encode_snapshot
from suwi.log.producer_state import ProducerStates
from suwi.log.segment import Segment
from suwi.log.sliced_work import TURN, Steps
from suwi.model.errors import CorruptMessage, InvalidRecord
from suwi.model.ids import Offset
from suwi.records.batch import BatchHeader
from suwi.records.record import Marker, read_marker

log = logging.getLogger(__name__)

BATCHES_AT_ONCE = 256
"""How many batches are replayed before the event loop is yielded: about a millisecond."""


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
        position = found.position if found is not None else segment.size_bytes
        while position < segment.size_bytes:
            row = header_row(files.get(path), position, segment.size_bytes, BATCHES_AT_ONCE)
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
