"""What one task reads: a range of one partition's offsets, and how ranges are split. Pure.

The numbers follow Spark's Kafka connector, so that `minPartitions` and `maxRecordsPerPartition`
make as many tasks here as there.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from suwi.model.ids import Offset, TopicPartition


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
