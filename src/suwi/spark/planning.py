"""Plans which offsets the tasks of a batch read, and finds records that are lost.

`check_continuity` compares a query's offsets with the topics before Spark writes the next ones to
its log, `plan_stream` takes two offsets of a query, `plan_batch` the bounds of a batch query.
`split_ranges` follows `minPartitions` and `maxRecordsPerPartition`, `limit` shares out
`maxOffsetsPerTrigger`, `Delay` decides on `minOffsetsPerTrigger`: their numbers follow those of
Spark's Kafka connector, so that there are as many tasks and offsets here as there.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from suwi.model.ids import NO_OFFSET, Offset, TopicPartition
from suwi.spark.offset_resolver import OffsetResolver, may_name
from suwi.spark.offsets import (
    EARLIEST,
    LATEST,
    BadOffsets,
    CheckpointMismatch,
    LossReporter,
    Offsets,
    describe,
    from_json,
    replaced_topics,
    topic_ids,
)
from suwi.spark.options import SourceOptions
from suwi.spark.where import Bounds, Condition, may_match

_PLACES: Final = ("topic", "partition", "offset", "timestamp")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


# -- how much a task and a micro-batch read --------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OffsetRange:
    partition: TopicPartition
    start: Offset
    end: Offset
    """The first that is not read."""
    topic_id: str | None = None
    """Of which topic of that name; None: whichever there is."""

    @property
    def size(self) -> int:
        """How many offsets; compaction and transactions leave fewer records."""
        return self.end - self.start


def split_ranges(
    ranges: Iterable[OffsetRange],
    *,
    min_partitions: int | None = None,
    max_records: int | None = None,
) -> list[OffsetRange]:
    """Ranges of the tasks: empty ones are left out, large ones divided."""
    left = [each for each in ranges if each.size > 0]
    if max_records is not None:
        left = [part for each in left for part in _divide(each, -(-each.size // max_records))]
    if min_partitions is None or len(left) >= min_partitions:
        return left
    total = sum(each.size for each in left)
    small = {each for each in left if _share(each.size, total, min_partitions) == 1}
    rest = total - sum(each.size for each in small)
    wanted = max(min_partitions - len(small), 1)
    return [
        part
        for each in left
        for part in _divide(each, 1 if each in small else _share(each.size, rest, wanted))
    ]


def _share(size: int, total: int, parts: int) -> int:
    return max(int(size / total * parts + 0.5), 1)


def _divide(whole: OffsetRange, parts: int) -> list[OffsetRange]:
    divided = []
    start, left = whole.start, whole.size
    for number in range(parts):
        size = left // (parts - number)
        left -= size
        if size > 0:
            end = Offset(start + size)
            divided.append(OffsetRange(whole.partition, start, end, whole.topic_id))
            start = end
    return divided


def limit(
    most: int, start: Mapping[TopicPartition, Offset], end: Mapping[TopicPartition, Offset]
) -> Offsets:
    """An end that is at most `most` offsets away, each partition's share by what it has.

    A partition with little is not starved: it gets at least one, so the sum may be a little more.
    `start` has every partition of `end`.
    """
    sizes = {tp: end[tp] - start[tp] for tp in end if end[tp] > start[tp]}
    total = sum(sizes.values())
    limited = dict(end)
    for partition, size in sizes.items():
        share = most * (size / total)
        offsets = math.ceil(share) if share < 1 else math.floor(share)
        limited[partition] = Offset(min(end[partition], start[partition] + offsets))
    return limited


class Delay:
    """Holds back a batch that would be small, but not for longer than it may."""

    def __init__(self, least: int, delay_ms_max: int) -> None:
        self._least = least
        self._delay_ms_max = delay_ms_max
        self._last_ms: int | None = None

    def holds_back(
        self,
        start: Mapping[TopicPartition, Offset],
        end: Mapping[TopicPartition, Offset],
        now_ms: int,
    ) -> bool:
        """The first batch of a run is never held back."""
        offsets = sum(end[tp] - start.get(tp, Offset(0)) for tp in end)
        is_late = self._last_ms is None or now_ms - self._last_ms >= self._delay_ms_max
        if offsets < self._least and not is_late:
            return True
        self._last_ms = now_ms
        return False


# -- plans -----------------------------------------------------------------------------------------


def check_continuity(
    options: SourceOptions, start: Mapping[str, Any], found: Offsets, ids: Mapping[str, str]
) -> None:
    """Refuse to go on from `start` where that belongs to other topics, or records would be lost.

    Once Spark has written the end of a batch, the old offsets are out of reach: a checkpoint that
    was started once with another topic would read all of its own topic again afterwards.
    Raises `CheckpointMismatch`, `DataLoss`.
    """
    known = from_json(start)
    topics = {partition.topic for partition in known}
    other = {topic for topic in topics if not may_name(options.selection, topic)}
    if topics and other == topics:
        reads = {partition.topic for partition in found}
        raise CheckpointMismatch(
            f"this checkpoint belongs to other topics: it holds offsets of {_names(topics)}, and "
            f"the query reads {_names(reads)}. Give the query a checkpoint of its own; to begin "
            "anew with this one, see `suwi pipeline reset --dry-run`. Nothing was changed"
        )
    loss = LossReporter(fail=options.fail_on_data_loss)
    if other:
        loss.report(
            f"the checkpoint holds offsets of {_names(other)}, which the query no longer reads",
            'Name the topic again, or set the option failOnDataLoss to "false" to forget them',
        )
    gone = {partition for partition in known.keys() - found.keys() if partition.topic not in other}
    if gone:
        loss.report(f"partitions are gone: {describe(gone)}")
    anew = replaced_topics(start, ids)
    for partition in sorted(known.keys() & found.keys()):
        if found[partition] < known[partition] and partition.topic not in anew:
            _report_backwards(loss, partition, known[partition], found[partition])
    for topic in sorted(anew):
        loss.report(
            f"topic {topic!r} was deleted and created again: what the former had after the "
            "checkpoint's offsets is gone, and the new one is read from its beginning",
            'To do so, set the option failOnDataLoss to "false"',
        )


def _report_backwards(
    loss: LossReporter, partition: TopicPartition, start: Offset, end: Offset
) -> None:
    loss.report(
        f"{partition} ended at {start} and now ends at {end}: it was deleted and created again, or "
        "the query was told to start beyond its end"
    )


def _names(topics: Iterable[str]) -> str:
    return ", ".join(sorted(topics)) or "none"


async def plan_stream(
    resolver: OffsetResolver,
    options: SourceOptions,
    first: Mapping[str, Any],
    last: Mapping[str, Any],
) -> list[OffsetRange]:
    """From one offset of a query to the next. Raises `DataLoss`."""
    ids = topic_ids(last)
    anew = replaced_topics(first, ids)
    start = {tp: offset for tp, offset in from_json(first).items() if tp.topic not in anew}
    end = from_json(last)
    loss = LossReporter(fail=options.fail_on_data_loss)
    gone = start.keys() - end.keys()
    if gone:
        loss.report(f"partitions are gone: {describe(gone)}")
    added = await _beginnings(resolver, start, end, loss)
    start = {**start, **added}
    ranges = []
    for partition in sorted(end):
        if partition not in start:
            continue
        if end[partition] < start[partition]:
            _report_backwards(loss, partition, start[partition], end[partition])
        id_ = ids.get(partition.topic)
        ranges.append(OffsetRange(partition, start[partition], end[partition], id_))
    return _split([narrowed(each, options.choice.where) for each in ranges], options)


async def _beginnings(
    resolver: OffsetResolver, start: Offsets, end: Offsets, loss: LossReporter
) -> Offsets:
    """Partitions that were added are read from their first record on.

    Of a topic that the query did not read before, what is gone was not for it.
    """
    added = end.keys() - start.keys()
    if not added:
        return {}
    topics = {partition.topic for partition in end}
    there = added & await resolver.partitions(may_be_missing=topics)
    if added - there:
        loss.report(f"partitions are gone before they were read: {describe(added - there)}")
    found = await resolver.earliest(there)
    read_before = {partition.topic for partition in start}
    for partition, offset in found.items():
        if offset != 0 and partition.topic in read_before:
            loss.report(f"{partition} is new and begins at offset {offset} instead of 0")
    return found


async def plan_batch(resolver: OffsetResolver, options: SourceOptions) -> list[OffsetRange]:
    """Ranges may begin at EARLIEST and end at LATEST: the task that reads resolves them.

    Raises `BadOffsets`.
    """
    start = await resolver.bind(options.starting)
    end = await resolver.bind(options.ending)
    if start.keys() != end.keys():
        changed = start.keys() ^ end.keys()
        raise BadOffsets(f"partitions came or went at this moment: {describe(changed)}")
    for partition in start:
        _check_order(partition, start[partition], end[partition])
    if any(one.column in _PLACES for one in options.choice.where):
        return _split(await _narrow(resolver, start, end, options.choice.where), options)
    ranges = [OffsetRange(tp, start[tp], end[tp]) for tp in sorted(start)]
    if options.min_partitions is None and options.max_records_per_partition is None:
        return ranges
    settled_start, settled_end = await resolver.settle(start), await resolver.settle(end)
    for partition in start:
        check_settled(partition, settled_start[partition], settled_end[partition])
    parts = _split(
        [OffsetRange(tp, settled_start[tp], settled_end[tp]) for tp in sorted(start)], options
    )
    return [
        OffsetRange(
            part.partition,
            start[part.partition] if part.start == settled_start[part.partition] else part.start,
            end[part.partition] if part.end == settled_end[part.partition] else part.end,
        )
        for part in parts
    ]


async def _narrow(
    resolver: OffsetResolver, start: Offsets, end: Offsets, where: Iterable[Condition]
) -> list[OffsetRange]:
    """Raises `BadOffsets`."""
    read = sorted(partition for partition in start if _is_wanted(partition, where))
    start = await resolver.settle({partition: start[partition] for partition in read})
    end = await resolver.settle({partition: end[partition] for partition in read})
    for partition in read:
        check_settled(partition, start[partition], end[partition])
    time_ms = _earliest_ms(where)
    if time_ms > 0:  # A record may have no time, which is shown as a millisecond before 1970.
        found = await resolver.at_times(dict.fromkeys(read, time_ms))
        for partition, offset in found.items():
            first = end[partition] if offset == NO_OFFSET else offset
            start[partition] = max(start[partition], first)
    return [narrowed(OffsetRange(tp, start[tp], end[tp]), where) for tp in read]


def narrowed(whole: OffsetRange, where: Iterable[Condition]) -> OffsetRange:
    """The part that may have wanted rows; perhaps an empty one."""
    start, end = int(whole.start), int(whole.end)
    if not _is_wanted(whole.partition, where):
        return replace(whole, end=whole.start)
    for one in where:
        if one.column != "offset":
            continue
        values = one.value if one.operator == "in" else (one.value,)
        if one.operator in ("=", "in", ">=", ">"):
            start = max(start, min(values) + (one.operator == ">"))
        if one.operator in ("=", "in", "<=", "<"):
            end = min(end, max(values) + (one.operator != "<"))
        if one.operator == "null":
            end = start
    return replace(whole, start=Offset(start), end=Offset(max(start, end)))


def _is_wanted(partition: TopicPartition, where: Iterable[Condition]) -> bool:
    known = {"topic": partition.topic, "partition": int(partition.partition)}
    return all(
        may_match(one, Bounds(known[one.column], known[one.column], has_nulls=False))
        for one in where
        if one.column in known
    )


def _earliest_ms(where: Iterable[Condition]) -> int:
    """Older records may be left out. There is no latest: times need not rise with offsets."""
    least = 0
    for one in where:
        if one.column == "timestamp" and one.operator in ("=", "in", ">", ">="):
            moment = min(one.value) if one.operator == "in" else one.value
            least = max(least, (moment - _EPOCH) // timedelta(milliseconds=1))
    return least


def _check_order(partition: TopicPartition, start: Offset, end: Offset) -> None:
    if start not in (EARLIEST, LATEST) and end not in (EARLIEST, LATEST) and start > end:
        raise BadOffsets(f"{partition} would be read from {start} to {end}: the end comes first")


def check_settled(partition: TopicPartition, start: Offset, end: Offset) -> None:
    """A start that was given, against the end that a partition has now."""
    if start > end:
        raise BadOffsets(f"startingOffsets: {partition} ends at {end}, and {start} is beyond that")


def _split(ranges: list[OffsetRange], options: SourceOptions) -> list[OffsetRange]:
    return split_ranges(
        ranges, min_partitions=options.min_partitions, max_records=options.max_records_per_partition
    )
