"""A new image costs one step for each partition that changed, however many the topic has."""

import asyncio
from typing import Any

import pytest

from suwi.model.ids import TopicPartition
from suwi.replica.replica_manager import ReplicaManager
from tests.handlers.world import World, led

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
