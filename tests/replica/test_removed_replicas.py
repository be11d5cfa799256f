"""A broker deletes the log of a replica that was moved away, but not because of an old image."""

import asyncio

from suwi.metadata.image import PartitionState
from suwi.model.ids import LeaderEpoch, PartitionIndex, TopicPartition
from suwi.replica.leader_state import UNKNOWN_EPOCH
from tests.handlers.world import OTHER, World, led

ORDERS = TopicPartition("orders", PartitionIndex(0))
MOVED_AWAY = PartitionState(OTHER, LeaderEpoch(1), 1, (OTHER,), (OTHER,))


def has_log(world: World) -> bool:
    return world.replicas.directories.topic_id_of(ORDERS) == world.id_of("orders")


def test_the_log_of_a_replica_that_was_moved_away_is_deleted() -> None:
    async def scenario() -> None:
        world = World()
        world.add("orders", [led(OTHER)])
        world.append("orders", 0, b"a")
        assert has_log(world)
        world.elect("orders", 0, MOVED_AWAY)
        assert not has_log(world)
        assert len(world.replicas) == 0

    asyncio.run(scenario())


def test_a_log_is_kept_until_the_image_is_newer_than_the_registration() -> None:
    """The replica may have been moved back, and be the only one that has everything."""

    async def scenario() -> None:
        world = World()
        world.add("orders", [led(OTHER)])
        world.append("orders", 0, b"a")
        world.set_broker_epoch(UNKNOWN_EPOCH)
        world.elect("orders", 0, MOVED_AWAY)
        assert has_log(world)
        world.elect("orders", 0, led(epoch=2))
        world.live_as()
        assert world.replicas.leader_of("orders", 0).log.end_offset == 1
        world.set_broker_epoch(UNKNOWN_EPOCH)
        world.elect("orders", 0, MOVED_AWAY._replace(leader_epoch=LeaderEpoch(3)))
        world.live_as()  # The image is newer now.
        assert not has_log(world)

    asyncio.run(scenario())
