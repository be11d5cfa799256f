"""A follower restarts its log at the leader's start offset, even if that is within a batch."""

import asyncio
import errno
import logging

import pytest

from suwi.metadata.image import PartitionState
from suwi.model.errors import KafkaStorageError
from suwi.model.ids import LeaderEpoch, Offset
from suwi.records.batch import place
from suwi.records.builder import build_batch
from suwi.records.record import Record
from suwi.sim import SimDisk, Simulation
from suwi.sim.cluster import SimCluster
from tests.broker.test_simulated_cluster import image, until
from tests.replica.alone import ONE, TWO, make_partition, partition_and_directory
from tests.replica.replicated import begin


def test_a_log_that_starts_within_a_batch_is_fetched_with_the_whole_batch() -> None:
    """Found by the simulation: records up to 30 were deleted, the leader's first batch started at
    29, and a follower that had lost everything never caught up."""

    async def scenario() -> None:
        partition = make_partition()
        partition.make_follower(PartitionState(TWO, LeaderEpoch(0), 0, (TWO, ONE), (TWO,)))
        partition.follower.truncate_fully_and_start_at(Offset(30))
        await partition.replica_log.wait_for_preparation()
        batch = build_batch([Record(value=value, timestamp=1) for value in (b"a", b"b", b"c")])
        place(memoryview(batch), Offset(29), LeaderEpoch(0))
        partition.follower.append_fetched(memoryview(batch), LeaderEpoch(0), Offset(28), Offset(30))
        await partition.replica_log.wait_for_preparation()
        assert (partition.log.start_offset, partition.log.end_offset) == (30, 32)
        assert partition.high_watermark == 30

    asyncio.run(scenario())


def test_after_a_partial_append_on_a_full_disk_the_log_starts_at_the_leaders_start_offset() -> None:
    """Found by the simulation (seeds 24680, 24982): the high watermark fell to the batch's first
    offset, which is deleted."""
    disk = SimDisk()

    async def scenario() -> None:
        partition, _ = partition_and_directory(disk=disk)
        partition.make_follower(PartitionState(TWO, LeaderEpoch(0), 0, (TWO, ONE), (TWO,)))
        partition.follower.truncate_fully_and_start_at(Offset(30))
        await partition.replica_log.wait_for_preparation()
        records = bytearray()
        for offset in (29, 32):
            batch = build_batch([Record(value=value, timestamp=1) for value in (b"a", b"b", b"c")])
            place(memoryview(batch), Offset(offset), LeaderEpoch(0))
            records += batch
        disk.faults.fail("write", errno.ENOSPC, path="*.log", skip=1)
        partition.follower.append_fetched(
            memoryview(records), LeaderEpoch(0), Offset(31), Offset(30)
        )
        with pytest.raises(KafkaStorageError):
            await partition.replica_log.wait_for_preparation()
        assert (partition.log.start_offset, partition.log.end_offset) == (30, 32)
        assert partition.high_watermark == 31

    asyncio.run(scenario())


def test_the_new_start_offset_is_checkpointed_before_the_next_append() -> None:
    """Otherwise, after a crash, new records there would be considered deleted."""

    async def scenario() -> None:
        partition = make_partition()
        partition.make_follower(PartitionState(TWO, LeaderEpoch(0), 0, (TWO, ONE), (TWO,)))
        assert not partition.log.start_moved
        partition.follower.truncate_fully_and_start_at(Offset(30))
        await partition.replica_log.wait_for_preparation()
        assert partition.log.start_moved
        partition.log.start_moved = False
        partition.follower.truncate_to_divergence(LeaderEpoch(0), Offset(20))
        await partition.replica_log.wait_for_preparation()
        assert (partition.log.start_offset, partition.log.start_moved) == (0, True)

    asyncio.run(scenario())


def test_a_replica_of_a_partition_without_records_discards_nothing_when_it_follows_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As a former leader of an empty partition it has a leader epoch, and no records of it."""
    simulation = Simulation(0)

    async def scenario() -> None:
        cluster, _ = await begin(simulation)
        cluster[1].freeze()
        await until(lambda: state_of_orders(cluster).leader != ONE)
        cluster[1].thaw()
        await until(lambda: set(state_of_orders(cluster).isr) == {1, 2, 3})

    with caplog.at_level(logging.INFO, "suwi.replica"):
        simulation.run(scenario())
    assert not [record for record in caplog.records if "log discarded" in record.message]


def state_of_orders(cluster: SimCluster) -> PartitionState:
    return image(cluster, 2).topics["orders"].partitions[0]
