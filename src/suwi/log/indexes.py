"""The offset index and the time index of a segment: files with entries of fixed size.

The newest entries are buffered in memory until `write_out`: an index can be rebuilt from its log,
so a crash loses nothing. Kafka's classes can read any prefix of whole entries.
"""

import logging
import struct
import sys
from array import array
from bisect import bisect_left, bisect_right

from suwi.log.file_cache import FileCache, make_empty, write_all
from suwi.model.ids import NO_TIMESTAMP, Offset

log = logging.getLogger(__name__)

_PENDING_BYTES_MAX = 4096
_OFFSET_ENTRY = struct.Struct(">ii")
_BLOCK_ENTRIES = 256
_TIME_ENTRY = struct.Struct(">qi")


class IndexFile:
    """The common part of both indexes."""

    __slots__ = (
        "_count_on_disk",
        "_files",
        "_pending",
        "_replaces",
        "entry_bytes",
        "path",
        "size_bytes",
    )

    def __init__(
        self, files: FileCache, path: str, entry_bytes: int, *, create: bool, replaces: bool
    ) -> None:
        """`replaces`: it is built anew, and what the file has stays there until `write_out`: after
        a kill it may be all that tells where the batches behind a damaged one begin."""
        self._replaces = replaces
        self._files = files
        self.path = path
        self.entry_bytes = entry_bytes
        self._pending = bytearray()
        size = 0 if create or replaces else files.disk.size(path)
        if create:
            make_empty(files.get(path, create=True))
        self._count_on_disk = size // entry_bytes
        self.size_bytes = self._count_on_disk * entry_bytes  # including buffered entries

    def __len__(self) -> int:
        return self.size_bytes // self.entry_bytes

    def entry_at(self, number: int) -> bytes:
        at = number * self.entry_bytes
        in_memory = at - self._count_on_disk * self.entry_bytes
        if in_memory >= 0:
            return bytes(self._pending[in_memory : in_memory + self.entry_bytes])
        return self._files.get(self.path).pread(self.entry_bytes, at)

    def entries(self, first: int, end: int) -> bytes:
        """The entries from `first` up to but excluding `end`, concatenated."""
        on_disk = self._count_on_disk
        entry_bytes = self.entry_bytes
        found = b""
        if first < on_disk:
            size_bytes = (min(end, on_disk) - first) * entry_bytes
            found = self._files.get(self.path).pread(size_bytes, first * entry_bytes)
        if end > on_disk:
            start = (max(first, on_disk) - on_disk) * entry_bytes
            found += self._pending[start : (end - on_disk) * entry_bytes]
        return found

    def add_entry(self, entry: bytes) -> None:
        self._pending += entry
        self.size_bytes += len(entry)
        if self._replaces or len(self._pending) < _PENDING_BYTES_MAX:
            return
        try:
            self.write_out()
        except OSError as error:
            # The batch of this entry is already in the log, so this must not fail.
            log.warning("index write deferred", extra={"path": self.path, "reason": str(error)})

    def write_out(self) -> None:
        """Write all buffered entries to the file. Raises OSError; then they stay buffered."""
        if not self._pending and not self._replaces:
            return
        entries = bytes(self._pending)
        file = self._files.get(self.path, create=self._replaces)
        write_all(file, entries, self._count_on_disk * self.entry_bytes)
        if self._replaces:
            file.truncate(len(entries))
            self._replaces = False
        self._count_on_disk += len(entries) // self.entry_bytes
        self._pending.clear()

    def keep_first(self, count: int) -> None:
        if count >= len(self):
            return
        if count <= self._count_on_disk:
            self._pending.clear()
            self._count_on_disk = count
            self._files.get(self.path).truncate(count * self.entry_bytes)
        else:
            del self._pending[(count - self._count_on_disk) * self.entry_bytes :]
        self.size_bytes = count * self.entry_bytes


class _Block:
    """A block of entries in memory: a sequential reader finds its next offset in it too."""

    __slots__ = ("end", "offsets", "positions")

    def __init__(self, entries: bytes, end: int) -> None:
        numbers = array("i", entries)
        if sys.byteorder == "little":
            numbers.byteswap()
        self.offsets, self.positions = numbers[::2], numbers[1::2]
        self.end = end
        """The number of the entry after the last one."""

    def covers(self, relative: int, count: int) -> bool:
        offsets = self.offsets
        return offsets[0] <= relative and (relative <= offsets[-1] or self.end == count)


class OffsetIndex(IndexFile):
    """`.index`: maps offsets to file positions.

    An entry has the last offset of a batch and the batch's position. There is one entry for every
    `index.interval.bytes` of log, of eight bytes: offset relative to the segment's base, position.
    """

    __slots__ = ("_base_offset", "_block")

    def __init__(
        self,
        files: FileCache,
        path: str,
        base_offset: Offset,
        *,
        create: bool = False,
        replaces: bool = False,
    ) -> None:
        self._base_offset = base_offset
        self._block: _Block | None = None
        super().__init__(files, path, _OFFSET_ENTRY.size, create=create, replaces=replaces)

    def append(self, last_offset: Offset, position: int) -> None:
        self.add_entry(_OFFSET_ENTRY.pack(last_offset - self._base_offset, position))

    def entry(self, number: int) -> tuple[Offset, int]:
        relative, position = _OFFSET_ENTRY.unpack(self.entry_at(number))
        return Offset(self._base_offset + relative), position

    def last_entry(self) -> tuple[Offset, int]:
        """The newest entry; (base offset, 0) if there is none."""
        count = len(self)
        return self.entry(count - 1) if count else (self._base_offset, 0)

    def look_up(self, offset: Offset) -> int:
        """A position at or before the batch that contains `offset`."""
        relative = offset - self._base_offset
        count = len(self)
        block = self._block
        if block is None or not block.covers(relative, count):
            blocks = self._count_up_to(offset, step=_BLOCK_ENTRIES)
            if not blocks:
                return 0
            first = (blocks - 1) * _BLOCK_ENTRIES
            end = min(first + _BLOCK_ENTRIES, count)
            block = self._block = _Block(self.entries(first, end), end)
        return block.positions[bisect_right(block.offsets, relative) - 1]

    def entry_from(self, position: int) -> tuple[Offset, int] | None:
        """The first entry at or after `position`; None if there is none."""
        numbers = range(len(self))
        number = bisect_left(numbers, position, key=lambda each: self.entry(each)[1])
        return self.entry(number) if number < len(numbers) else None

    def truncate(self, offset: Offset) -> None:
        """Remove the entries at and above `offset`."""
        self._block = None
        self.keep_first(self._count_up_to(Offset(offset - 1)))

    def _count_up_to(self, offset: Offset, step: int = 1) -> int:
        """The number of entries at or below `offset`, counting every `step`th one."""
        low, high = 0, -(-len(self) // step)
        while low < high:
            middle = (low + high) // 2
            if self.entry(middle * step)[0] <= offset:
                low = middle + 1
            else:
                high = middle
        return low


def offset_entries(data: bytes, base_offset: Offset) -> list[tuple[Offset, int]]:
    """The entries of an offset index: the last offset of a batch, and its position."""
    whole = len(data) - len(data) % _OFFSET_ENTRY.size
    return [
        (Offset(base_offset + relative), position)
        for relative, position in _OFFSET_ENTRY.iter_unpack(data[:whole])
    ]


class TimeIndex(IndexFile):
    """`.timeindex`: maps timestamps to offsets.

    An entry says that no record up to this offset is newer than this timestamp. It has twelve
    bytes: timestamp, offset relative to the segment's base. Timestamps strictly increase.
    """

    __slots__ = ("_base_offset", "_last_timestamp")

    def __init__(
        self,
        files: FileCache,
        path: str,
        base_offset: Offset,
        *,
        create: bool = False,
        replaces: bool = False,
    ) -> None:
        self._base_offset = base_offset
        super().__init__(files, path, _TIME_ENTRY.size, create=create, replaces=replaces)
        self._last_timestamp: int | None = NO_TIMESTAMP if create or replaces else None

    def maybe_append(self, timestamp: int, offset: Offset) -> None:
        """Add an entry if it is newer than the last one."""
        if self._last_timestamp is None:
            self._last_timestamp = self.last_entry()[0]
        if timestamp > self._last_timestamp:
            self.add_entry(_TIME_ENTRY.pack(timestamp, offset - self._base_offset))
            self._last_timestamp = timestamp

    def entry(self, number: int) -> tuple[int, Offset]:
        timestamp, relative = _TIME_ENTRY.unpack(self.entry_at(number))
        return timestamp, Offset(self._base_offset + relative)

    def last_entry(self) -> tuple[int, Offset]:
        """The newest timestamp and its offset; (-1, base offset) if there is none."""
        count = len(self)
        return self.entry(count - 1) if count else (NO_TIMESTAMP, self._base_offset)

    def look_up(self, timestamp: int) -> tuple[int, Offset]:
        """The last entry older than `timestamp`: no record up to its offset is as new as that."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self.entry(middle)[0] < timestamp:
                low = middle + 1
            else:
                high = middle
        return self.entry(low - 1) if low else (NO_TIMESTAMP, self._base_offset)

    def truncate(self, offset: Offset) -> None:
        """Remove the entries at and above `offset`."""
        count = len(self)
        while count and self.entry(count - 1)[1] >= offset:
            count -= 1
        self.keep_first(count)
        self._last_timestamp = None
