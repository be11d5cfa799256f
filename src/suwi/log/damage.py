"""Damage of a log: offsets whose records are damaged or missing on the disk.

Neighbouring segments are compared when a log is opened (`neighbours.py`), batches are checked by
the scrubber (`segment_check.py`). A log keeps what was found in `LogSegments.damages`: readers get
KAFKA_STORAGE_ERROR for these offsets, and all others as usual.
"""

from typing import NamedTuple

from suwi.model.ids import Offset


class Damage(NamedTuple):
    first: Offset
    end: Offset
    """The offset of the first record after the damage."""
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

    def __str__(self) -> str:
        return f"offsets {self.first}-{self.end - 1}"
