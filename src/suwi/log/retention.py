"""Which of the oldest segments may go: by age, by size, or because nobody may read them any more.

The rules are pure functions over `SegmentFacts`; `applying_retention` gathers the facts, rolls
where everything is to go, and takes the segments out of the log, some at a time.
Invariant: nothing at or above the high watermark goes, and segments go from the oldest on, without
a hole.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import NamedTuple

from suwi.log import names
from suwi.log.log_segments import SEGMENTS_AT_ONCE
from suwi.log.partition_log import PartitionLog
from suwi.log.segment import Segment
from suwi.log.steps import TURN, Steps, run_steps
from suwi.model.ids import Offset
from suwi.model.topic_config import TopicConfig

log = logging.getLogger(__name__)


class SegmentFacts(NamedTuple):
    """What retention needs to know of a segment."""

    end_offset: Offset
    """Where the next segment starts, or where the log ends."""
    size_bytes: int
    newest_ms: Callable[[], int]
    """Its newest record's time, or when its file was written where the records have none."""


def count_deletable(
    segments: Sequence[SegmentFacts],
    config: TopicConfig,
    *,
    now_ms: int,
    start_offset: Offset,
    high_watermark: Offset,
) -> int:
    """How many of the oldest segments may go; perhaps all, the active one too.

    A log that is only compacted loses just what lies below its start offset.
    """
    committed = list(takewhile(lambda facts: facts.end_offset <= high_watermark, segments))
    if committed and len(committed) == len(segments) and committed[-1].size_bytes == 0:
        committed.pop()  # An empty active segment is already the new start.
    counts = [_count_below(start_offset, committed, segments)]
    if "delete" in config.cleanup_policy:
        size_bytes = sum(facts.size_bytes for facts in segments)
        counts.append(_count_surplus(size_bytes, config.retention_bytes, committed))
        counts.append(_count_expired(now_ms, config.retention_ms, committed))
    return max(counts)


def _count_below(
    start_offset: Offset, committed: Iterable[SegmentFacts], segments: Sequence[SegmentFacts]
) -> int:
    """Those that end at or before the start of the log, which never count the active one."""
    below = sum(1 for _ in takewhile(lambda facts: facts.end_offset <= start_offset, committed))
    return min(below, len(segments) - 1)


def _count_surplus(size_bytes: int, bytes_max: int, committed: Iterable[SegmentFacts]) -> int:
    """Those without which the log is still no smaller than `bytes_max`."""
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
    """Those whose newest record is older than `age_ms_max`."""
    if age_ms_max < 0:
        return 0
    expired = takewhile(lambda facts: now_ms - facts.newest_ms() > age_ms_max, committed)
    return sum(1 for _ in expired)


def apply_retention(partition_log: PartitionLog, high_watermark: Offset, now_ms: int) -> list[str]:
    """As `applying_retention`, here and now; the paths of the files to delete."""
    gone: list[str] = []
    run_steps(applying_retention(partition_log, high_watermark, now_ms, gone))
    return gone


def applying_retention(
    partition_log: PartitionLog, high_watermark: Offset, now_ms: int, gone: list[str]
) -> Steps[None]:
    """Take out of the log what may go; the paths of the files to delete, at leisure, are added to
    `gone`.

    Where all segments are to go a new active one is made first. Raises KafkaStorageError.
    """
    with partition_log.directory.guard():
        facts = _facts_of(partition_log)
        count = count_deletable(
            facts,
            partition_log.config,
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
    generation, doomed = partition_log.generation, partition_log.segments()[:count]
    for first in range(0, count, SEGMENTS_AT_ONCE):
        some = doomed[first : first + SEGMENTS_AT_ONCE]
        if first:
            yield TURN
            # Compaction may have replaced them, a truncation have made the log shorter.
            is_same = partition_log.generation == generation
            if not is_same or partition_log.segments()[: len(some)] != some:
                return
        gone += partition_log.take_oldest(len(some))


def _can_roll(partition_log: PartitionLog, now_ms: int) -> bool:
    """Make a new active segment, so that all before it can go. On a full disk the others go."""
    try:
        partition_log.roll(now_ms)
    except OSError as error:
        log.warning("cannot roll", extra={"dir": partition_log.dir, "reason": str(error)})
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
    """Asked only of the oldest segments: it may have to read their index."""

    def newest_ms() -> int:
        if segment.max_timestamp >= 0:
            return segment.max_timestamp
        return partition_log.files.disk.modified_ms(segment.path(names.LOG))

    return newest_ms
