"""Leader epochs: start and end of each, as in Apache Kafka's LeaderEpochFileCache."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suwi.log.leader_epoch_cache import LeaderEpochCache
from suwi.model.ids import LeaderEpoch, Offset


def _epochs(*entries: tuple[int, int]) -> LeaderEpochCache:
    return LeaderEpochCache([(LeaderEpoch(epoch), Offset(start)) for epoch, start in entries])


def _end_of(epochs: LeaderEpochCache, asked: int, log_end: int = 100) -> tuple[int, int]:
    return epochs.end_of(LeaderEpoch(asked), Offset(log_end))


def test_an_epoch_is_kept_with_the_offset_it_starts_at() -> None:
    epochs = _epochs()
    assert epochs.latest == -1
    assert epochs.assign(LeaderEpoch(2), Offset(0))
    assert epochs.assign(LeaderEpoch(3), Offset(10))
    assert epochs.entries() == [(2, 0), (3, 10)]
    assert epochs.latest == 3


def test_assigning_the_same_epoch_again_changes_nothing() -> None:
    epochs = _epochs((2, 0))
    assert not epochs.assign(LeaderEpoch(2), Offset(0))
    assert not epochs.assign(LeaderEpoch(2), Offset(5))
    assert epochs.entries() == [(2, 0)]


def test_an_epoch_without_records_is_replaced_by_the_next_one() -> None:
    epochs = _epochs((2, 0), (3, 10))
    epochs.assign(LeaderEpoch(4), Offset(10))
    assert epochs.entries() == [(2, 0), (4, 10)]


def test_an_epoch_that_starts_earlier_than_later_ones_replaces_them() -> None:
    epochs = _epochs((2, 0), (3, 10), (4, 20))
    epochs.assign(LeaderEpoch(5), Offset(5))
    assert epochs.entries() == [(2, 0), (5, 5)]


@pytest.mark.parametrize(("epoch", "start"), [(-1, 0), (1, -1)])
def test_an_undefined_epoch_or_offset_is_ignored(epoch: int, start: int) -> None:
    epochs = _epochs()
    assert not epochs.assign(LeaderEpoch(epoch), Offset(start))
    assert epochs.entries() == []


def test_the_latest_epoch_ends_where_the_log_ends() -> None:
    assert _end_of(_epochs((2, 0), (3, 10)), 3, log_end=17) == (3, 17)


def test_an_earlier_epoch_ends_where_the_next_one_starts() -> None:
    assert _end_of(_epochs((2, 0), (3, 10)), 2) == (2, 10)


def test_a_missing_epoch_returns_the_largest_one_before_it() -> None:
    """KIP-279: after two quick fail-overs a leader may lack epochs that a follower has."""
    assert _end_of(_epochs((2, 0), (5, 10), (8, 20)), 6) == (5, 20)
    assert _end_of(_epochs((2, 0), (5, 10), (8, 20)), 4) == (2, 10)


def test_an_epoch_before_all_known_ones_ends_where_the_first_starts() -> None:
    assert _end_of(_epochs((5, 10), (6, 20)), 3) == (3, 10)


def test_an_epoch_newer_than_all_is_unknown() -> None:
    assert _end_of(_epochs((5, 10)), 6) == (-1, -1)
    assert _end_of(_epochs(), 0) == (-1, -1)
    assert _end_of(_epochs((5, 10)), -1) == (-1, -1)
    assert _end_of(_epochs(), -1) == (-1, -1)


def test_the_epoch_of_an_offset_is_the_last_that_starts_at_or_before_it() -> None:
    epochs = _epochs((2, 5), (3, 10))
    asked = [(4, -1), (5, 2), (9, 2), (10, 3), (99, 3)]
    for offset, epoch in asked:
        assert epochs.epoch_at(Offset(offset)) == epoch


def test_truncation_at_the_end_drops_epochs_that_start_there_or_later() -> None:
    epochs = _epochs((2, 0), (3, 10), (4, 20))
    assert epochs.truncate_end(Offset(20))
    assert epochs.entries() == [(2, 0), (3, 10)]
    assert not epochs.truncate_end(Offset(11))
    assert epochs.truncate_end(Offset(0))
    assert epochs.entries() == []


def test_truncation_at_the_start_keeps_the_epoch_of_the_last_removed_record() -> None:
    epochs = _epochs((2, 0), (3, 10), (4, 20))
    assert epochs.truncate_start(Offset(15))
    assert epochs.entries() == [(3, 10), (4, 20)]
    assert not epochs.truncate_start(Offset(15))
    assert not epochs.truncate_start(Offset(3))
    assert not epochs.truncate_start(Offset(20))
    assert epochs.divergence(LeaderEpoch(3), Offset(20), Offset(20)) is None
    assert not epochs.all_newer_than(LeaderEpoch(3))
    assert epochs.truncate_start(Offset(21))
    assert epochs.entries() == [(4, 20)]


def test_the_epoch_of_the_last_removed_record_is_known_when_the_next_one_starts() -> None:
    epochs = _epochs((2, 0), (3, 10))
    epochs.truncate_start(Offset(99))
    assert epochs.entries() == [(3, 10)]
    epochs.assign(LeaderEpoch(4), Offset(99))
    assert epochs.entries() == [(3, 10), (4, 99)]


def test_a_batch_in_the_log_overrides_the_checkpoint() -> None:
    epochs = _epochs((6, 5), (7, 10), (8, 30))
    epochs.observe(LeaderEpoch(6), Offset(20))
    assert epochs.entries() == [(6, 5), (8, 30)]
    epochs.observe(LeaderEpoch(8), Offset(25))
    assert epochs.entries() == [(6, 5), (8, 25)]
    epochs.observe(LeaderEpoch(7), Offset(22))
    assert epochs.entries() == [(6, 5), (7, 22), (8, 25)]


def test_a_checkpointed_epoch_start_before_its_first_batch_is_kept() -> None:
    """Compaction can remove the first batches of an epoch; only the checkpoint has its start."""
    epochs = _epochs((2, 0), (3, 100))
    epochs.observe(LeaderEpoch(2), Offset(50))
    epochs.observe(LeaderEpoch(3), Offset(150))
    assert epochs.entries() == [(2, 0), (3, 100)]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("assign"), st.integers(-1, 8), st.integers(-1, 30)),
            st.tuples(st.just("observe"), st.integers(-1, 8), st.integers(0, 30)),
            st.tuples(st.just("end"), st.integers(0, 30), st.just(0)),
            st.tuples(st.just("start"), st.integers(0, 30), st.just(0)),
        ),
        max_size=30,
    )
)
def test_epochs_and_their_starts_always_increase(steps: list[tuple[str, int, int]]) -> None:
    epochs = LeaderEpochCache()
    for step, first, second in steps:
        if step == "assign":
            epochs.assign(LeaderEpoch(first), Offset(second))
        elif step == "observe":
            epochs.observe(LeaderEpoch(first), Offset(second))
            assert first < 0 or epochs.epoch_at(Offset(second)) == first
        elif step == "end":
            epochs.truncate_end(Offset(first))
        else:
            epochs.truncate_start(Offset(first))
        entries = epochs.entries()
        assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(entries))
