"""Filters narrow what is read, never what is found."""

from datetime import UTC, datetime

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from suwi.model.ids import Offset, PartitionIndex, TopicPartition
from suwi.spark.filters import Narrowed
from suwi.spark.ranges import OffsetRange

A0 = TopicPartition("a", PartitionIndex(0))
A1 = TopicPartition("a", PartitionIndex(1))
B0 = TopicPartition("b", PartitionIndex(0))


@pytest.mark.parametrize(
    ("filters", "read"),
    [
        ([], [A0, A1, B0]),
        ([EqualTo(("topic",), "a")], [A0, A1]),
        ([EqualNullSafe(("topic",), "b"), IsNotNull(("topic",))], [B0]),
        ([In(("topic",), ("a", "b", None)), EqualTo(("partition",), 0)], [A0, B0]),
        ([In(("partition",), (1, 2))], [A1]),
        ([GreaterThan(("partition",), 0)], [A1]),
        ([LessThan(("partition",), 1)], [A0, B0]),
        ([EqualTo(("topic",), "a"), EqualTo(("topic",), "b")], []),
        ([Not(EqualTo(("topic",), "a")), EqualTo(("value",), b"x")], [A0, A1, B0]),
        ([EqualNullSafe(("topic",), None)], [A0, A1, B0]),
    ],
)
def test_filters_choose_partitions(filters: list[Filter], read: list[TopicPartition]) -> None:
    narrowed = Narrowed.by(filters)
    assert [partition for partition in (A0, A1, B0) if narrowed.reads(partition)] == read


@pytest.mark.parametrize(
    ("filters", "start", "end"),
    [
        ([], 10, 20),
        ([GreaterThan(("offset",), 12)], 13, 20),
        ([GreaterThanOrEqual(("offset",), 12), LessThan(("offset",), 15)], 12, 15),
        ([LessThanOrEqual(("offset",), 15)], 10, 16),
        ([EqualTo(("offset",), 15)], 15, 16),
        ([In(("offset",), (18, None, 12))], 12, 19),
        ([EqualTo(("offset",), 5)], 10, 10),
        ([GreaterThan(("offset",), 50)], 51, 51),
        ([LessThan(("timestamp",), datetime(2020, 1, 1, tzinfo=UTC))], 10, 20),
    ],
)
def test_filters_narrow_offsets(filters: list[Filter], start: int, end: int) -> None:
    whole = OffsetRange(A0, Offset(10), Offset(20))
    assert Narrowed.by(filters).narrow(whole) == OffsetRange(A0, Offset(start), Offset(end))


def test_a_time_is_a_beginning_rounded_down() -> None:
    late = datetime(2020, 1, 1, 0, 0, 0, 1_999, tzinfo=UTC)
    early = datetime(2019, 1, 1, tzinfo=UTC)
    filters = [GreaterThan(("timestamp",), late), GreaterThanOrEqual(("timestamp",), early)]
    assert Narrowed.by(filters).time_ms_min == 1_577_836_800_001


def test_records_without_a_time_are_not_lost() -> None:
    """They count as a millisecond before 1970."""
    long_ago = datetime(1960, 1, 1, tzinfo=UTC)
    assert Narrowed.by([GreaterThan(("timestamp",), long_ago)]).time_ms_min is None
