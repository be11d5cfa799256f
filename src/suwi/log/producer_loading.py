"""The producers of a log at an offset: from the newest usable snapshot, and the batches after it."""

import logging

from suwi.log import names
from suwi.log.batch_scan import scan_headers
from suwi.log.file_cache import FileCache
from suwi.log.producer_snapshot import DamagedSnapshot, decode_snapshot
from suwi.log.producers import Producers
from suwi.log.segment import Segment
from suwi.model.errors import CorruptMessage
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
    for segment in segments:
        if segment.size_bytes and segment.next_offset > producers.end_offset:
            _replay_segment(files, segment, producers, end)
    producers.end_offset = end
    return producers


def _newest_snapshot(files: FileCache, directory: str, end: Offset) -> Producers | None:
    disk = files.disk
    offsets = [names.parse_offset_name(name, names.SNAPSHOT) for name in disk.list_dir(directory)]
    for offset in sorted((offset for offset in offsets if offset is not None), reverse=True):
        path = f"{directory}/{names.offset_name(offset)}{names.SNAPSHOT}"
        if offset > end:
            disk.remove(path)
            continue
        try:
            return Producers(decode_snapshot(disk.read_bytes(path)), offset)
        except DamagedSnapshot as error:
            log.warning("producer snapshot damaged", extra={"path": path, "reason": str(error)})
            disk.remove(path)
    return None


def _replay_segment(files: FileCache, segment: Segment, producers: Producers, end: Offset) -> None:
    path = segment.path(names.LOG)
    first = segment.locate(producers.end_offset)
    if first is None:
        return
    try:
        for position, header in scan_headers(files.get(path), first.position, segment.size_bytes):
            if header.base_offset >= end:
                return
            if header.producer_id >= 0 and header.base_offset >= producers.end_offset:
                producers.replay(header, marker_at(files, path, position, header))
    except CorruptMessage as error:
        log.warning("batch unreadable", extra={"path": path, "reason": str(error)})


def marker_at(files: FileCache, path: str, position: int, header: BatchHeader) -> Marker | None:
    """The transaction marker in the batch at `position`, where it is a control batch."""
    if not header.is_control:
        return None
    return read_marker(files.get(path).pread(header.size_bytes, position), header)
