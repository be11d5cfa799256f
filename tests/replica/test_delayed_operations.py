"""Delayed operations of a partition are completed independently of each other."""

import asyncio

import pytest

from suwi.model.errors import BrokerError, NotLeaderOrFollower, RequestTimedOut
from suwi.model.ids import Offset
from suwi.replica.delayed_operations import DelayedOperations, OnCommit
from suwi.sim import Simulation


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


class Produces:
    """Delayed produces in a simulated loop: what completed them, and when."""

    def __init__(self) -> None:
        self.waiting = DelayedOperations()
        self.completed: list[tuple[str, float, bool]] = []
        self.timers = 0
        self._loop = asyncio.get_running_loop()
        self._began_s = self._loop.time()
        self._call_at = self._loop.call_at
        self._loop.call_at = self._counting  # type: ignore[method-assign]

    def _counting(self, when: float, callback: object, *args: object, **kwargs: object) -> object:
        if callback == self.waiting._expire:
            self.timers += 1
        return self._call_at(when, callback, *args, **kwargs)  # type: ignore[arg-type]

    def add(self, name: str, end_offset: int, timeout_s: float) -> None:
        def on_commit(error: BrokerError | None) -> None:
            assert error is None or isinstance(error, RequestTimedOut | NotLeaderOrFollower)
            after_s = round(self._loop.time() - self._began_s, 3)
            self.completed.append((name, after_s, isinstance(error, RequestTimedOut)))

        self.waiting.add(Offset(end_offset), on_commit, timeout_s)


def test_each_produce_times_out_at_its_own_deadline() -> None:
    async def scenario() -> None:
        produces = Produces()
        produces.add("late", 10, 30)
        produces.add("early", 20, 5)
        await asyncio.sleep(1)
        produces.add("next", 30, 5)
        produces.add("committed", 5, 2)
        produces.waiting.committed(Offset(5))
        await asyncio.sleep(100)
        assert produces.completed == [
            ("committed", 1, False),
            ("early", 5, True),
            ("next", 6, True),
            ("late", 30, True),
        ]
        produces.add("again", 40, 1)
        await asyncio.sleep(2)
        assert produces.completed[-1] == ("again", 102, True)

    Simulation(1).run(scenario())


def test_produces_that_are_committed_in_time_share_one_timer() -> None:
    async def scenario() -> None:
        produces = Produces()
        for number in range(1, 1001):
            produces.add(str(number), number, 30)
            await asyncio.sleep(0.01)
            produces.waiting.committed(Offset(number))
        assert produces.timers == 1
        await asyncio.sleep(100)
        assert [number for number, _, timed_out in produces.completed if timed_out] == []
        assert produces.timers == 1, "a timer without anything to wait for is not set again"

    Simulation(1).run(scenario())


def test_no_timer_is_left_when_all_produces_have_failed() -> None:
    async def scenario() -> None:
        produces = Produces()
        produces.add("one", 1, 30)
        produces.waiting.fail(NotLeaderOrFollower("gone"))
        assert produces.completed == [("one", 0, False)]
        assert produces.waiting._sweep is None

    Simulation(1).run(scenario())
