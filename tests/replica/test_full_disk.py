"""A leader whose epoch cannot start because the disk is full: everything else still works."""

import asyncio

from suwi.log.sliced_work import run_steps
from suwi.metadata.image import PartitionState
from suwi.model.ids import LeaderEpoch, Offset
from suwi.model.topic_config import TopicConfig
from suwi.records.batch import place
from suwi.records.builder import build_batch
from suwi.records.record import Record
from suwi.replica.description import describe
from suwi.replica.partition import Partition
from suwi.sim import SimDisk
from tests.replica.alone import ONE, TWO, partition_and_directory


def elected_on_a_full_disk() -> Partition:
    """It has fetched three batches, each in its own segment, and all are committed."""
    partition, directory = partition_and_directory()
    partition.configure(TopicConfig(segment_bytes=100, retention_ms=1_000))
    replicas = (TWO, ONE)
    partition.make_follower(PartitionState(TWO, LeaderEpoch(0), 0, replicas, replicas))
    for offset in range(3):
        batch = memoryview(build_batch([Record(value=b"x" * 50, timestamp=1)]))
        place(batch, Offset(offset), LeaderEpoch(0))
        partition.follower.append_fetched(batch, LeaderEpoch(0), Offset(offset + 1), Offset(0))
    disk = directory.disk
    assert isinstance(disk, SimDisk)
    disk.capacity_bytes = disk.drive.volume.used_bytes
    partition.make_leader(PartitionState(ONE, LeaderEpoch(1), 1, replicas, (ONE,)), broker_epoch=5)
    return partition


def test_a_leader_on_a_full_disk_is_described_with_its_problem() -> None:
    """Found by the simulation (seed 72209): the request failed, and its connection was closed."""

    async def scenario() -> None:
        state = describe(elected_on_a_full_disk(), ONE, now_s=0.0)
        assert (state.role, state.isr) == ("leader", (ONE,))
        assert state.problem == "/data: no space left on the device"

    asyncio.run(scenario())


def test_a_leader_on_a_full_disk_still_applies_retention() -> None:
    """This frees the space that it needs."""

    async def scenario() -> None:
        partition = elected_on_a_full_disk()
        removed: list[str] = []
        run_steps(partition.replica_log.retaining(10_000, removed))
        assert len([path for path in removed if path.endswith(".log.deleted")]) == 2
        assert partition.log_as_it_is.start_offset == 2

    asyncio.run(scenario())
