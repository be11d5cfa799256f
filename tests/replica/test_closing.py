"""A replica of a stopping broker does not change its role, whatever the controller decides."""

import asyncio
import errno

from suwi.log import names
from suwi.metadata.image import PartitionState
from suwi.model.errors import UnknownTopicOrPartition
from suwi.model.ids import LeaderEpoch, Offset
from suwi.records.builder import build_batch
from suwi.records.record import Record
from suwi.sim import SimDisk
from tests.replica.alone import ONE, ORDERS, TWO, make_partition, partition_and_directory


def test_a_replica_elected_while_its_broker_stops_can_still_be_closed_cleanly() -> None:
    async def scenario() -> None:
        partition = make_partition()
        replicas = (TWO, ONE)
        partition.make_follower(PartitionState(TWO, LeaderEpoch(0), 0, replicas, replicas))
        partition.replica_log.open()
        partition.close()
        partition.make_leader(
            PartitionState(ONE, LeaderEpoch(1), 1, replicas, (ONE,)), broker_epoch=5
        )
        assert partition.high_watermark == 0
        partition.log.finish()

    asyncio.run(scenario())


def test_a_leader_whose_epoch_cannot_be_written_on_a_full_disk_can_still_be_closed_cleanly() -> (
    None
):
    """Found by the simulation: a shutdown failed, and no clean-shutdown file was written."""

    async def scenario() -> None:
        partition, directory = partition_and_directory()
        replicas = (TWO, ONE)
        partition.make_follower(PartitionState(TWO, LeaderEpoch(0), 0, replicas, replicas))
        batch = build_batch([Record(value=b"a", timestamp=1)], leader_epoch=0)
        partition.follower.append_fetched(memoryview(batch), LeaderEpoch(0), Offset(0), Offset(1))
        disk = directory.disk
        assert isinstance(disk, SimDisk)
        disk.faults.fail("write", errno.ENOSPC, path=f"*{names.LEADER_EPOCHS}*", times=None)
        partition.make_leader(
            PartitionState(ONE, LeaderEpoch(1), 1, replicas, (ONE,)), broker_epoch=5
        )
        assert partition.high_watermark == 1
        for _ in range(2):
            assert (partition.log_as_it_is.end_offset, partition.watermark_as_it_is) == (1, 1)
            partition.close()
        disk.faults.clear()
        partition.log_as_it_is.finish()

    asyncio.run(scenario())


def test_a_deleted_replica_is_not_synced() -> None:
    """Found by the simulation: a follower had several logs to sync, and while it synced the first
    the topic of the second was deleted. Its files were missing, and that counted as a disk
    failure."""

    async def scenario() -> None:
        partition, directory = partition_and_directory()
        replicas = (TWO, ONE)
        partition.make_follower(PartitionState(TWO, LeaderEpoch(0), 0, replicas, replicas))
        batch = build_batch([Record(value=b"a", timestamp=1)], leader_epoch=0)
        partition.follower.append_fetched(memoryview(batch), LeaderEpoch(0), Offset(0), Offset(0))
        log = partition.log
        assert log.durability.is_unsynced
        partition.close(UnknownTopicOrPartition("deleted"))
        directory.mark_for_deletion(ORDERS)
        assert not await partition.syncer.sync_once(log)
        assert directory.state.offline_because is None

    asyncio.run(scenario())
