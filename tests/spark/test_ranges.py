"""How ranges of offsets become tasks: the same numbers as Spark's Kafka connector has."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from suwi.model.ids import Offset, PartitionIndex, TopicPartition
from suwi.spark.planning import OffsetRange, split_ranges


def whole(number: int, start: int, end: int) -> OffsetRange:
    return OffsetRange(TopicPartition("t", PartitionIndex(number)), Offset(start), Offset(end))


def sizes(ranges: list[OffsetRange]) -> list[tuple[int, int]]:
    return [(each.partition.partition, each.size) for each in ranges]


def test_without_limits_each_partition_is_one_task_and_empty_ones_none() -> None:
    ranges = [whole(0, 5, 10), whole(1, 3, 3), whole(2, 9, 4)]
    assert split_ranges(ranges) == [whole(0, 5, 10)]


def test_enough_partitions_are_not_split() -> None:
    ranges = [whole(0, 0, 100), whole(1, 0, 1)]
    assert split_ranges(ranges, min_partitions=2) == ranges


def test_the_largest_partition_is_split_most() -> None:
    ranges = [whole(0, 0, 1), whole(1, 0, 1), whole(2, 0, 1), whole(3, 0, 10_000)]
    split = split_ranges(ranges, min_partitions=6)
    assert sizes(split) == [(0, 1), (1, 1), (2, 1), (3, 3333), (3, 3333), (3, 3334)]


def test_shares_are_rounded_to_the_nearest() -> None:
    split = split_ranges([whole(0, 0, 100), whole(1, 0, 50)], min_partitions=4)
    assert sizes(split) == [(0, 33), (0, 33), (0, 34), (1, 50)]


def test_no_task_has_more_than_the_records_it_may_have() -> None:
    split = split_ranges([whole(0, 10, 35), whole(1, 0, 10)], max_records=10)
    assert sizes(split) == [(0, 8), (0, 8), (0, 9), (1, 10)]
    assert split[0].start == 10
    assert split[2].end == 35


def test_both_limits_hold() -> None:
    split = split_ranges([whole(0, 0, 30)], max_records=15, min_partitions=5)
    assert len(split) >= 5
    assert max(each.size for each in split) <= 15


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), max_size=8),
    st.none() | st.integers(1, 30),
    st.none() | st.integers(10_000, 10**6),
)
def test_nothing_is_lost_and_nothing_comes_twice(
    spans: list[tuple[int, int]], min_partitions: int | None, max_records: int | None
) -> None:
    ranges = [whole(number, start, start + size) for number, (start, size) in enumerate(spans)]
    split = split_ranges(ranges, min_partitions=min_partitions, max_records=max_records)
    for each in ranges:
        parts = [part for part in split if part.partition == each.partition]
        assert sum(part.size for part in parts) == each.size
        assert all(a.end == b.start for a, b in pairwise(parts))
        if parts:
            assert (parts[0].start, parts[-1].end) == (each.start, each.end)
