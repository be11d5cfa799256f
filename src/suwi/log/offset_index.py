"""`.index`: maps offsets to file positions.

An entry has the last offset of a batch and the batch's position. There is one entry for every
`index.interval.bytes` of log, of eight bytes: offset relative to the segment's base, position.
"""

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right

from suwi.log.file_cache import FileCache
from suwi.log.index_file import IndexFile
from suwi.model.ids import Offset

_ENTRY = struct.Struct(">ii")
_BLOCK_ENTRIES = 256


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
    __slots__ = ("_base_offset", "_block")

    def __init__(self, files: FileCache, path: str, base_offset: Offset, *, create: bool) -> None:
        self._base_offset = base_offset
        self._block: _Block | None = None
        super().__init__(files, path, _ENTRY.size, create=create)

    def append(self, last_offset: Offset, position: int) -> None:
        self.add_entry(_ENTRY.pack(last_offset - self._base_offset, position))

    def entry(self, number: int) -> tuple[Offset, int]:
        relative, position = _ENTRY.unpack(self.entry_at(number))
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

    def offset_from(self, position: int) -> Offset | None:
        """The offset of the first entry at or after `position`; None if there is none."""
        numbers = range(len(self))
        number = bisect_left(numbers, position, key=lambda each: self.entry(each)[1])
        return self.entry(number)[0] if number < len(numbers) else None

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
