"""Checks the batches of a closed segment: each against its checksum and its neighbours.

`SegmentCheck.checking` yields jobs for a thread, each of which reads up to 256 KiB and drops it
from the page cache. Base offset and leader epoch are outside a batch's checksum: `ValidPrefix`
judges them. After a damaged batch the check continues at the next whole batch, found by the batch's
length or in the offset index. The bytes of a record may look like a batch, so nothing is searched
for: the position, the offsets, the leader epoch and the checksum of that batch must agree.
`comparing_neighbours` compares each segment of a log with the next one: records may be missing
between them. Segments are contiguous, with exceptions that are legal: a gap below the start offset;
offsets that are too far away for an index (`LogSegments.base_for`); a log that was compacted,
perhaps by Apache Kafka before it was adopted, which leaves gaps between segments.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
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
from suwi.log.indexes import offset_entries
from suwi.log.leader_epoch_cache import LeaderEpochCache
from suwi.log.partition_log import PartitionLog
from suwi.log.segment import RELATIVE_OFFSET_MAX, Segment
from suwi.log.sliced_work import TURN, Steps
from suwi.log.valid_prefix import ValidPrefix
from suwi.model.errors import CorruptMessage
from suwi.model.ids import LeaderEpoch, Offset
from suwi.records.batch import (
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    BatchHeader,
    read_header,
)

_REASON = "a batch does not match its checksum, or cannot be read"
_TRAILING = "bytes that are no batch of this segment follow its last one"
_PROBED_BYTES = 1 << 18
NO_END = Offset(2**62)
"""The end offset of the last segment, if it is not known."""
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
    read_index: Callable[[], bytes]
    """The entries of the offset index."""
    epochs: LeaderEpochCache
    epoch_max: LeaderEpoch | None = None
    """A batch with a later leader epoch is damaged."""

    @classmethod
    def of(
        cls, log: PartitionLog, segment: Segment, size_bytes: int, end_offset: Offset, file: File
    ) -> Self:
        with suppress(OSError):  # Without its newest entries the check finds less.
            segment.offset_index.write_out()
        return cls(
            file,
            segment.base_offset,
            end_offset,
            size_bytes,
            index_reader(log.files.disk, segment.path(names.OFFSET_INDEX)),
            LeaderEpochCache(log.epochs.entries()),
            log.epochs.latest_or_none,
        )


def index_reader(disk: Disk, path: str) -> Callable[[], bytes]:
    def read() -> bytes:
        with suppress(FileNotFoundError):
            return disk.read_bytes(path)
        return b""

    return read


@dataclass(slots=True)
class SegmentCheck:
    """The check of one segment; `damages` and `checked_bytes` grow with each job."""

    segment: SegmentFile
    damages: list[Damage] = field(default_factory=list)
    checked_bytes: int = 0
    found_end: int = 0
    """The offset after the last whole batch, once all is checked."""
    _indexed: list[tuple[Offset, int]] | None = None
    """The entries of the offset index that are not checked yet. None: not read yet."""

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

    def checking(
        self, position: int = 0, offset: Offset | None = None, epoch: int | None = None
    ) -> Steps[None]:
        """Yields jobs for a thread. An unreadable part of the file counts as damaged. The check
        begins at `position`, where `offset` is expected; the batch before has the leader epoch
        `epoch`."""
        segment = self.segment
        starts = dict(segment.epochs.entries())
        offset = segment.base_offset if offset is None else offset
        epoch = segment.epochs.epoch_at(offset) if epoch is None else epoch
        prefix = ValidPrefix(segment.base_offset, epoch, starts, segment.epoch_max)
        prefix.skip_to(position, offset)
        while prefix.size_bytes < segment.size_bytes:
            position = prefix.size_bytes
            rows = scan_rows(segment.file, position, segment.size_bytes)
            while (yield partial(self._check_some, rows, prefix)):
                pass
            self.found_end = prefix.expected
            if prefix.size_bytes >= segment.size_bytes and prefix.expected <= segment.end_offset:
                return
            following = yield partial(self._next_whole_batch, prefix)
            end, end_offset = segment.size_bytes, segment.end_offset
            if following is not None:
                end, end_offset = following
            self._add(prefix, end, end_offset)
            prefix.skip_to(end, end_offset)

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

    def _next_whole_batch(self, prefix: ValidPrefix) -> tuple[int, Offset] | None:
        """The position and the first offset of the first batch after the valid prefix, and after
        the damaged batch there, whose place is certain.

        Either the length and the number of offsets of the damaged batch both lead to it, and whole
        batches from there to a known place, or it is between two entries of the index, at the
        position of one and with the offsets of both.
        """
        segment, bad, expected = self.segment, prefix.size_bytes, prefix.expected
        indexed = self._indexed_from(bad)
        with suppress(struct.error, OSError):
            damaged = BatchHeader._make(HEADER.unpack(segment.file.pread(HEADER_BYTES, bad)))
            span = damaged.last_offset_delta + 1
            at = bad + damaged.batch_length + LOG_OVERHEAD_BYTES
            header = self._whole_batch_at(at, prefix)
            # Compaction may have left a gap before it: its own base offset is outside its checksum.
            ends = (expected + span, damaged.base_offset + span)
            known = next((each for _, each in indexed if at < each < segment.size_bytes), None)
            if header is not None and header.base_offset in ends and self._reaches(known, at):
                return at, Offset(header.base_offset)
        before = Offset(expected)
        for last_offset, position in indexed:
            header = self._whole_batch_at(position, prefix)
            if (
                header is not None
                and before < header.base_offset <= header.last_offset <= last_offset
            ):
                return position, Offset(header.base_offset)
            before = max(before, last_offset)
        return None

    def _indexed_from(self, position: int) -> list[tuple[Offset, int]]:
        if self._indexed is None:
            segment = self.segment
            self._indexed = offset_entries(segment.read_index(), segment.base_offset)
        self._indexed = [each for each in self._indexed if each[1] >= position]
        return self._indexed

    def _whole_batch_at(self, position: int, prefix: ValidPrefix) -> BatchHeader | None:
        """The batch at a position after the valid prefix, if it may be a later one of the segment
        and is whole."""
        segment = self.segment
        if not prefix.size_bytes < position < segment.size_bytes:
            return None
        with suppress(CorruptMessage, OSError):
            header = read_header(segment.file.pread(HEADER_BYTES, position))
            end = position + header.size_bytes
            has_epoch = prefix.last_epoch <= header.partition_leader_epoch and (
                segment.epoch_max is None or header.partition_leader_epoch <= segment.epoch_max
            )
            is_later = prefix.expected < header.base_offset <= header.last_offset
            is_within = end <= segment.size_bytes and header.next_offset <= segment.end_offset
            if has_epoch and is_later and is_within and any(scan_rows(segment.file, position, end)):
                return header
        return None

    def _reaches(self, known: int | None, start: int) -> bool:
        """Whether whole batches lead from `start` to a known place: that of an index entry, or the
        end of the segment. Batches in the bytes of a record end within it, or before a batch with
        an offset that they have claimed."""
        end = known if known is not None else self.segment.size_bytes
        position, offset = start, 0
        with suppress(CorruptMessage, OSError):
            for row in scan_rows(self.segment.file, start, end):
                for at, header in row.batches:
                    if header.base_offset < offset or header.last_offset_delta < 0:
                        return False
                    position, offset = at + header.size_bytes, header.next_offset
        following = first_header(self.segment.file, position, self.segment.size_bytes)
        if following is not None and following.base_offset < offset:
            return False
        return position == end and offset <= self.segment.end_offset

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
    files: FileCache,
    segments: Sequence[Segment],
    start_offset: Offset,
    epochs: LeaderEpochCache,
) -> Steps[list[Damage]]:
    """What is missing from `start_offset` on. Not for a log that was compacted."""
    found: list[Damage] = []
    for number, (segment, following) in enumerate(pairwise(segments), start=1):
        if following.base_offset > start_offset:
            with suppress(OSError):  # Readers will get the error.
                found += yield from _comparing(files, segment, following, start_offset, epochs)
            if number % _SEGMENTS_AT_ONCE == 0:
                yield TURN
    return found


def _comparing(
    files: FileCache,
    segment: Segment,
    following: Segment,
    start_offset: Offset,
    epochs: LeaderEpochCache,
) -> Steps[list[Damage]]:
    end, base, path = segment.claimed_end(), following.base_offset, following.log_path
    if _missing_after(files, segment.log_path, end, base, path, start_offset) is None:
        return []
    # Records are missing, or the header of the last batch is damaged: then where that claims to end
    # means nothing.
    position, offset = segment.known_place()
    file = files.pin(segment.log_path)
    try:
        check = SegmentCheck(
            SegmentFile(
                file,
                segment.base_offset,
                base,
                segment.size_bytes,
                index_reader(files.disk, segment.path(names.OFFSET_INDEX)),
                epochs,
                epochs.latest_or_none,
            )
        )
        yield from check.checking(position, offset)
    finally:
        files.unpin(file)
    return check.damages + check.missing_after(files, path, start_offset)


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
