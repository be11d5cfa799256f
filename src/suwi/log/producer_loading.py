"""The producers of a log at an offset: from the newest good snapshot, and the batches after."""

import logging
from collections.abc import Iterable
from itertools import pairwise

from suwi.log import names
from suwi.log.batch_scan import scan_headers
from suwi.log.file_cache import FileCache
from suwi.log.producer_snapshot import DamagedSnapshot, decode_snapshot
from suwi.log.producers import Producers
from suwi.log.segment import Segment
from suwi.model.errors import CorruptMessage, InvalidRecord
from suwi.model.ids import Offset
from suwi.records.batch import BatchHeader
from suwi.records.record import Marker, read_marker

log = logging.getLogger(__name__)


def load_producers(
    files: FileCache,
    directory: str,
    segments: list[Segment],
    start: Offset,
    end: Offset,
) -> Producers:
    """The producers as the batches from `start` to `end` leave them.

    Snapshots above `end` speak of what is no longer there, and are removed.
    """
    snapshot = _newest_snapshot(files, directory, end)
    producers = snapshot if snapshot is not None else Producers(end_offset=start)
    ends = [following.base_offset for _, following in pairwise(segments)] + [end]
    for segment, upper_bound in zip(segments, ends, strict=False):
        if segment.size_bytes and upper_bound > producers.end_offset:
            _replay_segment(files, segment, producers, end)
    producers.end_offset = end
    return producers


def remove_stray_snapshots(files: FileCache, directory: str, bases: Iterable[Offset]) -> None:
    """Keep those at the start of a segment, which a truncation may need, and the newest."""
    kept = set(bases)
    for offset in _snapshot_offsets(files, directory)[:-1]:
        if offset not in kept:
            files.disk.remove(_snapshot_path(directory, offset))


def remove_snapshots(files: FileCache, directory: str) -> None:
    """Nothing is left of what they speak of."""
    for offset in _snapshot_offsets(files, directory):
        files.disk.remove(_snapshot_path(directory, offset))


def _newest_snapshot(files: FileCache, directory: str, end: Offset) -> Producers | None:
    disk = files.disk
    for offset in reversed(_snapshot_offsets(files, directory)):
        path = _snapshot_path(directory, offset)
        if offset > end:
            disk.remove(path)
            continue
        try:
            return Producers(decode_snapshot(disk.read_bytes(path)), offset)
        except DamagedSnapshot as error:
            log.warning("producer snapshot damaged", extra={"path": path, "reason": str(error)})
            disk.remove(path)
    return None


def _snapshot_offsets(files: FileCache, directory: str) -> list[Offset]:
    found = files.disk.list_dir(directory)
    offsets = (names.parse_offset_name(name, names.SNAPSHOT) for name in found)
    return sorted(offset for offset in offsets if offset is not None)


def _snapshot_path(directory: str, offset: Offset) -> str:
    return f"{directory}/{names.offset_name(offset)}{names.SNAPSHOT}"


def _replay_segment(files: FileCache, segment: Segment, producers: Producers, end: Offset) -> None:
    path = segment.log_path
    try:
        first = segment.locate(producers.end_offset)
        if first is None:
            return
        for position, header in scan_headers(files.get(path), first.position, segment.size_bytes):
            if header.base_offset >= end:
                return
            if header.producer_id >= 0 and header.base_offset >= producers.end_offset:
                producers.replay(header, _marker_at(files, path, position, header))
    except (CorruptMessage, InvalidRecord) as error:
        log.warning("batch unreadable", extra={"path": path, "reason": str(error)})


def _marker_at(files: FileCache, path: str, position: int, header: BatchHeader) -> Marker | None:
    """The transaction marker in the batch at `position`, where it is a control batch."""
    if not header.is_control:
        return None
    return read_marker(files.get(path).pread(header.size_bytes, position), header)
