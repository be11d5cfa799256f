"""Deadlines as data: each expires once, at its time, in order."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suwi.coordinator.event import PausableTimerKey, TimerKey
from suwi.coordinator.timers import Timers
from suwi.sim import Simulation

Expired = list[tuple[float, TimerKey]]


def run(scenario: Callable[[Timers, Expired], Coroutine[Any, Any, None]]) -> Expired:
    """What expired, and when."""
    expired: Expired = []

    async def main() -> None:
        began_s = asyncio.get_running_loop().time()

        def note(key: TimerKey) -> None:
            expired.append((round(asyncio.get_running_loop().time() - began_s, 3), key))

        await scenario(Timers(note), expired)

    Simulation(0).run(main())
    return expired


def test_timers_expire_in_the_order_of_their_deadlines() -> None:
    async def scenario(timers: Timers, _: Expired) -> None:
        for key, delay_s in (("c", 3), ("a", 1), ("b", 2), ("a too", 1)):
            timers.arm(key, delay_s)
        await asyncio.sleep(10)
        assert len(timers) == 0

    assert run(scenario) == [(1, "a"), (1, "a too"), (2, "b"), (3, "c")]


def test_a_timer_that_is_armed_again_has_the_new_deadline_only() -> None:
    async def scenario(timers: Timers, _: Expired) -> None:
        timers.arm("later", 1)
        timers.arm("later", 4)
        timers.arm("sooner", 9)
        timers.arm("sooner", 2)
        await asyncio.sleep(20)

    assert run(scenario) == [(2, "sooner"), (4, "later")]


def test_a_timer_that_is_put_off_for_ever_costs_no_more_than_one() -> None:
    async def scenario(timers: Timers, expired: Expired) -> None:
        for _ in range(1_000):
            timers.arm("session", 10)
            await asyncio.sleep(1)
        assert expired == []
        assert len(timers._heap) == 1
        await asyncio.sleep(10)

    assert run(scenario) == [(1_009, "session")]


def test_nothing_expires_that_was_cancelled_or_cleared() -> None:
    async def scenario(timers: Timers, _: Expired) -> None:
        timers.arm("cancelled", 1)
        timers.cancel("cancelled")
        timers.cancel("never armed")
        timers.arm("cleared", 2)
        await asyncio.sleep(1.5)
        timers.clear()
        timers.arm("new", 1)
        await asyncio.sleep(10)

    assert run(scenario) == [(2.5, "new")]


def test_a_timer_that_is_cancelled_and_armed_anew_expires_once() -> None:
    async def scenario(timers: Timers, _: Expired) -> None:
        timers.arm("a", 2)
        timers.cancel("a")
        timers.arm("a", 2)
        await asyncio.sleep(10)

    assert run(scenario) == [(2, "a")]


@pytest.mark.parametrize("delay_s", [0, -5])
def test_a_deadline_that_is_over_expires_at_once_but_not_within_arm(delay_s: float) -> None:
    async def scenario(timers: Timers, expired: Expired) -> None:
        timers.arm("a", delay_s)
        assert expired == []
        await asyncio.sleep(0.001)

    assert run(scenario) == [(0, "a")]


def test_thousands_that_expire_at_once_let_others_come_in_between() -> None:
    between: list[int] = []

    async def scenario(timers: Timers, expired: Expired) -> None:
        for number in range(1_000):
            timers.arm(number, 1)
        await asyncio.sleep(1)
        while len(expired) < 1_000:
            between.append(len(expired))
            await asyncio.sleep(0)

    assert [key for _, key in run(scenario)] == list(range(1_000))
    assert len(between) > 10


def test_who_arms_or_cancels_when_it_is_told_is_obeyed() -> None:
    expired: list[TimerKey] = []

    async def main() -> None:
        def note(key: TimerKey) -> None:
            expired.append(key)
            if key == "again" and len(expired) < 4:
                timers.arm("again", 1)
                timers.cancel("victim")

        timers = Timers(note)
        timers.arm("again", 1)
        timers.arm("victim", 1)
        await asyncio.sleep(10)

    Simulation(0).run(main())
    assert expired == ["again"] * 4


def test_a_pause_does_not_count_for_timers_that_can_be_paused() -> None:
    waits = PausableTimerKey(("waits",))

    async def scenario(timers: Timers, _: Expired) -> None:
        timers.arm(waits, 10)
        timers.arm("runs", 12)
        timers.resume()
        await asyncio.sleep(1)
        timers.pause()
        await asyncio.sleep(2)
        timers.pause()
        await asyncio.sleep(3)
        timers.resume()
        await asyncio.sleep(20)

    assert run(scenario) == [(12, "runs"), (15, waits)]


def test_a_pause_in_which_a_timer_was_due_leaves_it_what_it_had_left_and_no_more() -> None:
    """Hazard G27."""

    waits = PausableTimerKey(("waits",))

    async def scenario(timers: Timers, expired: Expired) -> None:
        timers.arm(waits, 10)
        await asyncio.sleep(4)
        timers.pause()
        await asyncio.sleep(3_600)
        assert expired == []
        timers.resume()
        await asyncio.sleep(10_000)

    assert run(scenario) == [(3_610, waits)]


@pytest.mark.parametrize("is_armed_before", [True, False])
def test_a_pause_counts_from_the_time_a_timer_was_armed_in_it(is_armed_before: bool) -> None:
    waits = PausableTimerKey(("waits",))

    async def scenario(timers: Timers, _: Expired) -> None:
        if is_armed_before:
            timers.arm(waits, 1)
        timers.pause()
        await asyncio.sleep(30)
        timers.arm(waits, 5)
        await asyncio.sleep(30)
        timers.resume()
        await asyncio.sleep(200)

    assert run(scenario) == [(65, waits)]


def test_a_timer_that_was_cancelled_in_a_pause_does_not_expire_after_it() -> None:
    async def scenario(timers: Timers, _: Expired) -> None:
        keys = [PausableTimerKey((name,)) for name in ("cancelled", "anew")]
        for key in keys:
            timers.arm(key, 1)
        timers.pause()
        await asyncio.sleep(30)
        for key in keys:
            timers.cancel(key)
        timers.arm(keys[1], 7)
        timers.resume()
        await asyncio.sleep(200)

    assert run(scenario) == [(37, ("anew",))]


STEPS = st.lists(
    st.tuples(st.sampled_from(["arm", "cancel", "sleep"]), st.integers(0, 3), st.integers(0, 5)),
    max_size=30,
)


@given(STEPS)
def test_timers_are_what_a_table_of_deadlines_would_be(steps: list[tuple[str, int, int]]) -> None:
    expected: list[tuple[int, int]] = []

    async def scenario(timers: Timers, _: Expired) -> None:
        table: dict[int, tuple[int, int]] = {}
        now = 0

        def advance(until: int) -> None:
            due = sorted((at, number, key) for key, (at, number) in table.items() if at < until)
            for at, _number, key in due:
                expected.append((at, key))
                del table[key]

        for order, (step, key, number) in enumerate(steps):
            if step == "arm":
                timers.arm(key, number + 0.5)
                table[key] = (now + number, order)
            elif step == "cancel":
                timers.cancel(key)
                table.pop(key, None)
            else:
                await asyncio.sleep(number)
                now += number
                advance(now)
        await asyncio.sleep(100)
        advance(1_000)

    expired = run(scenario)
    # Of those with one deadline any order is right.
    assert sorted((int(at), key) for at, key in expired) == sorted(expected)  # type: ignore[type-var]
