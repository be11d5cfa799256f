"""How much goes into a micro-batch."""

from hypothesis import given
from hypothesis import strategies as st

from suwi.model.ids import Offset, PartitionIndex, TopicPartition
from suwi.spark.offsets import Offsets
from suwi.spark.planning import Delay, limit


def offsets(*numbers: int) -> Offsets:
    return {
        TopicPartition("t", PartitionIndex(index)): Offset(number)
        for index, number in enumerate(numbers)
    }


def test_a_limit_is_shared_out_by_what_each_partition_has() -> None:
    assert limit(100, offsets(0, 0, 50), offsets(300, 100, 50)) == offsets(75, 25, 50)


def test_a_small_partition_is_not_starved() -> None:
    assert limit(10, offsets(0, 0), offsets(1_000_000, 1)) == offsets(9, 1)


def test_nothing_new_and_less_than_the_limit_stay_as_they_are() -> None:
    assert limit(10, offsets(5, 5), offsets(5, 5)) == offsets(5, 5)
    assert limit(10, offsets(5, 5), offsets(7, 6)) == offsets(7, 6)


def test_a_partition_that_went_back_is_left_for_others_to_judge() -> None:
    assert limit(10, offsets(9, 0), offsets(3, 100)) == offsets(3, 10)


@given(st.integers(1, 1000), st.lists(st.integers(0, 10**9), min_size=1, max_size=10))
def test_a_limited_batch_gets_on_and_is_not_much_larger(most: int, ends: list[int]) -> None:
    start, end = offsets(*[0] * len(ends)), offsets(*ends)
    admitted = sum(limit(most, start, end).values())
    assert admitted <= most + len(ends)
    assert admitted > 0 or sum(ends) == 0


def test_a_batch_that_would_be_small_waits_but_not_for_ever() -> None:
    delay = Delay(least=10, delay_ms_max=1000)
    start = offsets(0)
    assert not delay.holds_back(start, offsets(1), now_ms=5_000)  # the first of a run
    assert delay.holds_back(start, offsets(9), now_ms=5_500)
    assert not delay.holds_back(start, offsets(10), now_ms=5_600)
    assert delay.holds_back(start, offsets(1), now_ms=6_599)
    assert not delay.holds_back(start, offsets(1), now_ms=6_600)


def test_offsets_of_partitions_that_are_new_count() -> None:
    delay = Delay(least=10, delay_ms_max=1000)
    delay.holds_back(offsets(0), offsets(0), now_ms=0)
    assert not delay.holds_back(offsets(0), offsets(4, 6), now_ms=1)
