"""One segment: a log file and its indexes, named by its base offset.

Batches enter at `append`, readers at `locate`. A segment is independent of other segments.
Invariant: `size_bytes` counts whole batches only; the remains of a failed write are truncated.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import NamedTuple

from suwi.env import File
from suwi.log import names
from suwi.log.batch_scan import first_header, scan_headers
from suwi.log.damage import Damage
from suwi.log.file_cache import FileCache, make_empty, write_all
from suwi.log.indexes import OffsetIndex, TimeIndex, offset_entries
from suwi.log.txn_index import TxnIndex
from suwi.model.errors import CorruptMessage
from suwi.model.ids import NO_OFFSET, NO_TIMESTAMP, Offset
from suwi.records.batch import HEADER_BYTES, LOG_OVERHEAD_BYTES, BatchHeader, read_header

log = logging.getLogger(__name__)

RELATIVE_OFFSET_MAX = 2**31 - 1
POSITION_MAX = 2**31 - 1
_NOTHING_APPENDED = Offset(2**63 - 1)
_BATCHES_AT_ONCE = 500
_ENTRIES_TRIED = 16


class Located(NamedTuple):
    """The position of a batch in the log file."""

    position: int
    base_offset: Offset
    size_bytes: int


@dataclass(slots=True, eq=False, repr=False)
class Segment:
    """A log file with its offset, time and transaction index."""

    _files: FileCache
    dir: str
    base_offset: Offset
    _: KW_ONLY
    index_interval_bytes: int
    created_ms: int
    create: InitVar[bool] = False
    extension: str = ""
    """The suffix of its file names while it is not part of a log yet."""
    damages: tuple[Damage, ...] = ()
    """Those in its log file, in order."""
    log_path: str = field(init=False)
    size_bytes: int = field(init=False)
    offset_index: OffsetIndex = field(init=False)
    time_index: TimeIndex = field(init=False)
    txn_index: TxnIndex = field(init=False)
    _first_timestamp: int | None = None
    _index_bytes: int = field(init=False)
    _bytes_since_index_entry: int = 0
    _last_base_offset: Offset = _NOTHING_APPENDED
    _last_position: int = 0
    _next_offset: Offset | None = field(init=False)
    _max_timestamp: int | None = field(init=False)
    _max_timestamp_offset: Offset = NO_OFFSET

    def __post_init__(self, create: bool) -> None:
        files, base_offset = self._files, self.base_offset
        self.log_path = self.path(names.LOG)
        if create:
            make_empty(files.get(self.log_path, create=True))
        self.size_bytes = 0 if create else files.disk.size(self.log_path)
        self.offset_index = OffsetIndex(
            files, self.path(names.OFFSET_INDEX), base_offset, create=create
        )
        self.time_index = TimeIndex(files, self.path(names.TIME_INDEX), base_offset, create=create)
        self.txn_index = TxnIndex(files.disk, self.path(names.TXN_INDEX))
        if create:
            self.txn_index.reset()  # An earlier segment may have left a file with this name.
        self._index_bytes = self._count_index_bytes()
        self._next_offset = base_offset if create else None
        self._max_timestamp = NO_TIMESTAMP if create else None

    def path(self, suffix: str) -> str:
        return f"{self.dir}/{names.offset_name(self.base_offset)}{suffix}{self.extension}"

    # -- state ---------------------------------------------------------------------------------

    @property
    def next_offset(self) -> Offset:
        """The offset after the last record; found by scanning from the last index entry.

        Raises CorruptMessage if the scan does not end at the end of the file.
        """
        if self._next_offset is None:
            self._scan_tail()
            assert self._next_offset is not None
        return self._next_offset

    @property
    def knows_max_timestamp(self) -> bool:
        """Whether `max_timestamp` need not read files."""
        return self._max_timestamp is not None

    @property
    def max_timestamp(self) -> int:
        """The newest timestamp in the segment; -1 if there is none."""
        if self._max_timestamp is None:
            self._max_timestamp, self._max_timestamp_offset = self._newest_indexed()
            if self._ends_newer_than(self._max_timestamp):
                self._rebuild_wrong_indexes()
        return self._max_timestamp

    @property
    def first_timestamp(self) -> int | None:
        """The newest timestamp of the first batch; None if there is none that can be read."""
        if self._first_timestamp is None and self.size_bytes:
            with suppress(CorruptMessage):
                for _, header in self._headers(0):
                    self._first_timestamp = header.max_timestamp
                    break
        return self._first_timestamp

    def has_batch_beyond(self, position: int) -> bool:
        """Whether a batch starts beyond this position of the file. Raises CorruptMessage."""
        return any(start > position for start, _ in self._headers(0))

    def has_room(self, size_bytes: int, last_offset: Offset, index_bytes_max: int) -> bool:
        """Whether a batch fits: its relative offset, its position, and the size of the indexes."""
        return (
            last_offset - self.base_offset <= RELATIVE_OFFSET_MAX
            and self.size_bytes + size_bytes <= POSITION_MAX
            and self._index_bytes <= index_bytes_max
        )

    def _count_index_bytes(self) -> int:
        """The size of the larger index with the next entry; `finish` adds one more time entry."""
        offsets, times = self.offset_index.size_bytes, self.time_index.size_bytes
        return offsets + 8 if offsets >= times + 16 else times + 2 * 12

    # -- writing -------------------------------------------------------------------------------

    def append(
        self, batch: memoryview, base_offset: Offset, last_offset: Offset, max_timestamp: int
    ) -> None:
        """Write a batch at the end. Raises OSError; then the write has been undone.

        Raises `TornSegment` if undoing fails: the segment is unusable then.
        """
        position = self.size_bytes
        file = self._files.get(self.log_path)
        try:
            written = file.pwrite(batch, position)
            if written < len(batch):
                write_all(file, batch[written:], position + written)
        except OSError as error:
            self._undo_write(position, error)
            raise
        self._note(position, len(batch), base_offset, last_offset, max_timestamp)

    def note(self, position: int, header: BatchHeader) -> None:
        """Record that `header`'s batch is at `position`: sizes, timestamps, index entries."""
        base_offset, last_offset = Offset(header.base_offset), Offset(header.last_offset)
        self._note(position, header.size_bytes, base_offset, last_offset, header.max_timestamp)

    def end_with_damage(self, position: int, next_offset: Offset) -> None:
        """After the last batch that was noted, the file is damaged up to `position`."""
        self.size_bytes, self._next_offset = position, next_offset

    def index_next_batch(self) -> None:
        """A damaged part ends here: with an index entry the next batch is found without it."""
        self._bytes_since_index_entry = self.index_interval_bytes + 1

    def note_all(self, batches: list[tuple[int, BatchHeader]]) -> None:
        """As `note`, for consecutive batches; only some of them need an update."""
        interval_bytes, unindexed_bytes = self.index_interval_bytes, self._bytes_since_index_entry
        newest = self.max_timestamp
        for position, header in batches:
            if unindexed_bytes <= interval_bytes and header.max_timestamp <= newest and position:
                unindexed_bytes += header.batch_length + LOG_OVERHEAD_BYTES
                continue
            self._bytes_since_index_entry = unindexed_bytes
            self.note(position, header)
            unindexed_bytes, newest = self._bytes_since_index_entry, self.max_timestamp
        self._bytes_since_index_entry = unindexed_bytes
        self._last_position, last = batches[-1]
        self._last_base_offset = Offset(last.base_offset)
        self._next_offset = Offset(last.next_offset)
        self.size_bytes = self._last_position + last.size_bytes

    def _note(
        self,
        position: int,
        size_bytes: int,
        base_offset: Offset,
        last_offset: Offset,
        timestamp: int,
    ) -> None:
        if position == 0:
            self._first_timestamp = timestamp
        newest = self._max_timestamp if self._max_timestamp is not None else self.max_timestamp
        if timestamp > newest:
            newest = self._max_timestamp = timestamp
            self._max_timestamp_offset = last_offset
        if self._bytes_since_index_entry > self.index_interval_bytes:
            self.offset_index.append(last_offset, position)
            self.time_index.maybe_append(newest, self._max_timestamp_offset)
            self._index_bytes = self._count_index_bytes()
            self._bytes_since_index_entry = 0
        self._bytes_since_index_entry += size_bytes
        self.size_bytes = position + size_bytes
        self._next_offset = Offset(last_offset + 1)
        self._last_base_offset = base_offset
        self._last_position = position

    def _undo_write(self, size_bytes: int, error: OSError) -> None:
        try:
            self._log_file().truncate(size_bytes)
        except OSError as second:
            raise TornSegment(f"{self.log_path}: {second} after {error}") from error

    def finish(self) -> None:
        """No more batches follow: complete the time index and write the indexes to disk."""
        if self.max_timestamp >= 0:
            self.time_index.maybe_append(self.max_timestamp, self._max_timestamp_offset)
        self.write_out_indexes()

    def write_out_indexes(self) -> None:
        """Write to disk what is buffered. Raises OSError; then it stays buffered."""
        self.offset_index.write_out()
        self.time_index.write_out()
        self.txn_index.write_out()

    def open_files(self) -> None:
        """What `truncate` uses: without descriptors it would stop half done."""
        for path in (self.offset_index.path, self.time_index.path, self.log_path):
            self._files.get(path)

    def truncate(self, offset: Offset) -> None:
        """Remove the records at and above `offset`; a batch that contains it goes completely."""
        found = self.locate(offset)
        if found is None:
            return
        self._log_file().truncate(found.position)
        self.size_bytes = found.position
        self._last_base_offset = _NOTHING_APPENDED
        # Entries within the removed batch go too, so truncate at its base offset.
        self.offset_index.truncate(found.base_offset)
        self.time_index.truncate(found.base_offset)
        self.txn_index.truncate(found.base_offset)
        self._index_bytes = self._count_index_bytes()
        try:
            self._scan_tail()
        except CorruptMessage:
            # A header before the removed records is unreadable. The file ends at a batch, and with
            # that it is known where the next one begins.
            self._max_timestamp, self._max_timestamp_offset = self.time_index.last_entry()
            self._next_offset = found.base_offset

    def _scan_tail(self) -> None:
        """Find the next offset and the newest timestamp by scanning from the last index entries."""
        newest, newest_offset = self._newest_indexed()
        end = self._last_indexed()
        self._bytes_since_index_entry = self.size_bytes - end
        next_offset = self.base_offset
        for position, part in self._parts(end, self.size_bytes):
            if isinstance(part, Damage):
                end, next_offset = part.end_position, part.end
                continue
            end = position + part.size_bytes
            next_offset = Offset(part.next_offset)
            if part.max_timestamp > newest:
                newest, newest_offset = part.max_timestamp, Offset(part.last_offset)
        if end != self.size_bytes:
            raise CorruptMessage(f"{self.log_path} ends within a batch")
        self._next_offset = next_offset
        self._max_timestamp, self._max_timestamp_offset = newest, newest_offset

    def _parts(self, start: int, end: int) -> Iterator[tuple[int, BatchHeader | Damage]]:
        """Each batch header and each known damage in the file with its position. Raises
        CorruptMessage at other bytes that are no batch."""
        file = self._log_file()
        for damage in self.damages:
            if start < damage.end_position <= end:
                yield from scan_headers(file, start, damage.position)
                yield damage.position, damage
                start = damage.end_position
        yield from scan_headers(file, start, end)

    def readable_parts(self, start: int) -> Iterator[tuple[int, int]]:
        """Where each part of the file between known damages begins and ends, from `start` on."""
        for damage in self.damages:
            if start < damage.end_position:
                yield start, damage.position
                start = damage.end_position
        yield start, self.size_bytes

    def _headers(self, start: int) -> Iterator[tuple[int, BatchHeader]]:
        """As `_parts`, without the damaged parts."""
        for position, part in self._parts(start, self.size_bytes):
            if not isinstance(part, Damage):
                yield position, part

    def claimed_end(self) -> Offset:
        """Where the headers from the last index entry on end, which are not verified, or a known
        damage. If no header can be read there, the start of the segment."""
        end = self.base_offset
        _, start = self.offset_index.last_entry()
        with suppress(CorruptMessage):
            for each in self._parts(max(start, 0), self.size_bytes):
                end, _ = _end_of(each)
        return end

    def known_place(self) -> tuple[int, Offset]:
        """The position and the base offset of a batch near the end that its index entry confirms,
        else of the first batch."""
        index = self.offset_index
        for number in range(len(index) - 1, max(len(index) - _ENTRIES_TRIED, 0) - 1, -1):
            last_offset, position = index.entry(number)
            before = index.entry(number - 1)[0] if number else self.base_offset - 1
            header = first_header(self._log_file(), max(position, 0), self.size_bytes)
            if header is None:
                continue
            if before < header.base_offset and header.last_offset == last_offset:
                return max(position, 0), Offset(header.base_offset)
        return 0, self.base_offset

    def _newest_indexed(self) -> tuple[int, Offset]:
        """The last entry of the time index; the indexes are rebuilt if it is wrong."""
        entry = self.time_index.last_entry()
        if self._matches_log(*entry):
            return entry
        self._rebuild_wrong_indexes()
        return self._newest_known()

    def _newest_known(self) -> tuple[int, Offset]:
        """The last entry of the time index, or what is newer and known."""
        entry = self.time_index.last_entry()
        if self._max_timestamp is not None and self._max_timestamp > entry[0]:
            return self._max_timestamp, self._max_timestamp_offset
        return entry

    def _last_indexed(self) -> int:
        """The position of the last offset index entry; 0 if there is none."""
        offset, position = self.offset_index.last_entry()
        if position == 0 or self._is_batch_at(position, offset):
            return position
        self._rebuild_wrong_indexes()
        return self.offset_index.last_entry()[1]

    def _ends_newer_than(self, timestamp: int) -> bool:
        """Whether the last batches are newer than the time index: then entries are missing."""
        try:
            last = self._headers(self._last_indexed())
            return any(header.max_timestamp > timestamp for _, header in last)
        except CorruptMessage:
            return False

    def _matches_log(self, timestamp: int, offset: Offset) -> bool:
        """Whether a time index entry agrees with the log."""
        if timestamp == NO_TIMESTAMP:
            return True
        try:
            found = self.locate(offset)
            if found is None or found.base_offset > offset:
                return False
            header = read_header(self._log_file().pread(HEADER_BYTES, found.position))
        except CorruptMessage:
            return False
        return header.max_timestamp == timestamp

    # -- reading -------------------------------------------------------------------------------

    def locate(self, offset: Offset) -> Located | None:
        """The first batch that ends at or after `offset`; None if all end before it. A damaged part
        counts as one batch."""
        for damage in self.damages:
            if damage.first <= offset < damage.end:
                size_bytes = damage.end_position - damage.position
                return Located(damage.position, damage.first, size_bytes)
        if offset >= self._last_base_offset:
            if offset >= self.next_offset:
                return None
            position = self._last_position
            # What a recovery could not read again lies behind the last batch that it could.
            damaged = (damage.position for damage in self.damages if damage.position > position)
            end = next(damaged, self.size_bytes)
            return Located(position, self._last_base_offset, end - position)
        start = self.offset_index.look_up(offset)
        for damage in self.damages:
            if damage.end <= offset:
                start = max(start, damage.end_position)  # Headers in between may be unreadable.
        return self._find(
            start,
            starts_by=offset,
            wanted=lambda header: header.last_offset >= offset,
        )

    def locate_time(self, timestamp: int, from_offset: Offset) -> Located | None:
        """The first batch from `from_offset` on with a record at or after `timestamp`."""
        if timestamp > self.max_timestamp:
            return None
        entry = self.time_index.look_up(timestamp)
        if not self._matches_log(*entry):
            self._rebuild_wrong_indexes()
            entry = self.time_index.look_up(timestamp)
        start = max(entry[1], from_offset)
        return self._find(
            self.offset_index.look_up(start),
            starts_by=start,
            wanted=lambda header: (
                header.max_timestamp >= timestamp and header.last_offset >= from_offset
            ),
        )

    def _find(
        self, start: int, *, starts_by: Offset, wanted: Callable[[BatchHeader], bool]
    ) -> Located | None:
        """The first wanted batch from `start`; the index has an offset up to `starts_by` there."""
        end, following = start, starts_by
        try:
            for each in self._parts(max(start, 0), self.size_bytes):
                position, part = each
                if isinstance(part, Damage):
                    following, end = _end_of(each)
                    continue
                is_indexed = position == start != 0
                if is_indexed and not self.base_offset <= part.base_offset <= starts_by:
                    break
                if wanted(part):
                    return Located(position, Offset(part.base_offset), part.size_bytes)
                following, end = _end_of(each)
        except CorruptMessage as error:
            if start == 0 or end != start:
                error.offset = following
                raise
        if start != 0 and end == start and not self._is_batch_at(start, starts_by):
            self._rebuild_wrong_indexes()
            return self._find(0, starts_by=starts_by, wanted=wanted)
        if end != self.size_bytes:
            raise CorruptMessage(f"{self.log_path} has no whole batch at {end}")
        return None

    def offset_beyond(self, position: int) -> Offset | None:
        """An offset beyond all records before `position`; None if the index does not have it."""
        entry = self.offset_index.entry_from(position)
        return entry[0] if entry is not None and self._is_batch_at(entry[1], entry[0]) else None

    def _is_batch_at(self, position: int, starts_by: Offset) -> bool:
        if not 0 < position <= self.size_bytes - HEADER_BYTES:
            return False
        try:
            header = read_header(self._log_file().pread(HEADER_BYTES, position))
        except CorruptMessage:
            return False
        return self.base_offset <= header.base_offset <= starts_by

    def _rebuild_wrong_indexes(self) -> None:
        """An index entry does not match the log: rebuild both indexes."""
        log.warning("index does not match its log, rebuilding it", extra={"path": self.path("")})
        try:
            for _ in self.rebuilding_indexes():
                pass
        except CorruptMessage as error:
            # Rebuilding an index does not truncate the log.
            log.warning("batch unreadable", extra={"path": self.log_path, "reason": str(error)})

    def _keep_later_entries(
        self, found: list[tuple[Offset, int]], newest: tuple[int, Offset]
    ) -> None:
        """The log is damaged, not the index: without its entries nothing tells where the batches
        after the damage begin."""
        last_offset, last_position = self.offset_index.last_entry()
        has_later = False
        for offset, position in found:
            is_later = offset > last_offset and position > last_position
            # A wrong one, of a second damage, would have them rebuilt at every look-up.
            if is_later and self._is_batch_at(position, offset):
                self.offset_index.append(offset, position)
                has_later = True
        if has_later and self._matches_log(*newest):
            self.time_index.maybe_append(*newest)
            self._max_timestamp, self._max_timestamp_offset = self.time_index.last_entry()
        assert self._max_timestamp is not None
        if newest[0] > self._max_timestamp:
            # Else a look-up of a time behind the damage would find nothing and say nothing.
            self._max_timestamp, self._max_timestamp_offset = newest
        self.write_out_indexes()  # The scrubber and the next start read them from the disk.

    def rebuilding_indexes(self) -> Iterator[None]:
        """Rebuild both indexes from the log file, whose batches are not verified; yields from time
        to time, because a segment may have millions of them.

        Raises CorruptMessage at bytes that are no batch; the batches before it are indexed, and
        right entries behind it are kept.
        """
        entries = self.offset_index.entries(0, len(self.offset_index))
        newest = self._newest_known()
        try:
            yield from self._indexing_anew()
        except CorruptMessage:
            self._keep_later_entries(offset_entries(entries, self.base_offset), newest)
            raise

    def _indexing_anew(self) -> Iterator[None]:
        size_bytes = self.size_bytes
        self.reset()
        file = self._files.pin(self.log_path)
        try:
            for number, (position, part) in enumerate(self._parts(0, size_bytes)):
                if isinstance(part, Damage):
                    self.index_next_batch()
                else:
                    if not 0 <= part.last_offset - self.base_offset <= RELATIVE_OFFSET_MAX:
                        raise CorruptMessage(f"{self.log_path} has a wrong offset at {position}")
                    self.note(position, part)
                if number % _BATCHES_AT_ONCE == _BATCHES_AT_ONCE - 1:
                    yield
            self.finish()
        finally:
            self._files.unpin(file)
            self.size_bytes = size_bytes
            # Whether the last batch ends at the end of the file is not known here.
            self._next_offset, self._last_base_offset = None, _NOTHING_APPENDED

    def reset(self) -> None:
        """Empty both indexes and all counters, so that every batch can be noted again. The files
        stay as they are until the indexes are written out."""
        files, base_offset = self._files, self.base_offset
        self.offset_index = OffsetIndex(
            files, self.path(names.OFFSET_INDEX), base_offset, replaces=True
        )
        self.time_index = TimeIndex(files, self.path(names.TIME_INDEX), base_offset, replaces=True)
        self._index_bytes = self._count_index_bytes()
        self._bytes_since_index_entry = 0
        self._max_timestamp, self._max_timestamp_offset = NO_TIMESTAMP, NO_OFFSET
        self._next_offset = self.base_offset
        self._first_timestamp = None
        self._last_base_offset = _NOTHING_APPENDED
        self.size_bytes = 0

    def _log_file(self) -> File:
        return self._files.get(self.log_path)


def _end_of(part: tuple[int, BatchHeader | Damage]) -> tuple[Offset, int]:
    position, found = part
    if isinstance(found, Damage):
        return found.end, found.end_position
    return Offset(found.next_offset), position + found.size_bytes


class TornSegment(Exception):
    """A failed write could not be undone: the directory must not be written to any more."""
