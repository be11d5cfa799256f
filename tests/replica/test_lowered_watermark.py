"""A checkpointed high watermark does not apply to other records that are appended below it."""

import asyncio
import errno

import pytest

from suwi.log import checkpoints, names
from suwi.model.errors import KafkaStorageError, NotLeaderOrFollower
from suwi.model.ids import LeaderEpoch, Offset
from suwi.sim import SimDisk
from tests.log.directory_kit import write_high_watermarks
from tests.replica.alone import ORDERS, partition_and_directory
from tests.replica.test_losses import copy, following


def written(disk: SimDisk) -> int | None:
    found = checkpoints.read_offsets(disk, f"/data/{names.HIGH_WATERMARKS}")
    return None if found is None else found.get(ORDERS)


def test_a_truncation_below_the_high_watermark_is_checkpointed_before_the_next_append() -> None:
    """Found by the simulation (seed 23343): after an unclean election a replica truncated committed
    records, fetched other records, and died before the next checkpoint. After its restart all of
    these counted as committed, and one that never was committed was reported as lost."""
    disk = SimDisk()

    async def scenario() -> None:
        partition, directory = partition_and_directory(disk=disk)
        partition.make_follower(following(1))
        copy(partition, 0, 0, watermark=3)
        copy(partition, 3, 0, watermark=6)
        write_high_watermarks(directory, [(ORDERS, partition.high_watermark)])
        partition.make_follower(following(3, unclean=2))
        partition.follower.truncate_to_divergence(LeaderEpoch(0), Offset(3))
        await partition.replica_log.wait_for_preparation()
        copy(partition, 3, 2, watermark=3)
        assert written(disk) == 3

    asyncio.run(scenario())
    again, _ = partition_and_directory(disk=disk.power_loss(tear=False))
    again.replica_log.open()
    assert again.high_watermark <= 3


def test_offsets_lost_in_a_power_loss_are_not_committed_when_new_records_use_them() -> None:
    disk = SimDisk()

    async def copied(disk: SimDisk, epoch: int) -> None:
        partition, directory = partition_and_directory(disk=disk)
        partition.make_follower(following(epoch))
        partition.replica_log.prepare()
        await partition.replica_log.wait_for_preparation()
        copy(partition, 0, epoch, watermark=0)
        if epoch == 0:
            write_high_watermarks(directory, [(ORDERS, Offset(3))])

    asyncio.run(copied(disk, 0))
    disk = disk.power_loss(tear=False)
    asyncio.run(copied(disk, 1))
    again, _ = partition_and_directory(disk=disk.crash())
    again.replica_log.open()
    assert again.log.end_offset == 3
    assert again.high_watermark == 0


def test_on_a_full_disk_nothing_is_appended_until_the_checkpoint_is_written() -> None:
    disk = SimDisk()

    async def scenario() -> None:
        partition, directory = partition_and_directory(disk=disk)
        partition.make_follower(following(1))
        copy(partition, 0, 0, watermark=3)
        write_high_watermarks(directory, [(ORDERS, partition.high_watermark)])
        partition.make_follower(following(3, unclean=2))
        disk.faults.fail("write", errno.ENOSPC, path=f"*{names.HIGH_WATERMARKS}*")
        partition.follower.truncate_to_divergence(LeaderEpoch(0), Offset(0))
        with pytest.raises(KafkaStorageError):
            await partition.replica_log.wait_for_preparation()
        with pytest.raises(NotLeaderOrFollower):
            copy(partition, 0, 2, watermark=0)
        assert (written(disk), partition.log_as_it_is.end_offset) == (3, 0)
        disk.faults.clear()
        await partition.replica_log.wait_for_preparation()
        copy(partition, 0, 2, watermark=0)
        assert (written(disk), partition.log.end_offset) == (0, 3)

    asyncio.run(scenario())
