"""A shard: decide, replay, append, reply when committed; refused appends, and timers."""

import asyncio
from typing import Any
from unittest.mock import patch

import pytest

from suwi.coordinator.event import Event, PausableTimerKey, TimerKey
from suwi.coordinator.shard_replica import Status
from suwi.model.errors import (
    BrokerError,
    CoordinatorLoadInProgress,
    KafkaStorageError,
    NotCoordinator,
    NotEnoughReplicas,
    RecordListTooLarge,
    RequestTimedOut,
)
from suwi.model.topic_config import TopicConfig
from suwi.replica.partition import Partition
from tests.coordinator.world import (
    ISR_SILENCE_S_MAX,
    REPLY,
    Notes,
    Request,
    World,
    in_world,
    refusal,
    turns,
)
from tests.replica.alone import ONE, TWO

# -- replies -------------------------------------------------------------------------------------


def test_a_reply_waits_until_its_records_are_committed() -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        request = world.put("a")
        await turns()
        assert (request.reply, world.end) == (None, 1)
        assert world.machine.values == {"a": "v"}  # What follows is decided with it.
        world.commit()
        assert request.reply == "v"
        assert world.machine.committed_end == 1

    in_world(scenario)


def test_a_reply_without_records_waits_for_those_that_it_rests_on() -> None:
    """Hazard G11."""

    async def scenario(world: World) -> None:
        await world.serve()
        before = world.get("a")
        assert world.put("a").reply is None
        after = world.get("a")
        await turns()
        assert (world.machine.values, after.reply) == ({"a": "v"}, None)
        world.commit()
        assert after.reply == "v"
        assert before.reply is None  # There was nothing yet.
        assert world.get("a").reply == "v"

    in_world(scenario)


def test_what_others_do_because_of_records_waits_until_these_are_committed() -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        world.shard.tell(_note("a", "told at once", "told later"), None)
        await turns()
        assert world.notices == ["told at once"]
        world.commit()
        assert world.notices == ["told at once", "told later"]
        world.shard.tell(lambda _m, note, event: event.notices_when_committed.append(note), "x")
        assert world.notices[2:] == ["x"]  # Nothing was appended.

    in_world(scenario)


def test_nobody_acts_on_records_that_were_not_committed() -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        world.shard.tell(_note("a", "told at once", "told later"), None)
        _refuse_appends(world, KafkaStorageError("the disk is full"))
        await turns()
        _accept_appends(world)
        await world.until(lambda: world.shard.status is Status.ACTIVE)
        world.put("b")
        await turns()
        world.commit()
        assert world.notices == ["told at once"]

    in_world(scenario)


def _note(key: str, at_once: str, when_committed: str) -> Any:
    def decide(_machine: Notes, _: None, event: Event) -> None:
        event.append(key, "v")
        event.notices.append(at_once)
        event.notices_when_committed.append(when_committed)

    return decide


def test_what_is_queued_in_one_turn_is_one_batch() -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        requests = [world.put(f"k{number}") for number in range(10)]
        await turns()
        assert world.batches_in_log() == [10]
        world.commit()
        assert {request.reply for request in requests} == {"v"}

    in_world(scenario)


def test_what_comes_while_an_append_waits_for_its_commit_is_one_batch_too() -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        first = world.put("a")
        await turns()
        later = []
        for number in range(5):
            later.append(world.put(f"b{number}"))
            await turns()
        assert world.batches_in_log() == [1]
        world.commit()
        assert first.reply == "v"
        await turns()
        assert world.batches_in_log() == [1, 5]
        assert {request.reply for request in later} == {None}
        world.commit()
        assert {request.reply for request in later} == {"v"}
        world.put("c")
        await turns()
        assert world.batches_in_log() == [1, 5, 1]

    in_world(scenario)


def test_batches_are_no_larger_than_the_topic_allows() -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        world.partition.configure(TopicConfig(max_message_bytes=1_000))
        requests = [world.put(f"k{number}", "x" * 300) for number in range(7)]
        await turns()
        assert world.batches_in_log() == [2, 2, 2, 1]
        world.commit()
        assert all(isinstance(request.reply, str) for request in requests)

    in_world(scenario)


def test_a_record_that_is_too_large_is_refused_and_nothing_else_is() -> None:
    """Hazard G16."""

    async def scenario(world: World) -> None:
        await world.serve()
        waiting = world.wait()
        before, huge, after = world.put("a"), world.put("b", "x" * 2_000_000), world.put("c")
        assert isinstance(huge.reply, RecordListTooLarge)
        await turns()
        world.commit()
        assert (before.reply, after.reply, waiting.reply) == ("v", "v", None)
        assert world.machine.values == {"a": "v", "c": "v"}
        assert (world.failures, world.shard.status) == ([], Status.ACTIVE)

    in_world(scenario)


def test_what_is_refused_ends_no_timer() -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        world.arm("a", 2_000)

        def fill(_machine: Notes, _: None, event: Event) -> None:
            event.append("k", "x" * 2_000_000)
            event.cancel("a")
            event.reply("done")

        request = world.submit(Request(fill, None))
        assert isinstance(request.reply, RecordListTooLarge)
        await world.pass_time(3)
        assert world.machine.expirations == ["a"]

    in_world(scenario)


def test_records_that_need_not_be_together_may_be_more_than_a_batch_holds() -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        world.partition.configure(TopicConfig(max_message_bytes=1_000))

        def decide(is_atomic: bool) -> Request:
            def fill(_machine: Notes, _: None, event: Event) -> None:
                event.is_atomic = is_atomic
                for number in range(7):
                    event.append(f"k{number}", "x" * 300)
                event.reply("done")

            return world.submit(Request(fill, None))

        assert isinstance(decide(is_atomic=True).reply, RecordListTooLarge)
        assert world.machine.values == {}
        request = decide(is_atomic=False)
        await turns()
        assert (request.reply, world.batches_in_log()) == (None, [2, 2, 2, 1])
        world.commit(6)
        assert request.reply is None
        world.commit()
        assert request.reply == "done"

    in_world(scenario)


def test_a_commit_that_takes_too_long_is_given_up_by_its_client_but_may_still_happen() -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        late = world.put("a")
        await asyncio.sleep(3)
        later = world.put("b")
        await asyncio.sleep(2.1)
        assert isinstance(late.reply, RequestTimedOut)
        assert later.reply is None
        world.commit()
        assert isinstance(late.reply, RequestTimedOut)
        await turns()
        world.commit()
        assert later.reply == "v"
        assert world.get("a").reply == "v"

    in_world(scenario)


def test_each_of_many_waits_for_as_long_as_any_other() -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        requests = []
        for number in range(8):
            requests.append(world.put(f"k{number}"))
            await asyncio.sleep(0.99)
        given_up = [isinstance(each.reply, RequestTimedOut) for each in requests]
        assert given_up == [True] * 3 + [False] * 5

    in_world(scenario)


# -- refused appends -----------------------------------------------------------------------------


def test_with_too_few_replicas_in_sync_nothing_is_decided() -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        world.need_replicas(2)
        world.shrink(0, ONE)
        with pytest.raises(NotEnoughReplicas):
            world.put("a")
        assert world.machine.values == {}
        assert world.get("a").reply is None
        assert world.shard.status is Status.ACTIVE

    in_world(scenario)


def test_an_append_that_is_refused_drops_the_state_and_fails_all_who_wait() -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        await world.store("kept")
        parked, refused, also = world.wait(), world.put("a"), world.get("a")
        full = KafkaStorageError("the disk is full")
        _refuse_appends(world, full)
        await turns()
        assert [each.reply for each in (parked, refused, also)] == [full] * 3
        _accept_appends(world)
        await world.until(lambda: world.shard.status is Status.ACTIVE)
        assert world.machine.values == {"kept": "v"}
        assert world.shard.loads == 2
        await world.store("a")

    in_world(scenario)


def test_what_was_appended_before_a_refusal_is_part_of_the_state_when_it_is_committed() -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        world.partition.configure(TopicConfig(max_message_bytes=1_000))
        requests = [world.put(f"k{number}", "x" * 300) for number in range(4)]
        _refuse_appends(world, KafkaStorageError("the disk is full"), after=1)
        await turns()
        assert all(isinstance(each.reply, KafkaStorageError) for each in requests)
        _accept_appends(world)
        await asyncio.sleep(1)
        assert refusal(world) is CoordinatorLoadInProgress
        world.commit()
        await world.until(lambda: world.shard.status is Status.ACTIVE)
        assert list(world.machine.values) == ["k0", "k1"]

    in_world(scenario)


def test_replicas_lost_before_the_commit_fail_who_waits_and_the_write_may_still_happen() -> None:
    async def scenario(world: World) -> None:
        world.need_replicas(2)
        await world.serve()
        request = world.put("a")
        await turns()
        world.shrink(0, ONE)
        assert isinstance(request.reply, BrokerError)
        await asyncio.sleep(1)
        assert refusal(world) is CoordinatorLoadInProgress
        world.shrink(0, ONE, TWO, version=101)
        world.commit()
        await world.until(lambda: world.shard.status is Status.ACTIVE)
        assert world.machine.values == {"a": "v"}

    in_world(scenario)


def _refuse_appends(world: World, error: BrokerError, after: int = 0) -> None:
    """Until `_accept_appends`."""
    append, left = Partition.append, after

    def refuse(*arguments: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise error
        return append(*arguments)

    world.refusal = patch.object(Partition, "append", refuse)
    world.refusal.start()


def _accept_appends(world: World) -> None:
    world.refusal.stop()


# -- timers --------------------------------------------------------------------------------------


def test_a_timer_expires_and_what_it_decides_is_appended() -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        world.arm("a", 2_000)
        await world.pass_time(1.9)
        assert world.machine.expirations == []
        await world.pass_time(0.2)
        assert world.machine.expirations == ["a"]
        assert world.batches_in_log() == [1]

    in_world(scenario)


def test_a_timer_that_expires_while_too_few_replicas_are_in_sync_waits() -> None:
    async def scenario(world: World) -> None:
        world.need_replicas(2)
        await world.serve()
        world.arm("a", 2_000)
        world.shrink(0, ONE)
        await asyncio.sleep(5)
        assert world.machine.expirations == []
        world.shrink(0, ONE, TWO, version=101)
        await world.pass_time(2.1)
        assert world.machine.expirations == ["a"]

    in_world(scenario)


def test_a_timer_that_only_replies_needs_no_replicas() -> None:
    async def scenario(world: World) -> None:
        world.need_replicas(2)
        await world.serve()
        world.arm(REPLY, 2_000)
        world.shrink(0, ONE)
        await asyncio.sleep(2.1)
        assert world.machine.expirations == [REPLY]

    in_world(scenario)


def test_timers_end_with_the_leadership() -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        world.arm("a", 2_000)
        world.follow(1)
        await asyncio.sleep(1)
        await world.serve(2)
        await world.pass_time(5)
        assert world.machine.expirations == []

    in_world(scenario)


SESSION = PausableTimerKey(("session", "g", "m"))


@pytest.mark.parametrize("key", [SESSION, "a"])
def test_a_timer_that_expires_while_the_isr_does_not_fetch_waits(key: TimerKey) -> None:
    """Heartbeats are refused then: they cannot have come in time."""

    async def scenario(world: World) -> None:
        await world.serve()
        world.arm(key, 5_000)
        await asyncio.sleep(30)
        with pytest.raises(NotCoordinator):
            world.beat()
        assert world.machine.expirations == []
        await world.pass_time(60)
        assert world.machine.expirations == [key]

    in_world(scenario)


@pytest.mark.parametrize("cause", ["too few in sync", "no fetches"])
def test_the_time_in_which_heartbeats_are_refused_counts_for_no_session(cause: str) -> None:
    async def scenario(world: World) -> None:
        world.need_replicas(2)
        await world.serve()
        world.arm(SESSION, 10_000)
        await world.pass_time(3)
        if cause == "too few in sync":
            world.shrink(0, ONE)
        await asyncio.sleep(2)
        with pytest.raises((NotCoordinator, NotEnoughReplicas)):
            world.beat()
        await asyncio.sleep(28)
        world.shrink(0, ONE, TWO, version=101)
        world.commit()
        await world.pass_time(4)  # What was left of the session is 5 s.
        assert world.machine.expirations == []
        await world.pass_time(40)
        assert world.machine.expirations == [SESSION], "a member that is gone goes in the end"

    in_world(scenario)


def test_a_member_that_is_gone_when_heartbeats_are_refused_goes_within_its_session_afterwards() -> (
    None
):
    """Hazard G27."""

    async def scenario(world: World) -> None:
        world.need_replicas(2)
        await world.serve()
        world.arm(SESSION, 45_000)
        world.shrink(0, ONE)
        with pytest.raises(NotEnoughReplicas):
            world.beat()
        await world.pass_time(3_600)
        world.shrink(0, ONE, TWO, version=101)
        await world.pass_time(40)
        assert world.machine.expirations == []
        await world.pass_time(10)
        assert world.machine.expirations == [SESSION]

    in_world(scenario)


def test_the_end_of_a_pause_is_noticed_although_nobody_asks() -> None:
    async def scenario(world: World) -> None:
        world.need_replicas(2)
        await world.serve()
        world.arm(SESSION, 10_000)
        world.shrink(0, ONE)
        with pytest.raises(NotEnoughReplicas):
            world.beat()
        await world.pass_time(5)
        world.shrink(0, ONE, TWO, version=101)
        await world.pass_time(2)
        assert not world.shard._timers.is_paused

    in_world(scenario)


def test_refusals_that_come_and_go_do_not_keep_a_member_that_is_gone() -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        world.arm(SESSION, 10_000)
        for _ in range(5):
            await world.pass_time(3)
            await asyncio.sleep(2)
            with pytest.raises(NotCoordinator):
                world.beat()
            world.commit()
            world.beat()
        assert world.machine.expirations == [SESSION]

    in_world(scenario)


def test_a_leader_that_the_isr_does_not_fetch_from_prolongs_no_sessions() -> None:
    """Hazard G17: another broker may have given away what the member has."""

    async def scenario(world: World) -> None:
        await world.serve()

        world.beat()
        await asyncio.sleep(2 * ISR_SILENCE_S_MAX)
        with pytest.raises(NotCoordinator):
            world.beat()
        world.commit()
        world.beat()

    in_world(scenario)


def test_a_leader_that_the_isr_does_not_fetch_from_answers_no_reads() -> None:
    """Simulation, seed 1 of `state-of-a-refused-append`: a leader that was cut off from the others
    and from the store showed offsets from before what its successor had acknowledged."""

    async def scenario(world: World) -> None:
        await world.serve()
        list(world.shard.until_readable())
        await asyncio.sleep(2 * ISR_SILENCE_S_MAX)
        with pytest.raises(NotCoordinator):
            list(world.shard.until_readable())
        world.shard.check_active()

    in_world(scenario)
