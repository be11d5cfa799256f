"""From where a batch begins and ends to what its tasks read, and what is lost on the way.

`plan_stream` judges two offsets of a query, `plan_batch` the bounds of a batch query.
"""

from typing import TYPE_CHECKING

from suwi.model.ids import NO_OFFSET, Offset, TopicPartition
from suwi.spark.lookup import Lookup
from suwi.spark.loss import LossReporter
from suwi.spark.offsets import EARLIEST, LATEST, BadOffsets, Offsets, describe
from suwi.spark.options import SourceOptions
from suwi.spark.ranges import OffsetRange, split_ranges

if TYPE_CHECKING:
    from suwi.spark.filters import Narrowed


async def plan_stream(
    lookup: Lookup, options: SourceOptions, start: Offsets, end: Offsets
) -> list[OffsetRange]:
    """Raises `DataLoss`."""
    loss = LossReporter(fail=options.fail_on_data_loss)
    gone = start.keys() - end.keys()
    if gone:
        loss.report(f"partitions are gone: {describe(gone)}")
    added = await _beginnings(lookup, end.keys() - start.keys(), loss)
    start = {**start, **added}
    ranges = []
    for partition in sorted(end):
        if partition not in start:
            continue
        if end[partition] < start[partition]:
            loss.report(
                f"{partition} ended at {start[partition]} and now ends at {end[partition]}: it was "
                "deleted and created again, or the query was told to start beyond its end"
            )
        ranges.append(OffsetRange(partition, start[partition], end[partition]))
    return _split(ranges, options)


async def _beginnings(lookup: Lookup, added: set[TopicPartition], loss: LossReporter) -> Offsets:
    """Partitions that were added are read from their first record on."""
    there = added & await lookup.partitions() if added else set()
    if added - there:
        loss.report(f"partitions are gone before they were read: {describe(added - there)}")
    found = await lookup.earliest(there)
    for partition, offset in found.items():
        if offset != 0:
            loss.report(f"{partition} is new and begins at offset {offset} instead of 0")
    return found


async def plan_batch(
    lookup: Lookup, options: SourceOptions, narrowed: "Narrowed | None" = None
) -> list[OffsetRange]:
    """Ranges may begin at EARLIEST and end at LATEST: whoever reads asks when it does.

    Raises `BadOffsets`.
    """
    start = await lookup.bind(options.starting)
    end = await lookup.bind(options.ending)
    if start.keys() != end.keys():
        changed = start.keys() ^ end.keys()
        raise BadOffsets(f"partitions came or went at this moment: {describe(changed)}")
    for partition in start:
        _check_order(partition, start[partition], end[partition])
    if narrowed is not None:
        return _split(await _narrow(lookup, start, end, narrowed), options)
    ranges = [OffsetRange(tp, start[tp], end[tp]) for tp in sorted(start)]
    if options.min_partitions is None and options.max_records_per_partition is None:
        return ranges
    settled_start, settled_end = await lookup.settle(start), await lookup.settle(end)
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
    lookup: Lookup, start: Offsets, end: Offsets, narrowed: "Narrowed"
) -> list[OffsetRange]:
    read = sorted(partition for partition in start if narrowed.reads(partition))
    start = await lookup.settle({partition: start[partition] for partition in read})
    end = await lookup.settle({partition: end[partition] for partition in read})
    if narrowed.time_ms_min is not None:
        found = await lookup.at_times(dict.fromkeys(read, narrowed.time_ms_min))
        for partition, offset in found.items():
            first = end[partition] if offset == NO_OFFSET else offset
            start[partition] = max(start[partition], first)
    ranges = [OffsetRange(tp, start[tp], end[tp]) for tp in read]
    return [narrowed.narrow(each) for each in ranges]


def _check_order(partition: TopicPartition, start: Offset, end: Offset) -> None:
    if start not in (EARLIEST, LATEST) and end not in (EARLIEST, LATEST) and start > end:
        raise BadOffsets(f"{partition} would be read from {start} to {end}: the end comes first")


def _split(ranges: list[OffsetRange], options: SourceOptions) -> list[OffsetRange]:
    return split_ranges(
        ranges,
        min_partitions=options.min_partitions,
        max_records=options.max_records_per_partition,
    )
