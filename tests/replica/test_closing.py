"""A replica whose broker stops is not given new duties, whatever the controller says meanwhile."""

import asyncio
from uuid import UUID

from suwi.env import Env, SystemRandom
from suwi.log.file_cache import FileCache
from suwi.log.log_directory import LogDirectory
from suwi.metadata.image import PartitionState
from suwi.model.errors import UnknownTopicOrPartition
from suwi.model.ids import LeaderEpoch, NodeId, Offset, PartitionIndex, TopicId, TopicPartition
from suwi.model.topic_config import TopicConfig
from suwi.records.builder import build_batch
from suwi.records.record import Record
from suwi.replica.partition import Home, Partition, Surroundings
from suwi.sim import ManualClock, SimDisk

ORDERS = TopicPartition("orders", PartitionIndex(0))
ONE, TWO = NodeId(1), NodeId(2)


def _partition() -> Partition:
    return _partition_and_directory()[0]


def _partition_and_directory() -> tuple[Partition, LogDirectory]:
    clock, disk = ManualClock(), SimDisk()
    env = Env(clock=clock, disk=disk, random=SystemRandom())
    directory = LogDirectory(env, "/data", FileCache(disk, 100))
    directory.open()
    directory.begin()
    topic_id = TopicId(UUID(int=1))
    home = Home(lambda config: directory.log_of(ORDERS, topic_id, config, None), lambda: Offset(0))
    around = Surroundings(ONE, clock, 10.0, lambda node, epoch: True)
    return Partition(ORDERS, topic_id, TopicConfig(), home, around), directory


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


def test_a_replica_that_was_deleted_is_not_synced_any_more() -> None:
    """Found by the simulation: a follower had several logs to sync, and while it synced the first
    the topic of the second was deleted. Its files were gone, and the disk was taken for broken."""

    async def scenario() -> None:
        partition, directory = _partition_and_directory()
        replicas = (TWO, ONE)
        partition.follow(PartitionState(TWO, LeaderEpoch(0), 0, replicas, replicas))
        batch = build_batch([Record(value=b"a", timestamp=1)], leader_epoch=0)
        partition.append_fetched(memoryview(batch), LeaderEpoch(0), Offset(0), Offset(0))
        log = partition.log
        assert log.unsynced
        partition.close(UnknownTopicOrPartition("deleted"))
        directory.put_away(ORDERS, partition.topic_id)
        assert not await partition.sync_once(log)
        assert directory.state.offline_because is None

    asyncio.run(scenario())
