"""Events with many records: one append, decided, encoded and replayed in slices."""

import asyncio
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any
from unittest.mock import patch

import pytest
from kio.schema.errors import ErrorCode

from suwi.coordinator.event import (
    RECORDS_PER_SLICE,
    Call,
    Event,
    PausableTimerKey,
    TransactionalProducer,
)
from suwi.coordinator.runtime import coordinator_error
from suwi.coordinator.shard_replica import Status
from suwi.env.slices import Slices
from suwi.model.errors import (
    BrokerError,
    InvalidProducerEpoch,
    NotEnoughReplicas,
    RecordListTooLarge,
)
from suwi.model.ids import Offset, ProducerId
from suwi.replica.leader_state import UNKNOWN_EPOCH
from suwi.replica.partition_transactions import NOT_VERIFIED, TxnMarker
from tests.coordinator.world import Notes, Request, World, in_world, turns
from tests.replica.alone import ONE, TWO

MANY = 20 * RECORDS_PER_SLICE


def put_many(
    world: World,
    count: int = MANY,
    *,
    decided_in: int = 1,
    is_atomic: bool = True,
    value: str = "v",
    producer: TransactionalProducer | None = None,
) -> Request:
    """One event with `count` records, decided in so many slices."""

    def decide(_machine: Notes, _: None, event: Event) -> Slices[None]:
        event.is_atomic = is_atomic
        event.producer = producer
        for part in range(decided_in):
            for number in range(part, count, decided_in):
                event.append(f"k{number}", value)
            if part + 1 < decided_in:
                yield
        event.reply("done")

    return world.submit(Request(decide, None))


async def until_open(world: World) -> None:
    await world.until(lambda: not world.shard._is_closed)


def test_a_large_event_is_one_append_and_others_come_in_between() -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        request = put_many(world, decided_in=5)
        between = 0
        while world.shard._is_closed:
            between += 1
            await asyncio.sleep(0)
        assert between >= MANY / RECORDS_PER_SLICE
        assert world.batches_in_log() == [MANY]
        assert len(world.machine.values) == MANY
        assert request.reply is None, "not committed yet"
        world.commit()
        assert request.reply == "done"
        assert world.machine.uncommitted == []

    in_world(scenario)


def test_what_comes_while_a_large_event_goes_on_is_decided_after_it_in_its_order() -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        before = world.put("before")
        large = put_many(world)
        after = [world.put("k0", "later"), world.get("k1"), put_many(world, 300, value="again")]
        last = world.get("k1")
        assert world.machine.values == {"before": "v"}
        await until_open(world)
        world.commit()
        await turns()
        world.commit()
        assert [before.reply, large.reply] == ["v", "done"]
        assert [request.reply for request in (*after, last)] == ["later", "v", "done", "again"]
        assert world.batches_in_log() == [1, MANY, 1, 300]

    in_world(scenario)


def test_thousands_that_waited_are_decided_in_slices_too() -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        put_many(world)
        waiting = [world.put(f"w{number}") for number in range(1_000)]
        seen = set()
        while world.shard._is_closed:
            seen.add(len(world.machine.values))
            await asyncio.sleep(0)
        assert len([count for count in seen if count > MANY]) > 10
        for _ in range(3):
            await turns()
            world.commit()
        assert {request.reply for request in waiting} == {"v"}

    in_world(scenario)


def test_half_of_an_event_is_not_read() -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        put_many(world)
        waited = 0
        while world.shard._is_closed:
            is_partial = 0 < len(world.machine.values) < MANY
            waits = len(list(islice(world.shard.until_readable(), 1)))
            assert waits or not is_partial
            waited += waits
            await asyncio.sleep(0)
        assert waited > 5
        assert list(world.shard.until_readable()) == []

    in_world(scenario)


def test_an_event_that_is_refused_changes_nothing_and_what_waited_goes_on() -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        large = put_many(world)
        after = world.put("a")
        with patch.object(
            type(world.partition), "check_enough_replicas", side_effect=NotEnoughReplicas("one")
        ):
            await world.until(lambda: large.reply is not None)
        assert isinstance(large.reply, NotEnoughReplicas)
        await until_open(world)
        if after.reply is None:
            await turns()
            world.commit()
        assert set(world.machine.values) <= {"a"}
        assert world.shard.status is Status.ACTIVE
        await world.store("b")

    in_world(scenario)


@pytest.mark.parametrize("at_turn", range(1, 60, 4))
@pytest.mark.parametrize("role", ["follow", "lead"])
def test_leadership_lost_in_the_middle_fails_who_waits_and_drops_the_state(
    role: str, at_turn: int
) -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        await world.store("kept")
        large = put_many(world, decided_in=5)
        after = world.put("a")
        await turns(at_turn)
        machine = world.machine
        was_closed = world.shard._is_closed
        if role == "follow":
            world.follow(1)
        else:
            world.lead(1)
        for request in (large, after):
            assert coordinator_error(request.reply) is ErrorCode.not_coordinator
        if was_closed:
            assert world.machine is not machine
        await turns(200)
        if role == "follow":
            world.fetch(1, world.end)
        else:
            world.commit()
        await world.until(lambda: "kept" in world.machine.values)
        await world.until(lambda: len(world.machine.values) == world.end)
        assert len(world.machine.values) in (1, 1 + MANY, 2 + MANY), "all of it, or nothing"
        assert world.failures == []

    in_world(scenario)


def test_an_exception_in_a_later_slice_fails_the_shard() -> None:
    async def scenario(world: World) -> None:
        await world.serve()

        def decide(*_: Any) -> Slices[None]:
            yield
            raise ZeroDivisionError

        bad = world.submit(Request(decide, None))
        after = world.put("a")
        await world.until(lambda: bad.reply is not None)
        assert isinstance(after.reply, BrokerError)
        assert world.shard.status is Status.FAILED
        await world.until(lambda: world.shard.status is Status.ACTIVE)
        await world.store("b")

    in_world(scenario)


def test_a_session_that_ends_in_a_large_event_is_put_off_by_a_heartbeat_that_waits() -> None:
    session = PausableTimerKey(("session", "g", "m"))

    async def scenario(world: World) -> None:
        await world.serve()
        world.arm(session, 1_000)
        await world.pass_time(0.9995)
        put_many(world)
        world.arm(session, 10_000)  # waits, too
        await asyncio.sleep(0.001)  # It ends now.
        await until_open(world)
        world.commit()
        assert world.machine.expirations == []
        await world.pass_time(9)
        assert world.machine.expirations == []
        await world.pass_time(3)
        assert world.machine.expirations == [session]

    in_world(scenario)


def test_records_that_need_not_be_together_are_several_batches() -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        request = put_many(world, 600, is_atomic=False, value="v" * 10_000)
        await until_open(world)
        world.commit()
        assert request.reply == "done"
        assert sum(world.batches_in_log()) == 600
        assert len(world.batches_in_log()) > 5
        assert len(world.machine.values) == 600

    in_world(scenario)


def test_what_must_be_whole_is_compressed_if_it_is_too_large_for_a_batch() -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        request = put_many(world, 20_000, value="offset 4711, " * 10)
        await until_open(world)
        world.commit()
        assert request.reply == "done"
        assert world.batches_in_log() == [20_000]
        values = dict(world.machine.values)
        await world.serve(1)
        world.shard.close()
        world.shard = world.new_shard()
        await world.serve(2)
        assert world.machine.values == values

    in_world(scenario)


def test_what_is_too_large_even_so_is_refused() -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        request = put_many(world, 2_000, value="v" * 10_000)
        await until_open(world)
        assert isinstance(request.reply, RecordListTooLarge)
        assert (world.machine.values, world.batches_in_log()) == ({}, [])

    in_world(scenario)


def test_a_large_transactional_write_and_its_marker_are_applied_in_slices() -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        request = put_many(world, producer=TransactionalProducer(7, 0, NOT_VERIFIED))
        await until_open(world)
        world.commit()
        assert request.reply == "done"
        assert (len(world.machine.staged[7]), world.machine.values) == (MANY, {})
        world.machine.slices_of_a_marker = (None,) * 10
        marker = TxnMarker(ProducerId(7), 0, 0, True, 1)
        call = world.shard.append_marker(marker)
        after = world.get("k0")
        assert world.machine.values == {}
        await until_open(world)
        world.commit()
        assert (call.response, after.reply) == (marker, "v")
        assert len(world.machine.values) == MANY

    in_world(scenario)


def mark(world: World, epoch: int = 0, is_wanted: Callable[[], bool] = lambda: True) -> Call[Notes]:
    marker = TxnMarker(ProducerId(7), epoch, 0, True, 1)
    return world.shard.append_marker(marker, is_wanted)


def test_a_marker_that_comes_in_a_large_event_is_written_after_it_in_its_order() -> None:
    """However many of them follow one another: if it were refused, it could wait for ever."""

    async def scenario(world: World) -> None:
        await world.serve()
        large = put_many(world, producer=TransactionalProducer(7, 0, NOT_VERIFIED))
        ended, after = mark(world), world.get("k0")
        last = put_many(world, 300, value="again")
        await until_open(world)
        for _ in range(2):
            world.commit()
            await turns()
        assert (large.reply, after.reply, last.reply) == ("done", "v", "done")
        assert isinstance(ended.response, TxnMarker)
        assert world.batches_in_log() == [MANY, 1, 300]
        assert world.partition.last_stable_offset == world.end
        assert world.failures == []

    in_world(scenario)


def test_a_marker_that_waited_is_refused_alone() -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        large = put_many(world)
        newer, older, after = mark(world, 3), mark(world, 2), world.put("a")
        await until_open(world)
        await turns()
        world.commit()
        assert (large.reply, after.reply) == ("done", "v")
        assert isinstance(newer.response, TxnMarker)
        assert isinstance(older.error, InvalidProducerEpoch)
        assert world.shard.status is Status.ACTIVE

    in_world(scenario)


@pytest.mark.parametrize("is_wanted", [True, False])
def test_whether_a_marker_is_wanted_is_asked_when_it_is_written(is_wanted: bool) -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        put_many(world)
        asked: list[int] = []

        def ask() -> bool:
            asked.append(world.end)
            return is_wanted

        request = mark(world, is_wanted=ask)
        assert asked == []
        await until_open(world)
        assert (asked, request.response) == ([MANY], None)
        assert world.end == MANY + is_wanted
        world.commit()
        assert isinstance(request.response, TxnMarker)

    in_world(scenario)


def test_a_follower_applies_one_large_batch_in_slices() -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        put_many(world)
        await until_open(world)
        world.partition.leader_replica.record_progress(TWO, Offset(MANY), Offset(0), UNKNOWN_EPOCH)
        world.follow(1)
        world.shard.close()
        world.shard = world.new_shard()
        world.shard.follow(world.partition.leader_epoch)
        seen = set()
        while len(world.machine.values) < MANY:
            seen.add(len(world.machine.values))
            await asyncio.sleep(0)
        assert len(seen) > 5

    in_world(scenario)


def test_a_large_event_that_nobody_waits_for_is_written_below_the_minimum_of_replicas() -> None:
    """As a small one: nobody would ask for it again, for example of a deleted topic."""

    async def scenario(world: World) -> None:
        world.need_replicas(2)
        await world.serve()
        world.shrink(0, ONE)

        def decide(_machine: Notes, _: None, event: Event) -> None:
            for number in range(MANY):
                event.append(f"k{number}", "v")

        world.shard.tell(decide, None)
        await until_open(world)
        assert world.batches_in_log() == [MANY]

    in_world(scenario)


def test_a_shortage_of_replicas_between_two_pieces_keeps_the_state() -> None:
    async def scenario(world: World) -> None:
        world.need_replicas(2)
        await world.serve()
        machine = world.machine
        request = put_many(world, is_atomic=False, value="v" * 2_000)
        shard = world.shard
        while shard._next_offset == 0 or shard._is_replaying:  # noqa: ASYNC110 (nothing tells us)
            await asyncio.sleep(0)
        world.commit()
        world.shrink(0, ONE)
        await until_open(world)
        assert isinstance(request.reply, NotEnoughReplicas)
        assert world.machine is machine
        assert 0 < len(machine.values) < MANY

    in_world(scenario)


def test_an_event_that_was_decided_in_slices_is_appended_before_it_is_replayed() -> None:
    """Its records may be few, and each of them as large as many."""

    async def scenario(world: World) -> None:
        await world.serve()
        seen: list[tuple[int, bool]] = []
        replay = Notes.replay

        def replayed(machine: Notes, record: Any, facts: Any) -> Iterator[None]:
            seen.append((world.end, world.shard._is_replaying))
            yield
            seen.append((world.end, world.shard._is_replaying))
            replay(machine, record, facts)

        with patch.object(Notes, "replay", replayed):
            request = put_many(world, 1, decided_in=2)
            await until_open(world)
        assert seen == [(1, False), (1, True)]
        world.commit()
        assert request.reply == "done"
        assert len(world.machine.values) == 1

    in_world(scenario)
