"""Selects the part of a log to compact, and how urgent that is.

`plan_cleaner_run` plans for one log; `group_segments` selects the segments to merge.
Invariant: the active segment, and everything at or above the last stable offset, is not touched.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from suwi.log.partition_log import PartitionLog
from suwi.log.segment import RELATIVE_OFFSET_MAX, Segment
from suwi.model.config_kinds import INT64_MAX
from suwi.model.ids import Offset
from suwi.model.topic_config import TopicConfig

# Each segment takes a few renames on the event loop. The next run merges the rest.
_SEGMENTS_PER_GROUP_MAX = 64


class CleanerPlan(NamedTuple):
    """A log with a dirty section to compact."""

    log: PartitionLog
    first_dirty: Offset
    end: Offset
    """The base offset of the first segment that must not be compacted."""
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool
    """Whether a record has exceeded `max.compaction.lag.ms`."""

    @property
    def dirty_ratio(self) -> float:
        return self.dirty_bytes / (self.clean_bytes + self.dirty_bytes)

    @property
    def is_due(self) -> bool:
        return self.is_overdue or self.dirty_ratio > self.log.config.min_cleanable_dirty_ratio


def plan_cleaner_run(log: PartitionLog, stable: Offset, now_ms: int) -> CleanerPlan | None:
    """The possible compaction of a log; None if there is none. `stable`: the last stable offset.

    Raises OSError and CorruptMessage.
    """
    segments = log.segments()
    if len(segments) == 1:
        return None
    first_dirty = _first_dirty(log)
    end = segments[0].base_offset
    clean_bytes = dirty_bytes = 0
    dirty: list[Segment] = []
    for segment, following in pairwise(segments):
        if following.base_offset > stable:
            break
        if following.base_offset <= first_dirty:
            clean_bytes += segment.size_bytes
        elif _is_too_recent(segment, log.config, now_ms):
            break
        else:
            dirty_bytes += segment.size_bytes
            dirty.append(segment)
        end = following.base_offset
    if end <= first_dirty or dirty_bytes == 0:
        return None
    is_overdue = _is_overdue(dirty, log.config, now_ms)
    return CleanerPlan(log, first_dirty, end, clean_bytes, dirty_bytes, is_overdue)


def _first_dirty(log: PartitionLog) -> Offset:
    """A checkpoint outside the log, after a loss of records, is ignored."""
    if log.start_offset <= log.cleaned_to <= log.end_offset:
        return log.cleaned_to
    return log.start_offset


def _is_too_recent(segment: Segment, config: TopicConfig, now_ms: int) -> bool:
    lag_ms = config.min_compaction_lag_ms
    return lag_ms > 0 and segment.max_timestamp > now_ms - lag_ms


def _is_overdue(dirty: Sequence[Segment], config: TopicConfig, now_ms: int) -> bool:
    lag_ms = config.max_compaction_lag_ms
    if lag_ms == INT64_MAX:
        return False
    firsts = (segment.first_timestamp for segment in dirty)
    return any(first is not None and 0 < first < now_ms - lag_ms for first in firsts)


def group_segments(
    segments: Sequence[Segment], config: TopicConfig, end: Offset
) -> list[list[Segment]]:
    """Adjacent segments that together fit into one segment. The last one ends at `end`."""
    ends = [following.base_offset for _, following in pairwise(segments)] + [end]
    groups: list[list[Segment]] = []
    size_bytes = index_bytes = time_index_bytes = 0
    for segment, segment_end in zip(segments, ends, strict=False):
        size_bytes += segment.size_bytes
        index_bytes += len(segment.offset_index) * 8
        time_index_bytes += len(segment.time_index) * 12
        if (
            groups
            and len(groups[-1]) < _SEGMENTS_PER_GROUP_MAX
            and size_bytes <= config.segment_bytes
            and max(index_bytes, time_index_bytes) <= config.segment_index_bytes
            and segment_end - 1 - groups[-1][0].base_offset <= RELATIVE_OFFSET_MAX
        ):
            groups[-1].append(segment)
        else:
            groups.append([segment])
            size_bytes = segment.size_bytes
            index_bytes = len(segment.offset_index) * 8
            time_index_bytes = len(segment.time_index) * 12
    return groups
