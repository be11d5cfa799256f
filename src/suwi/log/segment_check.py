"""Checks the batches of a closed segment: each against its checksum and its neighbours.

`checking` yields jobs for a thread, each of which reads up to 256 KiB and drops it from the page
cache. Base offset and leader epoch are outside a batch's checksum: `ValidPrefix` judges them. After
a damaged batch the check continues at the next whole batch, found by the batch's length or in the
offset index.
"""

import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import Self

from suwi.env import Disk, File
from suwi.log import names
from suwi.log.batch_scan import Row, scan_rows
from suwi.log.damage import Damage
from suwi.log.leader_epoch_cache import LeaderEpochCache
from suwi.log.partition_log import PartitionLog
from suwi.log.segment import Segment
from suwi.log.sliced_work import Steps
from suwi.log.valid_prefix import ValidPrefix
from suwi.model.errors import CorruptMessage
from suwi.model.ids import Offset
from suwi.records.batch import HEADER_BYTES, BatchHeader, read_header

_REASON = "a batch does not match its checksum, or cannot be read"
_TRAILING = "bytes that are no batch of this segment follow its last one"
_PROBED_BYTES = 1 << 18
_INDEX_ENTRY = struct.Struct(">ii")


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A segment as a thread may see it: up to its present end nothing in it changes."""

    file: File
    base_offset: Offset
    end_offset: Offset
    """The base offset of the next segment, or the end of the log."""
    size_bytes: int
    index_path: str
    disk: Disk
    epochs: LeaderEpochCache

    @classmethod
    def of(
        cls, log: PartitionLog, segment: Segment, size_bytes: int, end_offset: Offset, file: File
    ) -> Self:
        return cls(
            file,
            segment.base_offset,
            end_offset,
            size_bytes,
            segment.path(names.OFFSET_INDEX),
            log.files.disk,
            LeaderEpochCache(log.epochs.entries()),
        )

    def indexed_positions(self) -> list[int]:
        data = b""
        with suppress(FileNotFoundError):
            data = self.disk.read_bytes(self.index_path)
        whole = len(data) - len(data) % _INDEX_ENTRY.size
        return [position for _, position in _INDEX_ENTRY.iter_unpack(data[:whole])]


@dataclass(slots=True)
class SegmentCheck:
    """The check of one segment; `damages` and `checked_bytes` grow with each job."""

    segment: SegmentFile
    damages: list[Damage] = field(default_factory=list)
    checked_bytes: int = 0
    found_end: int = 0
    """The offset after the last whole batch, once all is checked."""

    @property
    def end(self) -> Offset:
        """The offset after the last batch, whole or damaged: between it and the next segment
        records may be missing."""
        return Offset(max(self.found_end, self.damages[-1].end if self.damages else 0))

    def checking(self) -> Steps[None]:
        """Yields jobs for a thread. An unreadable part of the file counts as damaged."""
        segment = self.segment
        starts = dict(segment.epochs.entries())
        newest = segment.epochs.latest if starts else None
        position, offset, epoch = (
            0,
            segment.base_offset,
            segment.epochs.epoch_at(segment.base_offset),
        )
        while position < segment.size_bytes:
            prefix = ValidPrefix(segment.base_offset, epoch, starts, newest, size_bytes=position)
            prefix.expected = offset
            rows = scan_rows(segment.file, position, segment.size_bytes)
            while (yield partial(self._check_some, rows, prefix)):
                pass
            self.found_end = prefix.expected
            if prefix.size_bytes >= segment.size_bytes and prefix.expected <= segment.end_offset:
                return
            following = yield partial(self._next_whole_batch, prefix.size_bytes, prefix.expected)
            end, end_offset = segment.size_bytes, segment.end_offset
            if following is not None:
                end, header = following
                end_offset, epoch = Offset(header.base_offset), header.partition_leader_epoch
            self._add(prefix, end, end_offset)
            position, offset = end, end_offset

    def _check_some(self, rows: Iterator[Row], prefix: ValidPrefix) -> bool:
        """Check the batches of one read. Returns whether there may be more."""
        segment = self.segment
        probed_bytes = min(_PROBED_BYTES, segment.size_bytes - prefix.size_bytes)
        was_cached = segment.file.is_cached(prefix.size_bytes, probed_bytes)
        row = None
        with suppress(CorruptMessage, OSError):
            row = next(rows, None)
        if row is None:
            return False
        self.checked_bytes += len(row.chunk)
        if not was_cached:
            segment.file.drop_cached(row.chunk_at, len(row.chunk))
        number, found = 0, row.batches
        has_more = True
        if found[-1][1].next_offset > segment.end_offset:
            # Its records belong to the next segment.
            found = list(takewhile(lambda each: each[1].next_offset <= segment.end_offset, found))
            has_more = False
        while number < len(found):
            number = prefix.accept_usual(found, number)
            if number < len(found):
                position, header = found[number]
                is_beyond = header.next_offset > segment.end_offset
                if is_beyond or not prefix.accept(position, header):
                    return False
                number += 1
        return has_more

    def _next_whole_batch(self, bad: int, expected: int) -> tuple[int, BatchHeader] | None:
        """The first whole batch after the damaged one at `bad`, whose offset is `expected`."""
        segment = self.segment
        candidates = [position for position in segment.indexed_positions() if position > bad]
        with suppress(CorruptMessage, OSError):
            header = read_header(segment.file.pread(HEADER_BYTES, bad))
            candidates.insert(0, bad + header.size_bytes)
        for position in candidates:
            row = None
            with suppress(CorruptMessage, OSError):
                row = next(scan_rows(segment.file, position, segment.size_bytes), None)
            if row is not None:
                header = row.batches[0][1]
                if expected < header.base_offset and header.next_offset <= segment.end_offset:
                    return position, header
        return None

    def _add(self, prefix: ValidPrefix, end: int, end_offset: Offset) -> None:
        segment = self.segment
        first = Offset(min(prefix.expected, end_offset))
        self.damages.append(
            Damage(
                first,
                end_offset,
                segment.base_offset,
                segment.file.path,
                _REASON if first < end_offset else _TRAILING,
                prefix.size_bytes,
                end,
            )
        )
