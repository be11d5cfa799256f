"""Checks the batches of a closed segment: each against its checksum and its neighbours.

`SegmentCheck.checking` yields jobs for a thread, each of which reads up to 256 KiB and drops it
from the page cache. Base offset and leader epoch are outside a batch's checksum: `ValidPrefix`
judges them. After a damaged batch the check continues at the next whole batch, found by the batch's
length or in the offset index.
`comparing_neighbours` compares each segment of a log with the next one: records may be missing
between them. Segments are contiguous, with exceptions that are legal: a gap below the start offset;
offsets that are too far away for an index (`LogSegments.base_for`); a log that was compacted,
perhaps by Apache Kafka before it was adopted, which leaves gaps between segments.
"""

import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise, takewhile
from typing import Self

from suwi.env import Disk, File
from suwi.log import names
from suwi.log.batch_scan import Row, first_header, scan_rows
from suwi.log.damage import Damage
from suwi.log.file_cache import FileCache
from suwi.log.leader_epoch_cache import LeaderEpochCache
from suwi.log.partition_log import PartitionLog
from suwi.log.segment import RELATIVE_OFFSET_MAX, Segment
from suwi.log.sliced_work import TURN, Steps
from suwi.log.valid_prefix import ValidPrefix
from suwi.model.errors import CorruptMessage
from suwi.model.ids import Offset
from suwi.records.batch import HEADER_BYTES, BatchHeader, read_header

_REASON = "a batch does not match its checksum, or cannot be read"
_TRAILING = "bytes that are no batch of this segment follow its last one"
_PROBED_BYTES = 1 << 18
_INDEX_ENTRY = struct.Struct(">ii")
_SEGMENTS_AT_ONCE = 8
"""Each takes about three short reads."""


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

    def missing_after(
        self, files: FileCache, following_path: str, start_offset: Offset
    ) -> list[Damage]:
        """What is missing between the last batch and the next segment; empty if nothing is."""
        path, base = self.segment.file.path, self.segment.end_offset
        missing = _missing_after(files, path, self.end, base, following_path, start_offset)
        return [missing] if missing is not None else []

    def checking(self) -> Steps[None]:
        """Yields jobs for a thread. An unreadable part of the file counts as damaged."""
        segment = self.segment
        starts = dict(segment.epochs.entries())
        newest = segment.epochs.latest if starts else None
        position, offset = 0, segment.base_offset
        epoch: int = segment.epochs.epoch_at(offset)
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


def comparing_neighbours(
    files: FileCache, segments: Sequence[Segment], start_offset: Offset
) -> Steps[list[Damage]]:
    """What is missing from `start_offset` on. Not for a log that was compacted."""
    found: list[Damage] = []
    for number, (segment, following) in enumerate(pairwise(segments), start=1):
        if following.base_offset > start_offset:
            damage = None
            with suppress(OSError):  # Readers will get the error.
                damage = _missing_between(files, segment, following, start_offset)
            if damage is not None:
                found.append(damage)
            if number % _SEGMENTS_AT_ONCE == 0:
                yield TURN
    return found


def _missing_between(
    files: FileCache, segment: Segment, following: Segment, start_offset: Offset
) -> Damage | None:
    end, position = segment.end_of_whole_batches()
    base, path = following.base_offset, following.log_path
    missing = _missing_after(files, segment.log_path, end, base, path, start_offset)
    if missing is None or position >= segment.size_bytes:
        return missing
    return missing._replace(
        segment=segment.base_offset,
        reason="the segment does not end with a whole batch",
        position=position,
        end_position=segment.size_bytes,
    )


def _missing_after(
    files: FileCache,
    path: str,
    end: Offset,
    following_base: Offset,
    following_path: str,
    start_offset: Offset,
) -> Damage | None:
    """The records that are missing between the log file at `path`, which ends at `end`, and the
    next one."""
    first = Offset(max(end, start_offset))
    if first >= following_base or _is_far(files, following_path, end):
        return None
    reason = f"the records up to the next segment, {following_path}, are missing"
    return Damage(first, following_base, following_base, path, reason)


def _is_far(files: FileCache, following_path: str, end: Offset) -> bool:
    """Whether an index of the segment before could not have reached the batch."""
    file = files.get(following_path)
    first = first_header(file, 0, file.size())
    return first is not None and first.last_offset - end > RELATIVE_OFFSET_MAX
