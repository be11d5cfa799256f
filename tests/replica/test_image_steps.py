"""A new image costs one step for each partition that changed, however many the topic has."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest

from suwi.model.errors import NotLeaderOrFollower
from suwi.model.ids import TopicId, TopicPartition
from suwi.replica.leader_state import UNKNOWN_EPOCH
from suwi.replica.replica_manager import ReplicaManager
from tests.handlers.world import EPOCHS, HERE, OTHER, World, followed, led

PARTITIONS = 200


def noting_steps(monkeypatch: pytest.MonkeyPatch) -> list[TopicPartition]:
    steps: list[TopicPartition] = []
    apply_state = ReplicaManager._apply_state

    def noting(self: ReplicaManager, tp: TopicPartition, *rest: Any, **options: Any) -> None:
        steps.append(tp)
        apply_state(self, tp, *rest, **options)

    monkeypatch.setattr(ReplicaManager, "_apply_state", noting)
    return steps


def test_a_change_of_one_partition_leaves_the_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        world = World()
        world.add("t", [led()] * PARTITIONS)
        steps = noting_steps(monkeypatch)
        world.elect("t", 7, led(epoch=1))
        assert steps == [("t", 7)]
        assert world.replicas.leader_of("t", 7).leader_epoch == 1

    asyncio.run(scenario())


def test_a_change_of_configuration_reaches_every_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        world = World()
        world.add("t", [led()] * PARTITIONS)
        steps = noting_steps(monkeypatch)
        topic = world._topics["t"]
        world._topics["t"] = topic._replace(configs={"segment.bytes": "1048576"})
        world._follow()
        assert len(steps) == PARTITIONS
        assert world.replicas.leader_of("t", 7).config.segment_bytes == 1 << 20

    asyncio.run(scenario())


def test_a_partition_that_failed_is_tried_again_with_the_next_image_of_its_topic() -> None:
    async def scenario() -> None:
        world = World()
        world.add("t", [led()] * 3)
        failed = TopicPartition("t", world.replicas.leader_of("t", 1).partition.partition)
        world.replicas.failed[failed] = "it failed"
        world.replicas._led.pop(failed)
        world.elect("t", 2, led(epoch=1))
        assert not world.replicas.failed
        assert world.replicas.leader_of("t", 1).is_leader

    asyncio.run(scenario())


def test_changes_of_several_images_that_arrive_as_one_are_all_applied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        world = World()
        world.add("t", [led()] * PARTITIONS)
        steps = noting_steps(monkeypatch)
        states = list(world._topics["t"].partitions)
        states[7] = led(epoch=2)
        states[9] = followed(epoch=1)
        states.append(led())
        world._topics["t"] = world._topics["t"]._replace(partitions=tuple(states))
        world._follow()
        assert steps == [("t", 7), ("t", 9), ("t", PARTITIONS)]
        assert world.replicas.leader_of("t", 7).leader_epoch == 2
        assert world.replicas.leader_of("t", PARTITIONS).is_leader
        assert not world.replicas.replica_of("t", 9).is_leader

    asyncio.run(scenario())


def test_a_topic_that_was_deleted_and_created_again_in_one_image_is_applied_as_a_whole() -> None:
    """Hazard 21: its partitions have the states of the deleted ones, but are others."""

    async def scenario() -> None:
        world = World()
        world.add("t", [led()] * 3)
        before = world.replicas.leader_of("t", 1)
        world.append("t", 1, b"old")
        world._topics["t"] = world._topics["t"]._replace(id=TopicId(UUID(int=77)))
        world._follow()
        after = world.replicas.leader_of("t", 1)
        assert before.is_closed
        assert after.topic_id == UUID(int=77)
        assert after.log.end_offset == 0

    asyncio.run(scenario())


def test_a_registration_while_an_image_is_applied_reaches_every_partition() -> None:
    async def scenario() -> None:
        world = World()
        world.add("t", [led()] * PARTITIONS)
        old = world.replicas.image
        world.set_broker_epoch(UNKNOWN_EPOCH)
        assert not world.replicas.led()
        topic = old.topics["t"]
        changed = topic._replace(partitions=(led(epoch=1),) * PARTITIONS)
        new = replace(old, sequence=old.sequence + 1, topics={"t": changed})
        applying = world.replicas.apply_image(old, new)
        applying.send(None)  # the first slice
        registering = asyncio.ensure_future(world.replicas.set_broker_epoch(EPOCHS[HERE]))
        await asyncio.sleep(0)
        with suppress(StopIteration):
            while True:
                applying.send(None)
        await registering
        assert [each.leader_epoch for each in world.replicas.led()] == [1] * PARTITIONS

    asyncio.run(scenario())


def test_a_registration_that_is_lost_changes_the_roles_in_slices_and_at_once_serves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        world = World()
        world.add("t", [led()] * PARTITIONS)
        steps = noting_steps(monkeypatch)
        by_turn: list[int] = []
        losing = world.replicas.set_broker_epoch(UNKNOWN_EPOCH)
        with suppress(StopIteration):
            while True:
                losing.send(None)
                by_turn.append(len(steps))
                for index in range(PARTITIONS):
                    with pytest.raises(NotLeaderOrFollower):
                        world.replicas.leader_of("t", index)
        assert len(steps) == PARTITIONS
        assert max(after - before for before, after in pairwise([0, *by_turn])) <= 32
        assert not any(partition.is_leader for partition in world.replicas)

    asyncio.run(scenario())


def test_an_image_that_comes_while_a_registration_is_lost_is_applied_afterwards() -> None:
    async def scenario() -> None:
        world = World()
        world.add("t", [led()] * PARTITIONS)
        old = world.replicas.image
        changed = old.topics["t"]._replace(partitions=(followed(epoch=1),) * PARTITIONS)
        new = replace(old, sequence=old.sequence + 1, topics={"t": changed})
        losing = world.replicas.set_broker_epoch(UNKNOWN_EPOCH)
        losing.send(None)  # the first slice
        applying = asyncio.ensure_future(world.replicas.apply_image(old, new))
        await asyncio.sleep(0)
        assert world.replicas.image is old
        with suppress(StopIteration):
            while True:
                losing.send(None)
        await applying
        assert {partition.leader_epoch for partition in world.replicas} == {1}

    asyncio.run(scenario())


def test_a_leader_of_an_earlier_registration_starts_anew_in_the_same_leader_epoch() -> None:
    """Its proposals would have the old broker epoch, and be refused."""

    async def scenario() -> None:
        world = World()
        world.add("t", [led(OTHER)])
        partition = world.replicas.leader_of("t", 0)
        before = partition.leader_state
        partition.make_leader(led(OTHER), EPOCHS[HERE])
        assert partition.leader_state is before
        partition.make_leader(led(OTHER), EPOCHS[HERE] + 5)
        assert partition.leader_state is not None
        assert partition.leader_state.broker_epoch == EPOCHS[HERE] + 5

    asyncio.run(scenario())
