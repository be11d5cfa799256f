"""Damage of a log: offsets whose records are damaged or missing on the disk.

Neighbouring segments are compared when a log is opened, batches are checked by the scrubber (both:
`segment_check.py`). A log keeps what was found in `LogSegments.damages`: readers get
KAFKA_STORAGE_ERROR for these offsets, and all others as usual.
"""

from typing import NamedTuple

from suwi.model.ids import NO_OFFSET, Offset

_REREADS_MANY = 8


class Damage(NamedTuple):
    first: Offset
    end: Offset
    """The offset of the first record after the damage; the same as `first` if bytes without records
    follow the last batch of a segment."""
    segment: Offset
    """The base offset of the segment that has it, or of the one after missing records."""
    path: str
    reason: str
    position: int = 0
    end_position: int = 0
    """Where it is in the log file; the same for records that are in no file."""

    @property
    def is_in_file(self) -> bool:
        return self.end_position > self.position

    def overlaps(self, other: "Damage") -> bool:
        return self.first < other.end and other.first < self.end

    def merged(self, other: "Damage") -> "Damage":
        """One damage with the offsets of both, in the segment of the one that is in a file."""
        if not self.is_in_file and other.is_in_file:
            return other.merged(self)
        merged = self._replace(first=min(self.first, other.first), end=max(self.end, other.end))
        if other.is_in_file and other.segment == self.segment:
            return merged._replace(
                position=min(self.position, other.position),
                end_position=max(self.end_position, other.end_position),
            )
        return merged

    def __str__(self) -> str:
        if self.first == self.end:
            return f"bytes after offset {self.end - 1}"
        return f"offsets {self.first}-{self.end - 1}"


class Rereads:
    """Finds an offset that is read much more often than the others, in constant memory: a reader
    that rejects a damaged batch reads it again and again. Many readers of one offset look the same;
    what follows is cheap."""

    __slots__ = ("_count", "_offset")

    def __init__(self) -> None:
        self._offset = NO_OFFSET
        self._count = 0

    def are_many(self, offset: Offset) -> bool:
        """Count a read. True at every eighth one of the same offset, net of reads of others."""
        if offset == self._offset:
            self._count += 1
            if self._count >= _REREADS_MANY:
                self._count = 0
                return True
        elif self._count > 0:
            self._count -= 1
        else:
            self._offset = offset
        return False
