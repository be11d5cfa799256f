"""Delayed operations of a partition are completed independently of each other."""

import pytest

from suwi.model.errors import BrokerError, NotLeaderOrFollower
from suwi.model.ids import Offset
from suwi.replica.delayed_operations import DelayedOperations, OnCommit


@pytest.mark.parametrize("fails", [False, True])
def test_a_failing_callback_does_not_prevent_the_other_callbacks(
    fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[tuple[int, BrokerError | None]] = []
    waiting = DelayedOperations()

    def listener(number: int) -> OnCommit:
        def on_commit(error: BrokerError | None) -> None:
            if number == 1:
                raise ZeroDivisionError
            called.append((number, error))

        return on_commit

    for number in range(4):
        waiting.add(Offset(number + 1), listener(number))
    error = NotLeaderOrFollower("gone") if fails else None
    if error is not None:
        waiting.fail(error)
    else:
        waiting.committed(Offset(3))
        waiting.committed(Offset(4))
    assert called == [(0, error), (2, error), (3, error)]
    assert [record.message for record in caplog.records] == ["commit callback failed"]


def test_a_lower_offset_added_after_higher_ones_completes_when_it_is_committed() -> None:
    """A duplicate waits for the offset of the original batch."""
    called: list[int] = []

    def listener(number: int) -> OnCommit:
        return lambda error: called.append(number)

    waiting = DelayedOperations()
    for end_offset in (10, 20, 5, 10, 15):
        waiting.add(Offset(end_offset), listener(end_offset))
    waiting.committed(Offset(4))
    assert called == []
    waiting.committed(Offset(5))
    assert called == [5]
    waiting.committed(Offset(10))
    assert called == [5, 10, 10]
    waiting.committed(Offset(20))
    assert called == [5, 10, 10, 15, 20]


def test_callbacks_for_the_same_offset_are_called_in_the_order_they_were_added() -> None:
    called: list[int] = []

    def listener(number: int) -> OnCommit:
        return lambda error: called.append(number)

    waiting = DelayedOperations()
    for number, end_offset in enumerate((7, 9, 7, 9, 7)):
        waiting.add(Offset(end_offset), listener(number))
    waiting.committed(Offset(9))
    assert called == [0, 2, 4, 1, 3]
