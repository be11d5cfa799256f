"""`.timeindex`: maps timestamps to offsets.

An entry says that no record up to this offset is newer than this timestamp. It has twelve bytes:
timestamp, offset relative to the segment's base. Timestamps strictly increase from entry to entry.
"""

import struct

from suwi.log.file_cache import FileCache
from suwi.log.index_file import IndexFile
from suwi.model.ids import NO_TIMESTAMP, Offset

_ENTRY = struct.Struct(">qi")


class TimeIndex(IndexFile):
    __slots__ = ("_base_offset", "_last_timestamp")

    def __init__(self, files: FileCache, path: str, base_offset: Offset, *, create: bool) -> None:
        self._base_offset = base_offset
        super().__init__(files, path, _ENTRY.size, create=create)
        self._last_timestamp: int | None = NO_TIMESTAMP if create else None

    def maybe_append(self, timestamp: int, offset: Offset) -> None:
        """Add an entry if it is newer than the last one."""
        if self._last_timestamp is None:
            self._last_timestamp = self.last_entry()[0]
        if timestamp > self._last_timestamp:
            self.add_entry(_ENTRY.pack(timestamp, offset - self._base_offset))
            self._last_timestamp = timestamp

    def entry(self, number: int) -> tuple[int, Offset]:
        timestamp, relative = _ENTRY.unpack(self.entry_at(number))
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
