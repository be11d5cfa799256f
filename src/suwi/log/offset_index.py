"""`.index`: where in the log file to start looking for an offset.

An entry says: a batch that ends at this offset starts at this position. One entry for every
`index.interval.bytes` of log, eight bytes each: offset relative to the segment's base, position.
"""

import struct

from suwi.log.file_cache import FileCache
from suwi.log.index_file import IndexFile
from suwi.model.ids import Offset

_ENTRY = struct.Struct(">ii")


class OffsetIndex:
    __slots__ = ("_base_offset", "_file")

    def __init__(self, files: FileCache, path: str, base_offset: Offset, *, create: bool) -> None:
        self._base_offset = base_offset
        self._file = IndexFile(files, path, _ENTRY.size, create=create)

    def __len__(self) -> int:
        return len(self._file)

    def append(self, last_offset: Offset, position: int) -> None:
        self._file.append(_ENTRY.pack(last_offset - self._base_offset, position))

    def entry(self, number: int) -> tuple[Offset, int]:
        relative, position = _ENTRY.unpack(self._file.entry(number))
        return Offset(self._base_offset + relative), position

    def last_entry(self) -> tuple[Offset, int]:
        """The newest entry; the segment's start where there is none."""
        count = len(self._file)
        return self.entry(count - 1) if count else (self._base_offset, 0)

    def look_up(self, offset: Offset) -> int:
        """A position at or before the batch that holds `offset`."""
        found = self._count_up_to(offset)
        return self.entry(found - 1)[1] if found else 0

    def truncate(self, offset: Offset) -> None:
        """Forget the entries at and above `offset`."""
        self._file.truncate(self._count_up_to(Offset(offset - 1)))

    def write_out(self) -> None:
        self._file.write_out()

    def _count_up_to(self, offset: Offset) -> int:
        low, high = 0, len(self._file)
        while low < high:
            middle = (low + high) // 2
            if self.entry(middle)[0] <= offset:
                low = middle + 1
            else:
                high = middle
        return low
