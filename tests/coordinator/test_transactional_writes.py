"""Transactional batches and markers of a shard: batches of their own, applied before the answer."""

from unittest.mock import patch

import pytest

from suwi.coordinator.event import Call, Event, TransactionalProducer
from suwi.coordinator.shard_replica import Status
from suwi.log.partition_log import PartitionLog
from suwi.model.errors import (
    BrokerError,
    CoordinatorLoadInProgress,
    InvalidProducerEpoch,
    InvalidTxnState,
    KafkaStorageError,
    NotCoordinator,
)
from suwi.model.ids import NO_SEQUENCE, ProducerId
from suwi.replica.partition_transactions import TxnMarker, VerificationGuard
from tests.coordinator.world import Notes, Request, World, in_world, turns

PRODUCER = 7


def verify(world: World, epoch: int = 0) -> VerificationGuard | None:
    return world.partition.transactions.begin_verification(
        PRODUCER, epoch, NO_SEQUENCE, is_implicit=False
    )


def stage(world: World, key: str, guard: VerificationGuard | None, epoch: int = 0) -> Request:
    def decide(machine: Notes, note: tuple[str, str], event: Event) -> None:
        event.producer = TransactionalProducer(PRODUCER, epoch, guard)
        machine.put(note, event)

    return world.submit(Request(decide, (key, "staged")))


def mark(world: World, *, epoch: int = 0, commits: bool = True, version: int = 1) -> Call[Notes]:
    return world.shard.append_marker(TxnMarker(ProducerId(PRODUCER), epoch, 0, commits, version))


def test_a_transactional_write_is_a_batch_of_its_own_after_what_was_queued_before() -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        before = world.put("a")
        staged = stage(world, "b", verify(world))
        after = world.put("c")
        await turns()
        assert world.batches_in_log() == [1, 1, 1]
        assert (before.reply, staged.reply, after.reply) == (None, None, None)
        world.commit()
        await turns()
        world.commit()
        assert (before.reply, staged.reply, after.reply) == ("v", "staged", "v")
        assert world.machine.values == {"a": "v", "c": "v"}

    in_world(scenario)


@pytest.mark.parametrize("commits", [True, False])
def test_t13_a_marker_is_answered_when_it_is_applied_and_committed(commits: bool) -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        stage(world, "b", verify(world))
        ended = mark(world, commits=commits)
        assert world.machine.values == ({"b": "staged"} if commits else {})
        assert ended.response is None
        world.commit()
        await turns()
        assert isinstance(ended.response, TxnMarker)
        assert world.partition.last_stable_offset == world.machine.committed_end == world.end == 2
        world.put("c")  # The offsets agree with the log.
        await turns()
        assert world.failures == []

    in_world(scenario)


def test_a_repeated_marker_is_answered_and_not_appended() -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        mark(world, epoch=1, version=2)
        world.commit()
        assert isinstance(mark(world, epoch=1, version=2).response, TxnMarker)
        assert world.end == 1

    in_world(scenario)


def test_t14_a_write_whose_guard_is_void_changes_nothing_and_nobody_else_is_refused() -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        guard = verify(world)
        other = world.put("a")
        mark(world)
        refused = stage(world, "b", guard)
        assert isinstance(refused.reply, InvalidTxnState)
        assert world.machine.staged == {}
        await turns()
        world.commit()
        assert other.reply == "v"

    in_world(scenario)


def test_a_write_of_a_fenced_producer_is_refused() -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        mark(world, epoch=3)
        refused = stage(world, "b", verify(world, 2), 2)
        assert isinstance(refused.reply, InvalidProducerEpoch)
        with pytest.raises(InvalidProducerEpoch):
            mark(world, epoch=2)

    in_world(scenario)


def test_a_transactional_write_that_the_disk_refuses_changes_nothing() -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        guard = verify(world)
        error = KafkaStorageError("as the test wants it")
        with patch.object(PartitionLog, "append_as_leader", side_effect=error):
            refused = stage(world, "b", guard)
        assert refused.reply is error
        assert world.shard.status is Status.ACTIVE
        assert world.machine.staged == {}

    in_world(scenario)


def test_what_was_queued_before_a_marker_fails_with_the_shard_not_with_the_marker() -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        queued = world.put("a")
        error = KafkaStorageError("as the test wants it")
        with (
            patch.object(type(world.partition), "append", side_effect=error),
            pytest.raises(CoordinatorLoadInProgress),
        ):
            mark(world)
        assert queued.reply is error
        assert world.machine.values == {}

    in_world(scenario)


def test_t23_a_shard_that_loads_or_has_moved_takes_no_marker() -> None:
    async def scenario(world: World) -> None:
        world.lead(0)
        refusals: list[type[BrokerError]] = []
        for _ in range(2):
            try:
                mark(world)
            except BrokerError as error:
                refusals.append(type(error))
            world.follow(1)
        assert refusals == [CoordinatorLoadInProgress, NotCoordinator]

    in_world(scenario)


def test_t14_what_was_staged_survives_a_change_of_leader_and_a_restart() -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        stage(world, "b", verify(world))
        world.commit()
        world.follow(1)
        world.shard.close()
        world.shard = world.new_shard()
        await world.serve(2)
        assert world.machine.staged == {PRODUCER: {"b": "staged"}}
        mark(world)
        assert world.machine.values == {"b": "staged"}

    in_world(scenario)


def test_a_marker_whose_replay_raises_fails_its_shard_alone() -> None:
    async def scenario(world: World) -> None:
        await world.serve()
        with patch.object(type(world.machine), "replay_marker", side_effect=ZeroDivisionError):
            request = mark(world)
        assert request.error is not None
        assert [type(failure) for failure in world.failures] == [ZeroDivisionError]
        assert world.shard.status is Status.FAILED

    in_world(scenario)
