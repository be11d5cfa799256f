"""Compares each segment of a log with the next one: records may be missing between them.

Segments are contiguous, with exceptions that are legal: a gap below the start offset; offsets that
are too far away for an index (`LogSegments.base_for`); a log that was compacted, perhaps by Apache
Kafka before it was adopted, which leaves gaps between segments.
"""

from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise

from suwi.log.batch_scan import scan_headers
from suwi.log.damage import Damage
from suwi.log.file_cache import FileCache
from suwi.log.segment import RELATIVE_OFFSET_MAX, Segment
from suwi.log.sliced_work import TURN, Steps
from suwi.model.errors import CorruptMessage
from suwi.model.ids import Offset

_SEGMENTS_AT_ONCE = 8
"""Each takes about three short reads."""


def comparing_neighbours(
    files: FileCache, segments: Sequence[Segment], start_offset: Offset
) -> Steps[list[Damage]]:
    """What is missing from `start_offset` on. Not for a log that was compacted."""
    found: list[Damage] = []
    for number, (segment, following) in enumerate(pairwise(segments), start=1):
        if following.base_offset > start_offset:
            damage = None
            with suppress(OSError):  # Readers will get the error.
                damage = missing_between(files, segment, following, start_offset)
            if damage is not None:
                found.append(damage)
            if number % _SEGMENTS_AT_ONCE == 0:
                yield TURN
    return found


def missing_between(
    files: FileCache, segment: Segment, following: Segment, start_offset: Offset
) -> Damage | None:
    end, position = segment.end_of_whole_batches()
    base, path = following.base_offset, following.log_path
    missing = missing_after(files, segment.log_path, end, base, path, start_offset)
    if missing is None or position >= segment.size_bytes:
        return missing
    return missing._replace(
        segment=segment.base_offset,
        reason="the segment does not end with a whole batch",
        position=position,
        end_position=segment.size_bytes,
    )


def missing_after(
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
    try:
        first = next((h for _, h in scan_headers(file, 0, file.size())), None)
    except CorruptMessage:
        return False
    return first is not None and first.last_offset - end > RELATIVE_OFFSET_MAX
