"""One compaction run over one log, as steps that a driver executes.

`plan_cleaner_run` selects the part of a log to compact, and how urgent that is: never the active
segment, nor anything at or above the last stable offset.
`clean` is a generator, see `log/sliced_work.py`: the jobs it yields run in a thread. A job uses
closed segments and its own memory, never the log. Back on the event loop the run first checks that
the log is still the same.
Invariant: segments are replaced from the oldest on, and each replacement is synced before the next
one: a tombstone is never removed before the records it deletes.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise
from typing import NamedTuple, TypeVar

from suwi.env import File
from suwi.log.batch_filter import BatchFilter, CleanedTransactions, LastBatch
from suwi.log.batch_scan import scan_batches, scan_headers
from suwi.log.cleaned_segment import (
    CleanedSegment,
    ScannedBatches,
    batches_for_one_job,
    remove_cleaned,
)
from suwi.log.offset_map import OffsetMap, keys_that_fit
from suwi.log.partition_log import PartitionLog
from suwi.log.segment import RELATIVE_OFFSET_MAX, Segment
from suwi.log.sliced_work import Steps
from suwi.log.txn_index import AbortedTxn, TxnIndex
from suwi.model.config_kinds import INT64_MAX
from suwi.model.ids import NO_OFFSET, Offset
from suwi.model.topic_config import TopicConfig
from suwi.records.batch import BatchHeader
from suwi.records.record import read_marker, scan_keys
from suwi.records.retain import stored_section

log = logging.getLogger(__name__)

T = TypeVar("T")

_JOB_HEADERS = 2000
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
    size_bytes = offset_index_bytes = time_index_bytes = 0
    for segment, segment_end in zip(segments, ends, strict=False):
        size_bytes += segment.size_bytes
        offset_index_bytes += segment.offset_index.size_bytes
        time_index_bytes += segment.time_index.size_bytes
        if (
            groups
            and len(groups[-1]) < _SEGMENTS_PER_GROUP_MAX
            and size_bytes <= config.segment_bytes
            and max(offset_index_bytes, time_index_bytes) <= config.segment_index_bytes
            and segment_end - 1 - groups[-1][0].base_offset <= RELATIVE_OFFSET_MAX
        ):
            groups[-1].append(segment)
        else:
            groups.append([segment])
            size_bytes = segment.size_bytes
            offset_index_bytes = segment.offset_index.size_bytes
            time_index_bytes = segment.time_index.size_bytes
    return groups


class CleanerAborted(Exception):
    """The log changed during the cleaning, or there is not enough disk space: retried later."""


@dataclass(slots=True)
class Cleaned:
    """The result of a run."""

    first_dirty: Offset
    end: Offset
    """The log is compacted up to here."""
    io_bytes: int = 0
    """Bytes read and written."""
    bytes_before: int = 0
    bytes_after: int = 0
    keys: int = 0


def clean(
    plan: CleanerPlan,
    done: Cleaned,
    *,
    now_ms: int,
    map_bytes_max: int,
    remove_later: Callable[[list[str]], None],
) -> Steps[None]:
    """Compact a log as planned; `done` is updated as the run proceeds.

    `remove_later` gets the paths of files that are no longer needed. Raises CleanerAborted,
    KafkaStorageError; any other error means that the log cannot be compacted.
    """
    cleaning = _Cleaning(plan, done, now_ms, map_bytes_max, remove_later)
    try:
        yield from cleaning.run()
    except Exception as error:
        cleaning.check()  # If the log was truncated or deleted, the job's error means nothing.
        if isinstance(error, OSError):
            raise plan.log.directory.failed(error, cleaning.generation) from error
        raise


class _Cleaning:
    def __init__(
        self,
        plan: CleanerPlan,
        done: Cleaned,
        now_ms: int,
        map_bytes_max: int,
        remove_later: Callable[[list[str]], None],
    ) -> None:
        self._plan = plan
        self._done = done
        self._log = plan.log
        self._disk = plan.log.files.disk
        self._now_ms = now_ms
        self._map_bytes_max = map_bytes_max
        self._remove_later = remove_later
        self.generation = plan.log.generation
        self._segments = [s for s in plan.log.segments() if s.base_offset < plan.end]
        self._remaining = list(self._segments)

    def check(self) -> None:
        """Raises CleanerAborted if the log is no longer the one that the run started with."""
        owner = self._log
        if owner.generation != self.generation or not owner.config.is_compacted:
            raise CleanerAborted(f"{owner.partition} was truncated, deleted or reconfigured")
        if owner.damages:  # Where they are in the old files is not where they would be in the new.
            raise CleanerAborted(f"{owner.partition} is damaged")
        # Retention removes the oldest segments first.
        if self._remaining and self._remaining[0] not in owner.segments():
            raise CleanerAborted(f"retention removed segments to be compacted: {owner.partition}")
        owner.check()

    def run(self) -> Steps[None]:
        if not self._segments:  # Between the plan and this run.
            owner = self._log.partition
            raise CleanerAborted(f"retention removed segments to be compacted: {owner}")
        yield partial(remove_cleaned, self._disk, self._log.dir)
        self.check()
        aborted = yield from self._read_aborted()
        offset_map, end = yield from self._build_map(aborted)
        self._done.keys = offset_map.count
        rules = BatchFilter(
            offset_map,
            end,
            CleanedTransactions(aborted),
            self._last_batches(),
            self._now_ms,
            self._log.config.delete_retention_ms,
        )
        within = [segment for segment in self._segments if segment.base_offset < end]
        for group in group_segments(within, self._log.config, self._plan.end):
            yield from self._clean_group(group, rules)
        self._log.cleaned_to = end
        self._done.end = end

    def _read_aborted(self) -> Steps[list[AbortedTxn]]:
        """All aborted transactions of the log: a marker may be far behind the records it aborts."""
        *closed, active = self._log.segments()
        newest = list(active.txn_index.entries())
        indexes = [TxnIndex(self._disk, segment.txn_index.path) for segment in closed]
        found: list[AbortedTxn] = yield lambda: [
            txn for index in indexes for txn in index.entries()
        ]
        self.check()
        return found + newest

    def _last_batches(self) -> dict[int, LastBatch]:
        return {
            producer.producer_id: LastBatch(
                producer.batches[-1].last_offset if producer.batches else NO_OFFSET, producer.epoch
            )
            for producer in self._log.producers.all()
        }

    # -- the newest offset of each key -----------------------------------------------------------

    def _build_map(self, aborted: list[AbortedTxn]) -> Steps[tuple[OffsetMap, Offset]]:
        """The map over as much of the dirty section as it can hold, and where that ends."""
        first_dirty = self._plan.first_dirty
        ends = [s.base_offset for _, s in pairwise(self._segments)] + [self._plan.end]
        dirty = [
            (segment, end)
            for segment, end in zip(self._segments, ends, strict=True)
            if end > first_dirty
        ]
        keys_max = keys_that_fit(self._map_bytes_max)
        records = 0
        for segment, _ in dirty:
            counting = partial(self._count_records, segment)
            records += yield from self._with_file(segment, counting)
        offset_map = OffsetMap(min(records, keys_max))
        mapper = _Mapper(offset_map, keys_max, first_dirty, aborted)
        for segment, end in dirty:
            yield from self._with_file(segment, partial(self._map_segment, segment, mapper))
            if mapper.is_full:
                break
            mapper.end = end
        return offset_map, mapper.end

    def _count_records(self, segment: Segment, file: File) -> Steps[int]:
        """The number of records according to the batch headers, which are not verified yet."""
        headers = scan_headers(file, self._first_position(segment), segment.size_bytes)
        records = 0
        while True:
            found = yield partial(_counts, islice(headers, _JOB_HEADERS))
            self.check()
            if not found:
                return records
            records += sum(found)

    def _map_segment(self, segment: Segment, mapper: "_Mapper", file: File) -> Steps[None]:
        found = scan_batches(file, self._first_position(segment), segment.size_bytes)
        is_more = True
        while is_more:
            io_bytes = mapper.bytes_read
            is_more = yield partial(mapper.map_batches, found)
            self._done.io_bytes += mapper.bytes_read - io_bytes
            self.check()

    def _first_position(self, segment: Segment) -> int:
        if segment.base_offset >= self._plan.first_dirty:
            return 0
        found = segment.locate(self._plan.first_dirty)
        return found.position if found is not None else segment.size_bytes

    # -- segments --------------------------------------------------------------------------------

    def _clean_group(self, group: list[Segment], rules: BatchFilter) -> Steps[None]:
        directory, end = self._log.dir, group[-1].next_offset
        size_bytes = sum(segment.size_bytes for segment in group)
        free_bytes = yield partial(self._disk.free_bytes, directory)
        self.check()
        if free_bytes < size_bytes:
            raise CleanerAborted(f"{directory}: {size_bytes} bytes needed, {free_bytes} bytes free")
        interval_bytes = self._log.config.index_interval_bytes
        cleaned = CleanedSegment(self._disk, directory, group[0].base_offset, interval_bytes)
        try:
            yield from self._fill(cleaned, group, rules, end)
        except Exception:
            yield cleaned.discard
            raise
        except BaseException:
            cleaned.close()  # The process is stopping.
            raise
        if len(group) > 1 or cleaned.is_changed:
            self._remove_later(cleaned.swap_in(self._log, group))
            del self._remaining[: len(group)]
            yield partial(self._disk.sync_dir, directory)
        else:
            del self._remaining[: len(group)]
            yield cleaned.discard
        self.check()
        self._done.bytes_before += size_bytes
        self._done.bytes_after += cleaned.size_bytes

    def _fill(
        self, cleaned: CleanedSegment, group: list[Segment], rules: BatchFilter, end: Offset
    ) -> Steps[None]:
        yield cleaned.create
        for segment in group:
            clean = partial(self._clean_segment, segment, cleaned, rules, end)
            yield from self._with_file(segment, clean)
        modified_ms = yield partial(self._disk.modified_ms, group[-1].log_path)
        yield partial(cleaned.finish, rules, modified_ms)
        self.check()

    def _clean_segment(
        self, segment: Segment, cleaned: CleanedSegment, rules: BatchFilter, end: Offset, file: File
    ) -> Steps[None]:
        found = scan_batches(file, 0, segment.size_bytes)
        is_more = True
        while is_more:
            io_bytes = cleaned.bytes_read + cleaned.size_bytes
            is_more = yield partial(cleaned.add_batches, found, rules, end=end)
            self._done.io_bytes += cleaned.bytes_read + cleaned.size_bytes - io_bytes
            self.check()

    def _with_file(self, segment: Segment, work: Callable[[File], Steps[T]]) -> Steps[T]:
        """Run `work` with the segment's file pinned: it stays open if the segment is removed."""
        files = self._log.files
        file = files.pin(segment.log_path)
        try:
            return (yield from work(file))
        finally:
            files.unpin(file)


class _Mapper:
    """Adds the batches of the dirty section to the map, in a thread."""

    def __init__(
        self,
        offset_map: OffsetMap,
        keys_max: int,
        first_dirty: Offset,
        aborted: Iterable[AbortedTxn],
    ) -> None:
        self._map = offset_map
        self._keys_max = keys_max
        self._first_dirty = first_dirty
        self._transactions = CleanedTransactions(
            txn for txn in aborted if txn.last_offset >= first_dirty
        )
        self.end = first_dirty
        self.is_full = False
        self.bytes_read = 0

    def map_batches(self, found: ScannedBatches) -> bool:
        """Map as many batches as one job should. Returns whether more may follow and fit."""
        is_more = False
        for header, batch in batches_for_one_job(found):
            if header.is_control:
                self._transactions.on_marker(header, read_marker(batch, header))
            elif not self._transactions.on_batch(header):
                if self._map.count and self._map.count + header.record_count > self._keys_max:
                    self.is_full = True
                    return False
                spans = scan_keys(stored_section(batch, header), header)
                if not self._map.count:
                    # At least one batch must fit, however small the map is configured, or cleaning
                    # would never make progress. The header's record count is not trusted.
                    self._map.reserve(len(spans))
                self._map.put(spans, header.base_offset)
            self.end = Offset(header.next_offset)
            self.bytes_read += len(batch)
            is_more = True
        return is_more


def _counts(headers: Iterator[tuple[int, BatchHeader]]) -> list[int]:
    return [max(header.record_count, 0) for _, header in headers]
