"""Who waits for a partition is told of it, each for himself."""

import pytest

from suwi.model.errors import BrokerError, NotLeaderOrFollower
from suwi.model.ids import Offset
from suwi.replica.waiting import OnCommit, Waiting


@pytest.mark.parametrize("fails", [False, True])
def test_one_who_cannot_be_told_keeps_nobody_else_from_hearing_it(
    fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[tuple[int, BrokerError | None]] = []
    waiting = Waiting()

    def listener(number: int) -> OnCommit:
        def on_commit(error: BrokerError | None) -> None:
            if number == 1:
                raise ZeroDivisionError
            told.append((number, error))

        return on_commit

    for number in range(4):
        waiting.add(Offset(number + 1), listener(number))
    error = NotLeaderOrFollower("gone") if fails else None
    if error is not None:
        waiting.fail(error)
    else:
        waiting.committed(Offset(3))
        waiting.committed(Offset(4))
    assert told == [(0, error), (2, error), (3, error)]
    assert [record.message for record in caplog.records] == ["a commit could not be answered"]
