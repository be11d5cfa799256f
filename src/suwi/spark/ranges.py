"""What one task reads, how ranges are split, and how much goes into a micro-batch. Pure.

`split_ranges` follows `minPartitions` and `maxRecordsPerPartition`, `limit` shares out
`maxOffsetsPerTrigger`, `Delay` decides on `minOffsetsPerTrigger`. The numbers follow Spark's Kafka
connector, so that there are as many tasks and offsets here as there.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from suwi.model.ids import Offset, TopicPartition
from suwi.spark.offsets import Offsets


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
