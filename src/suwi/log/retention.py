"""Retention: which of the oldest segments to delete, by age, by size or below the start offset.

The rules are pure functions over `SegmentFacts`; `applying_retention` collects the facts, rolls a
new segment if all are to be deleted, and removes the segments from the log in slices.
Invariant: nothing at or above the high watermark is deleted, and segments are deleted from the
oldest on, without a hole.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import NamedTuple

from suwi.log import names
from suwi.log.log_segments import SEGMENTS_AT_ONCE
from suwi.log.partition_log import PartitionLog
from suwi.log.segment import Segment
from suwi.log.sliced_work import TURN, Steps
from suwi.model.ids import Offset
from suwi.model.topic_config import TopicConfig

log = logging.getLogger(__name__)


class SegmentFacts(NamedTuple):
    """What retention needs to know about a segment."""

    end_offset: Offset
    """The base offset of the next segment, or the end offset of the log."""
    size_bytes: int
    newest_ms: Callable[[], int]
    """The timestamp of its newest record, or the file's modification time if there is none."""


def count_deletable(
    segments: Sequence[SegmentFacts],
    config: TopicConfig,
    *,
    now_ms: int,
    start_offset: Offset,
    high_watermark: Offset,
) -> int:
    """How many of the oldest segments to delete; may include the active one.

    A log that is only compacted loses only segments below its start offset.
    """
    committed = list(takewhile(lambda facts: facts.end_offset <= high_watermark, segments))
    if committed and len(committed) == len(segments) and committed[-1].size_bytes == 0:
        committed.pop()  # An empty active segment need not be replaced.
    counts = [_count_below(start_offset, committed, segments)]
    if "delete" in config.cleanup_policy:
        size_bytes = sum(facts.size_bytes for facts in segments)
        counts.append(_count_surplus(size_bytes, config.retention_bytes, committed))
        counts.append(_count_expired(now_ms, config.retention_ms, committed))
    return max(counts)


def _count_below(
    start_offset: Offset, committed: Iterable[SegmentFacts], segments: Sequence[SegmentFacts]
) -> int:
    """Segments that end at or before the log start offset; never the active one."""
    below = sum(1 for _ in takewhile(lambda facts: facts.end_offset <= start_offset, committed))
    return min(below, len(segments) - 1)


def _count_surplus(size_bytes: int, bytes_max: int, committed: Iterable[SegmentFacts]) -> int:
    """Segments without which the log still has at least `bytes_max` bytes."""
    if bytes_max < 0:
        return 0
    count, surplus = 0, size_bytes - bytes_max
    for facts in committed:
        surplus -= facts.size_bytes
        if surplus < 0:
            break
        count += 1
    return count


def _count_expired(now_ms: int, age_ms_max: int, committed: Iterable[SegmentFacts]) -> int:
    """Segments whose newest record is older than `age_ms_max`."""
    if age_ms_max < 0:
        return 0
    expired = takewhile(lambda facts: now_ms - facts.newest_ms() > age_ms_max, committed)
    return sum(1 for _ in expired)


def applying_retention(
    partition_log: PartitionLog, high_watermark: Offset, now_ms: int, deleted: list[str]
) -> Steps[None]:
    """Remove deletable segments from the log. The paths of their files, to be deleted later, are
    added to `deleted`.

    If all segments are to be deleted, a new active one is created first. Raises KafkaStorageError.
    """
    config = partition_log.config
    if "delete" in config.cleanup_policy and config.retention_ms >= 0:
        yield from partition_log.reading_timestamps(now_ms - config.retention_ms)
    with partition_log.directory.guard():
        facts = _facts_of(partition_log)
        count = count_deletable(
            facts,
            config,
            now_ms=now_ms,
            start_offset=partition_log.start_offset,
            high_watermark=high_watermark,
        )
        if count == len(facts) and not _can_roll(partition_log, now_ms):
            count -= 1
    if count:
        log.info(
            "old segments removed",
            extra={
                "partition": str(partition_log.partition),
                "segments": count,
                "start_offset": max(partition_log.start_offset, facts[count - 1].end_offset),
            },
        )
    generation, deletable = partition_log.generation, partition_log.segments()[:count]
    for first in range(0, count, SEGMENTS_AT_ONCE):
        some = deletable[first : first + SEGMENTS_AT_ONCE]
        if first:
            yield TURN
            # Compaction may have replaced segments, or a truncation may have changed the log.
            is_same = partition_log.generation == generation
            if not is_same or partition_log.segments()[: len(some)] != some:
                return
        deleted += partition_log.remove_oldest(len(some))


def _can_roll(partition_log: PartitionLog, now_ms: int) -> bool:
    """Create a new active segment so that all others can be deleted. May fail on a full disk."""
    try:
        partition_log.roll(now_ms)
    except OSError as error:
        log.warning("cannot roll segment", extra={"dir": partition_log.dir, "reason": str(error)})
        return False
    return True


def _facts_of(partition_log: PartitionLog) -> list[SegmentFacts]:
    segments = partition_log.segments()
    ends = [segment.base_offset for segment in segments[1:]] + [partition_log.end_offset]
    return [
        SegmentFacts(end, segment.size_bytes, _newest_ms(partition_log, segment))
        for segment, end in zip(segments, ends, strict=True)
    ]


def _newest_ms(partition_log: PartitionLog, segment: Segment) -> Callable[[], int]:
    """Called only for the oldest segments: it may have to read their index."""

    def newest_ms() -> int:
        if segment.max_timestamp >= 0:
            return segment.max_timestamp
        return partition_log.files.disk.modified_ms(segment.path(names.LOG))

    return newest_ms
