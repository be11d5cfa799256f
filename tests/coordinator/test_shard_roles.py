"""Roles of a shard, ordered by leader epoch, and how its log is loaded."""

import asyncio
from unittest.mock import patch

import pytest
from kio.schema.errors import ErrorCode

from suwi.coordinator.runtime import coordinator_error
from suwi.coordinator.shard_replica import Status
from suwi.log.damage import Damage
from suwi.model.errors import (
    BrokerError,
    CoordinatorLoadInProgress,
    KafkaStorageError,
    NotCoordinator,
)
from suwi.model.ids import LeaderEpoch, Offset
from suwi.records.batch import HEADER_BYTES, read_header
from suwi.records.builder import build_batch
from suwi.records.compression import Compression
from suwi.records.record import Record
from suwi.replica.partition import Partition
from tests.coordinator.world import (
    World,
    in_world,
    refusal,
    turns,
)
from tests.handlers.world import World as ReplicaWorld
from tests.handlers.world import led

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
        await world.store("a")
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
        await world.store("a")
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
        await world.store("a")
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


def test_a_shard_that_loads_while_its_partition_leads_no_more_does_not_stop_the_loop() -> None:
    async def scenario(world: World) -> None:
        await world.serve(1)
        await world.store("a")
        world.shard.follow(LeaderEpoch(1))
        world.partition.stop_leading()
        tries = 0
        activate = world.shard._activate

        def counted() -> None:
            nonlocal tries
            tries += 1
            assert tries < 100, "it goes round and round"
            activate()

        with patch.object(world.shard, "_activate", counted):
            world.shard.lead(LeaderEpoch(1))
            await asyncio.sleep(10)
            assert world.failures == []
            assert refusal(world) is CoordinatorLoadInProgress
            world.lead(2)
            await world.until(lambda: world.partition.replica_log.ready_log is not None)
            world.commit()
            await world.until(lambda: world.shard.status is Status.ACTIVE)
        assert world.machine.values == {"a": "v"}

    in_world(scenario)


def test_a_new_epoch_that_comes_while_a_leader_loads_does_not_wait_for_another_try() -> None:
    async def scenario(world: World) -> None:
        world.follow(0)
        world.fetch(0, 0, ("a", "1"))
        world.lead(1)
        await asyncio.sleep(1)
        assert refusal(world) is CoordinatorLoadInProgress  # Its tail is not committed.
        world.lead(2)
        await turns(20)
        world.commit()
        await turns(20)
        assert world.shard.status is Status.ACTIVE
        assert world.machine.values == {"a": "1"}

    in_world(scenario)


def test_a_coordinator_is_told_that_its_partition_has_failed_and_that_it_leads_again() -> None:
    async def scenario() -> None:
        world = ReplicaWorld()
        roles: list[str] = []

        class Listener:
            def on_leader(self, partition: Partition) -> None:
                roles.append("leader")

            def on_follower(self, partition: Partition) -> None:
                roles.append("follower")

            def on_removed(self, partition: Partition) -> None:
                roles.append("removed")

        world.add("t", [led()])
        world.replicas.subscribe(Listener())
        tp = world.replicas.leader_of("t", 0).partition
        world.replicas.fail(tp, ZeroDivisionError())
        world.replicas.fail(tp, ZeroDivisionError())
        assert roles == ["follower"]
        world.elect("t", 0, led(epoch=1))
        assert roles == ["follower", "leader"]
        await world.replicas.stop()

    asyncio.run(scenario())


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


def test_damage_that_is_known_is_skipped_like_damage_that_is_not() -> None:
    """Hazard G10. The problem is listed, and a leader that can hands over to another replica."""

    async def scenario(world: World) -> None:
        await world.serve()
        first = world.partition.log_as_it_is.end_offset
        for key in "abc":
            world.append((key, "1"))
        world.commit()
        damaged = Offset(first + 1)
        segment = world.partition.log_as_it_is.active
        found = segment.locate(damaged)
        assert found is not None
        place = found.position, found.position + found.size_bytes
        span = damaged, Offset(damaged + 1)
        world.partition.log_as_it_is.add_damage(
            Damage(*span, segment.base_offset, segment.log_path, "test", *place)
        )
        world.shard.close()
        world.shard = world.new_shard()
        await world.serve(1)
        assert world.machine.values == {"a": "1", "c": "1"}
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


def test_a_log_that_is_out_of_reach_is_logged_once_however_often_it_is_tried(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tries: list[bool] = []

    async def scenario(world: World) -> None:
        async def fails(is_loading: bool) -> bool:
            tries.append(is_loading)
            raise KafkaStorageError("the disk is away")

        world.shard._apply_once = fails  # type: ignore[method-assign]
        world.lead(0)
        await asyncio.sleep(20)

    in_world(scenario)
    assert len(tries) > 3
    lines = [each for each in caplog.records if each.message == "coordinator waits for its log"]
    assert len(lines) == 1
