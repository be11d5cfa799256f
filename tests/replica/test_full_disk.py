"""A leader whose epoch cannot be written because the disk is full: everything else still works."""

import asyncio
from collections.abc import Callable

import pytest

from suwi.log import checkpoints, names
from suwi.log.sliced_work import run_steps
from suwi.metadata.image import PartitionState
from suwi.model.errors import KafkaStorageError
from suwi.model.ids import LeaderEpoch, NodeId, Offset
from suwi.model.topic_config import TopicConfig
from suwi.records.batch import place, read_header
from suwi.records.builder import build_batch
from suwi.records.record import Record
from suwi.replica.description import describe
from suwi.replica.leader_state import Proposal
from suwi.replica.partition import Partition
from suwi.replica.replica_log import ReplicaLog
from suwi.sim import SimDisk
from tests.replica.alone import ONE, TWO, partition_and_directory


def elected_on_a_full_disk(
    isr: tuple[NodeId, ...] = (ONE,),
    propose: Callable[[ReplicaLog, Proposal], None] = lambda *_: None,
) -> Partition:
    """It has fetched three batches, each in its own segment, and all are committed."""
    partition, directory = partition_and_directory(propose=propose)
    partition.configure(TopicConfig(segment_bytes=100, retention_ms=1_000))
    replicas = (TWO, ONE)
    partition.make_follower(PartitionState(TWO, LeaderEpoch(0), 0, replicas, replicas))
    for offset in range(3):
        batch = memoryview(build_batch([Record(value=b"x" * 50, timestamp=1)]))
        place(batch, Offset(offset), LeaderEpoch(0))
        partition.follower.append_fetched(batch, LeaderEpoch(0), Offset(offset + 1), Offset(0))
    disk = directory.disk
    assert isinstance(disk, SimDisk)
    disk.fill()
    partition.make_leader(PartitionState(ONE, LeaderEpoch(1), 1, replicas, isr), broker_epoch=5)
    return partition


def append(partition: Partition) -> Offset:
    batch = memoryview(build_batch([Record(value=b"x" * 50, timestamp=1)]))
    return partition.append(batch, read_header(batch), now_ms=1).base_offset


def test_the_last_replica_serves_readers_and_writes_its_epoch_before_it_appends() -> None:
    async def scenario() -> None:
        partition = elected_on_a_full_disk()
        found = partition.read(Offset(0), 1_000, committed_only=False, whole_batch=True)
        assert found is not None
        with pytest.raises(KafkaStorageError, match="no space left"):
            append(partition)
        disk = partition.log.files.disk
        assert isinstance(disk, SimDisk)
        path = f"{partition.log.dir}/{names.LEADER_EPOCHS}"
        assert checkpoints.read_epochs(disk, path) == [(0, 0)]
        disk.free()
        assert append(partition) == 3
        assert checkpoints.read_epochs(disk, path) == [(0, 0), (1, 3)]

    asyncio.run(scenario())


def test_a_leader_on_a_full_disk_hands_over_to_another_member() -> None:
    async def scenario() -> None:
        proposals: list[Proposal] = []
        elected_on_a_full_disk((ONE, TWO), lambda _, each: proposals.append(each))
        assert [[node for node, _ in each.members] for each in proposals] == [[TWO]]

    asyncio.run(scenario())


def test_a_leader_on_a_full_disk_is_described() -> None:
    """Found by the simulation (seed 72209): the request failed, and its connection was closed."""

    async def scenario() -> None:
        state = describe(elected_on_a_full_disk(), ONE, now_s=0.0)
        assert (state.role, state.isr) == ("leader", (ONE,))
        assert state.problem is None

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
