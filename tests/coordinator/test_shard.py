"""A shard: decide, replay, append, reply when committed; roles by epoch; failures of its own."""

import asyncio
import itertools
from typing import Any
from unittest.mock import patch

import pytest
from kio.schema.errors import ErrorCode

from suwi.coordinator.decision import Decision
from suwi.coordinator.shard_context import Status
from suwi.handlers.coordinator_requests import coordinator_error
from suwi.model.errors import (
    BrokerError,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    KafkaStorageError,
    NotCoordinator,
    NotEnoughReplicas,
    RecordListTooLarge,
    RequestTimedOut,
)
from suwi.model.ids import LeaderEpoch, Offset
from suwi.model.topic_config import TopicConfig
from suwi.records.batch import HEADER_BYTES, read_header
from suwi.records.builder import build_batch
from suwi.records.compression import Compression
from suwi.records.record import Record
from suwi.replica.partition import Partition
from tests.coordinator.world import (
    ISR_SILENCE_S_MAX,
    POISON,
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
        world.shard.tell(_note("a", "told at once", "told later"))
        await turns()
        assert world.notices == ["told at once"]
        world.commit()
        assert world.notices == ["told at once", "told later"]
        world.shard.tell(lambda _m, _now_ms, decision: decision.notices_when_committed.append("x"))
        assert world.notices[2:] == ["x"]  # Nothing was appended.

    in_world(scenario)


def test_nobody_acts_on_records_that_were_not_committed() -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        world.shard.tell(_note("a", "told at once", "told later"))
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
    def decide(_machine: Notes, _now_ms: int, decision: Decision) -> None:
        decision.append(key, "v")
        decision.notices.append(at_once)
        decision.notices_when_committed.append(when_committed)

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


def test_records_that_need_not_be_together_may_be_more_than_a_batch_holds() -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        world.partition.configure(TopicConfig(max_message_bytes=1_000))

        def decide(is_atomic: bool) -> Request:
            request = Request()

            def fill(_: Notes, _now_ms: int, decision: Decision) -> None:
                decision.is_atomic = is_atomic
                for number in range(7):
                    decision.append(f"k{number}", "x" * 300)
                decision.reply(request, "done")

            world.shard.submit(fill, request)
            return request

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
        world.put("kept")
        await turns()
        world.commit()
        parked, refused, also = world.wait(), world.put("a"), world.get("a")
        full = KafkaStorageError("the disk is full")
        _refuse_appends(world, full)
        await turns()
        assert [each.reply for each in (parked, refused, also)] == [full] * 3
        _accept_appends(world)
        await world.until(lambda: world.shard.status is Status.ACTIVE)
        assert world.machine.values == {"kept": "v"}
        assert world.shard.loads == 2
        again = world.put("a")
        await turns()
        world.commit()
        assert again.reply == "v"

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


# -- failures of its own -------------------------------------------------------------------------


@pytest.mark.parametrize("leads", [True, False])
def test_a_record_whose_replay_raises_fails_its_shard_alone(leads: bool) -> None:
    """Hazard G26."""

    async def scenario(world: World) -> None:
        await world.serve()
        world.append(("a", "v"), (POISON, "!"), ("b", "v"))
        world.commit()
        if leads:
            world.lead(1)
        else:
            world.follow(1)
            world.fetch(1, world.end)
        await world.until(lambda: world.shard.status is Status.FAILED)
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
        await world.serve()
        world.append(("a", "v"), (POISON, "!"), ("b", "v"))
        world.commit()
        if leads:
            world.lead(1)
        else:
            world.follow(1)
            world.fetch(1, world.end)
        await world.until(lambda: world.shard.status is Status.FAILED)
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
        kept = world.put("kept")
        await turns()
        world.commit()
        assert kept.reply == "v"
        parked, on_its_way = world.wait(), world.put("a")
        bad = Request()

        def decide(*_: Any) -> None:
            raise ZeroDivisionError

        world.shard.submit(decide, bad)
        for each in (parked, on_its_way, bad):
            assert isinstance(each.reply, CoordinatorNotAvailable)
        assert [type(error) for error in world.failures] == [ZeroDivisionError]
        await world.until(lambda: world.shard.status is Status.ACTIVE)
        assert world.machine.values == {"kept": "v"}
        again = world.put("b")
        await turns()
        world.commit()
        assert again.reply == "v"

    in_world(scenario)


def test_a_commit_of_what_was_appended_before_a_failure_is_not_mistaken_for_a_later_one() -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        lost = world.put("a")
        await turns()

        def decide(*_: Any) -> None:
            raise ZeroDivisionError

        world.shard.submit(decide, Request())
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


# -- roles ---------------------------------------------------------------------------------------


def test_a_follower_applies_what_is_committed_and_a_new_leader_only_the_rest() -> None:
    async def scenario(world: World) -> None:
        world.follow(0)
        world.fetch(0, 2, ("a", "1"), ("b", "1"), ("c", "1"))
        await world.until(lambda: world.machine.values == {"a": "1", "b": "1"})
        assert refusal(world) is NotCoordinator
        world.fetch(0, 3)
        await world.until(lambda: "c" in world.machine.values)
        world.fetch(0, 3, ("d", "1"))
        world.lead(1)
        await asyncio.sleep(1)
        assert world.machine.values == {"a": "1", "b": "1", "c": "1", "d": "1"}
        assert world.machine.uncommitted == [3]
        assert refusal(world) is CoordinatorLoadInProgress  # G9, G11: the tail is not committed.
        world.commit()
        await world.until(lambda: world.shard.status is Status.ACTIVE)
        assert world.machine.uncommitted == []
        assert (world.shard.loads, world.machine.elections) == (1, 1)
        assert world.get("d").reply == "1"

    in_world(scenario)


def test_what_a_leader_wrote_that_is_committed_is_kept_when_it_becomes_a_follower() -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        world.put("a")
        await turns()
        world.commit()
        parked = world.wait()
        machine = world.machine
        world.follow(1)
        assert isinstance(parked.reply, NotCoordinator)
        assert world.machine is machine
        assert machine.resignations == 1
        world.fetch(1, 2, ("b", "1"))
        await world.until(lambda: "b" in machine.values)
        await world.serve(2)
        assert (world.machine, world.shard.loads) == (machine, 1)
        assert machine.values == {"a": "v", "b": "1"}

    in_world(scenario)


def test_what_a_leader_wrote_that_is_not_committed_is_dropped_when_it_becomes_a_follower() -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        world.put("a")
        await turns()
        world.commit()
        uncommitted = world.put("b")
        await turns()
        world.follow(1)
        assert coordinator_error(uncommitted.reply) == ErrorCode.not_coordinator
        await world.until(lambda: world.machine.values == {"a": "v"})
        assert world.shard.loads == 2

    in_world(scenario)


def test_a_truncation_drops_the_state() -> None:
    async def scenario(world: World) -> None:
        world.follow(0)
        world.fetch(0, 3, ("a", "1"), ("b", "1"), ("c", "1"))
        await world.until(lambda: len(world.machine.values) == 3)
        world.follow(1)
        # An unclean election, for example.
        world.partition.follower.truncate_to_divergence(LeaderEpoch(0), Offset(1))
        await world.until(lambda: world.partition.replica_log.ready_log is not None)
        world.fetch(1, 2, ("d", "1"))
        await world.until(lambda: "d" in world.machine.values)
        assert world.machine.values == {"a": "1", "d": "1"}
        assert world.shard.loads == 2

    in_world(scenario)


@pytest.mark.parametrize("late", ["follow", "lead"])
def test_a_role_of_an_epoch_that_is_over_changes_nothing(late: str) -> None:
    """Hazard G8."""

    async def scenario(world: World) -> None:
        await world.serve(5)
        world.put("a")
        await turns()
        world.commit()
        machine = world.machine
        if late == "follow":
            world.shard.follow(4)  # type: ignore[arg-type]
        else:
            world.shard.lead(4)  # type: ignore[arg-type]
        world.shard.lead(5)  # type: ignore[arg-type]
        assert world.shard.status is Status.ACTIVE
        assert world.machine is machine
        assert world.get("a").reply == "v"

    in_world(scenario)


def test_a_role_that_is_told_while_the_log_is_read_is_the_one_that_counts() -> None:
    async def scenario(world: World) -> None:
        world.follow(0)
        world.fetch(0, 500, *((f"k{number}", "v") for number in range(500)))
        world.lead(1)
        await turns(2)
        world.follow(2)
        await turns(2)
        world.lead(3)
        await turns(2)
        world.follow(4)
        await world.until(lambda: len(world.machine.values) == 500)
        await asyncio.sleep(5)
        assert (world.shard.status, world.machine.elections) == (Status.FOLLOWING, 0)
        await world.serve(5)
        assert world.machine.elections == 1

    in_world(scenario)


def test_a_new_epoch_of_the_same_leader_begins_anew_with_its_requests() -> None:
    async def scenario(world: World) -> None:
        await world.serve(1)
        parked = world.wait()
        await world.serve(2)
        assert isinstance(parked.reply, NotCoordinator)
        assert world.machine.elections == 2

    in_world(scenario)


@pytest.mark.parametrize("is_told", [True, False])
def test_a_leader_that_leads_again_in_the_same_epoch_serves_again(is_told: bool) -> None:
    """Its partition failed unexpectedly and was tried again: nobody else has led meanwhile."""

    async def scenario(world: World) -> None:
        await world.serve(1)
        on_its_way = world.put("a")
        await asyncio.sleep(0.1)
        world.partition.stop_leading()
        if is_told:
            world.shard.follow(LeaderEpoch(1))
        await asyncio.sleep(3)
        assert isinstance(on_its_way.reply, BrokerError)
        assert world.shard.status is Status.FOLLOWING
        await world.serve(1)
        assert world.machine.elections == 1
        assert set(world.machine.values) == {"a"}

    in_world(scenario)


def test_a_shard_that_is_closed_answers_all_who_wait_and_nobody_afterwards() -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        world.arm("timer", 1_000)
        parked, on_its_way = world.wait(), world.put("a")
        machine = world.machine
        world.shard.close()
        assert isinstance(parked.reply, NotCoordinator)
        assert isinstance(on_its_way.reply, NotCoordinator)
        assert refusal(world) is NotCoordinator
        world.shard.lead(9)  # type: ignore[arg-type]
        await asyncio.sleep(10)
        assert machine.expirations == []
        assert world.shard.status is Status.CLOSED
        assert world.batches_in_log() == []

    in_world(scenario)


# -- loading -------------------------------------------------------------------------------------


def test_records_that_cannot_be_decoded_are_skipped_and_counted() -> None:
    """Hazard G10."""

    async def scenario(world: World) -> None:
        await world.serve()
        world.append(("a", "1"), key=b"?")
        world.append(("b", "1"), key=b"?")
        world.commit()
        world.lead(1)
        await world.until(lambda: world.shard.status is Status.ACTIVE)
        assert world.machine.values == {"a": "1", "b": "1"}
        assert world.shard._reader is not None
        assert world.shard._reader.unreadable == 2
        assert world.failures == []

    in_world(scenario)


def test_a_batch_that_cannot_be_read_is_skipped_and_counted_too() -> None:
    """Hazard G10: else a shard would be loaded for ever."""

    async def scenario(world: World) -> None:
        await world.serve()
        world.append(("a", "1"))
        broken = build_batch([Record(key=b"k", value=b"v" * 50)], codec=Compression.GZIP)
        broken[HEADER_BYTES] ^= 0xFF
        world.partition.append(memoryview(broken), read_header(broken), 0)
        world.append(("b", "1"))
        world.commit()
        world.lead(1)
        await world.until(lambda: world.shard.status is Status.ACTIVE)
        assert world.machine.values == {"a": "1", "b": "1"}
        assert world.shard._reader is not None
        assert world.shard._reader.unreadable == 1

    in_world(scenario)


def test_a_log_whose_beginning_is_gone_is_loaded_from_where_it_starts() -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        for number in range(4):
            world.append((f"k{number}", "1"))
        world.commit()
        world.partition.delete_before(Offset(2))
        world.shard.close()
        world.shard = world.new_shard()
        await world.serve(1)
        assert world.machine.values == {"k2": "1", "k3": "1"}

    in_world(scenario)


def test_what_comes_while_a_leader_loads_is_not_asked_for() -> None:
    """Hazard G9: the end at its election is far enough, and nothing comes after it but its own."""

    async def scenario(world: World) -> None:
        world.follow(0)
        world.fetch(0, 2_000, *((f"k{number}", "v") for number in range(2_000)))
        world.shard.close()
        world.shard = world.new_shard()
        world.lead(1)
        await turns()
        assert refusal(world) is CoordinatorLoadInProgress
        world.commit()
        await world.until(lambda: world.shard.status is Status.ACTIVE)
        assert len(world.machine.values) == 2_000

    in_world(scenario)


# -- timers --------------------------------------------------------------------------------------


def test_a_timer_expires_and_what_it_decides_is_appended() -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        world.arm("a", 2_000)
        await asyncio.sleep(1.9)
        assert world.machine.expirations == []
        await asyncio.sleep(0.2)
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
        await asyncio.sleep(1.1)
        assert world.machine.expirations == ["a"]

    in_world(scenario)


def test_timers_end_with_the_leadership() -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        world.arm("a", 2_000)
        world.follow(1)
        await asyncio.sleep(1)
        await world.serve(2)
        await asyncio.sleep(5)
        assert world.machine.expirations == []

    in_world(scenario)


def test_a_leader_that_the_isr_does_not_fetch_from_prolongs_no_sessions() -> None:
    """Hazard G17: another broker may have given away what the member has."""

    async def scenario(world: World) -> None:
        await world.serve()

        def beat() -> Request:
            request = Request()
            world.shard.submit(
                lambda machine, _now_ms, decision: machine.get("a", request, decision),
                request,
                prolongs=True,
            )
            return request

        beat()
        await asyncio.sleep(2 * ISR_SILENCE_S_MAX)
        with pytest.raises(NotCoordinator):
            beat()
        world.commit()
        beat()

    in_world(scenario)


def test_a_leader_that_the_isr_does_not_fetch_from_answers_no_reads() -> None:
    """Simulation, seed 1 of `state-of-a-refused-append`: a leader that was cut off from the others
    and from the store showed offsets from before what its successor had acknowledged."""

    async def scenario(world: World) -> None:
        await world.serve()
        world.shard.check_readable()
        await asyncio.sleep(2 * ISR_SILENCE_S_MAX)
        with pytest.raises(NotCoordinator):
            world.shard.check_readable()
        world.shard.check_active()

    in_world(scenario)
