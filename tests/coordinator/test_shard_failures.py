"""Failures of a shard of its own: records, decisions and elections that raise."""

import asyncio
import itertools
from typing import Any
from unittest.mock import patch

import pytest

from suwi.coordinator.event import Event
from suwi.coordinator.shard_replica import Status
from suwi.model.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
)
from tests.coordinator.world import (
    POISON,
    Notes,
    Request,
    World,
    in_world,
    refusal,
    turns,
)


async def _fail_in_replay(world: World, *, leads: bool) -> None:
    """A committed record whose replay raises, on the leader or on a follower."""
    await world.serve()
    world.append(("a", "v"), (POISON, "!"), ("b", "v"))
    world.commit()
    if leads:
        world.lead(1)
    else:
        world.follow(1)
        world.fetch(1, world.end)
    await world.until(lambda: world.shard.status is Status.FAILED)


@pytest.mark.parametrize("leads", [True, False])
def test_a_record_whose_replay_raises_fails_its_shard_alone(leads: bool) -> None:
    """Hazard G26."""

    async def scenario(world: World) -> None:
        await _fail_in_replay(world, leads=leads)
        assert [type(error) for error in world.failures] == [ZeroDivisionError]
        assert refusal(world) is CoordinatorNotAvailable
        with pytest.raises(CoordinatorNotAvailable):
            world.put("c")
        # The next election tries again.
        world.lead(2)
        assert refusal(world) is CoordinatorLoadInProgress
        await world.until(lambda: world.shard.status is Status.FAILED)
        assert len(world.failures) == 2

    in_world(scenario)


@pytest.mark.parametrize("leads", [True, False])
def test_a_failed_shard_is_loaded_again_ever_more_rarely_until_that_succeeds(leads: bool) -> None:
    """Hazard G10: no change of role is needed."""

    async def scenario(world: World) -> None:
        await _fail_in_replay(world, leads=leads)
        failed_s = [asyncio.get_running_loop().time()]
        for count in (2, 3):
            await world.until(lambda count=count: len(world.failures) == count)  # type: ignore[misc]
            failed_s.append(asyncio.get_running_loop().time())
        with patch.object(Notes, "poison", None):
            await world.until(lambda: len(world.machine.values) > 1)
        assert world.machine.values == {"a": "v", POISON: "!", "b": "v"}
        assert world.shard.status is (Status.ACTIVE if leads else Status.FOLLOWING)
        first_s, second_s = (late - early for early, late in itertools.pairwise(failed_s))
        assert second_s > 1.5 * first_s

    in_world(scenario)


def test_a_failed_shard_that_was_closed_is_not_loaded_again() -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        world.append((POISON, "!"))
        world.commit()
        world.lead(1)
        await world.until(lambda: world.shard.status is Status.FAILED)
        world.shard.close()
        await asyncio.sleep(300)
        assert len(world.failures) == 1

    in_world(scenario)


def test_a_decision_that_raises_costs_the_requests_of_its_shard_and_the_log_is_read_again() -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        await world.store("kept")
        parked, on_its_way = world.wait(), world.put("a")

        def decide(*_: Any) -> None:
            raise ZeroDivisionError

        bad = world.submit(Request(decide, None))
        for each in (parked, on_its_way, bad):
            assert isinstance(each.reply, CoordinatorNotAvailable)
        assert [type(error) for error in world.failures] == [ZeroDivisionError]
        await world.until(lambda: world.shard.status is Status.ACTIVE)
        assert world.machine.values == {"kept": "v"}
        await world.store("b")

    in_world(scenario)


def test_a_timer_that_always_raises_fails_its_shard_ever_more_rarely() -> None:
    """Each time the log is loaded and the shard serves, until the timer expires again."""

    async def scenario(world: World) -> None:
        def elected(machine: Notes, event: Event) -> None:
            event.arm("broken", event.now_ms - 1)

        def expired(*_: Any) -> None:
            raise ZeroDivisionError

        with patch.object(Notes, "elected", elected), patch.object(Notes, "expired", expired):
            await world.serve()
            await world.pass_time(30)
            assert 3 <= len(world.failures) <= 6
            assert refusal(world) is CoordinatorNotAvailable
            await world.pass_time(3_600)
            assert 50 <= len(world.failures) <= 80, "at least once a minute"
        await world.until(lambda: world.shard.status is Status.ACTIVE)
        world.commit()
        await world.store("a")

    in_world(scenario)


def test_a_shard_that_has_served_for_long_is_loaded_again_soon_after_a_failure() -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        for _ in range(4):
            _raise_in_a_decision(world)
            assert refusal(world) is CoordinatorNotAvailable
            await world.until(lambda: world.shard.status is Status.ACTIVE)
        await world.pass_time(120)
        failed_s = asyncio.get_running_loop().time()
        _raise_in_a_decision(world)
        await world.until(lambda: world.shard.status is Status.ACTIVE)
        assert asyncio.get_running_loop().time() - failed_s < 1.5

    in_world(scenario)


def _raise_in_a_decision(world: World) -> None:
    def decide(*_: Any) -> None:
        raise ZeroDivisionError

    world.submit(Request(decide, None))


def test_a_commit_of_what_was_appended_before_a_failure_is_not_mistaken_for_a_later_one() -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        lost = world.put("a")
        await turns()

        def decide(*_: Any) -> None:
            raise ZeroDivisionError

        world.submit(Request(decide, None))
        assert isinstance(lost.reply, CoordinatorNotAvailable)
        world.commit()
        await world.until(lambda: world.shard.status is Status.ACTIVE)
        request = world.put("b")
        await turns()
        assert (request.reply, world.machine.committed_end) == (None, 1)
        world.commit()
        assert request.reply == "v"
        assert world.machine.values == {"a": "v", "b": "v"}

    in_world(scenario)


def test_an_election_that_raises_does_not_go_round_and_round() -> None:
    async def scenario(world: World) -> None:
        def elected(*_: Any) -> None:
            raise ZeroDivisionError

        world.machine.elected = elected  # type: ignore[method-assign]
        make, world.shard._context = (
            world.shard._context,
            world.shard._context._replace(new_machine=lambda: _with(Notes(), elected=elected)),
        )
        world.lead(0)
        await asyncio.sleep(10)
        assert world.shard.status is Status.FAILED
        assert 1 <= len(world.failures) <= 4
        world.shard._context = make

    in_world(scenario)


def _with(machine: Notes, **methods: Any) -> Notes:
    for name, method in methods.items():
        setattr(machine, name, method)
    return machine
