"""A replica whose broker stops is not given new duties, whatever the controller says meanwhile."""

import asyncio
from uuid import UUID

from suwi.env import Env, SystemRandom
from suwi.log.file_cache import FileCache
from suwi.log.log_directory import LogDirectory
from suwi.metadata.image import PartitionState
from suwi.model.ids import LeaderEpoch, NodeId, Offset, PartitionIndex, TopicId, TopicPartition
from suwi.model.topic_config import TopicConfig
from suwi.replica.partition import Home, Partition, Surroundings
from suwi.sim import ManualClock, SimDisk

ORDERS = TopicPartition("orders", PartitionIndex(0))
ONE, TWO = NodeId(1), NodeId(2)


def _partition() -> Partition:
    clock, disk = ManualClock(), SimDisk()
    env = Env(clock=clock, disk=disk, random=SystemRandom())
    directory = LogDirectory(env, "/data", FileCache(disk, 100))
    directory.open()
    directory.begin()
    topic_id = TopicId(UUID(int=1))
    home = Home(lambda config: directory.log_of(ORDERS, topic_id, config, None), lambda: Offset(0))
    around = Surroundings(ONE, clock, 10.0, lambda node, epoch: True)
    return Partition(ORDERS, topic_id, TopicConfig(), home, around)


def test_a_replica_that_is_elected_while_its_broker_stops_can_still_be_closed_cleanly() -> None:
    async def scenario() -> None:
        partition = _partition()
        replicas = (TWO, ONE)
        partition.follow(PartitionState(TWO, LeaderEpoch(0), 0, replicas, replicas))
        partition.open()
        partition.close()
        partition.lead(PartitionState(ONE, LeaderEpoch(1), 1, replicas, (ONE,)), broker_epoch=5)
        assert partition.high_watermark == 0
        partition.log.finish()

    asyncio.run(scenario())
