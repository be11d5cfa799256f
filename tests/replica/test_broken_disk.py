"""A leader whose data directory is offline does not count its own records as committed."""

import asyncio

import pytest

from suwi.metadata.image import PartitionState
from suwi.model.errors import BrokerError
from suwi.model.ids import LeaderEpoch, NodeId, Offset
from suwi.records.batch import read_header
from suwi.records.builder import build_batch
from suwi.records.record import Record
from suwi.replica.leader_state import Proposal
from suwi.replica.partition import Partition
from tests.replica.alone import ONE, TWO, partition_and_directory


def leading(*isr: NodeId, partition_epoch: int) -> PartitionState:
    return PartitionState(ONE, LeaderEpoch(1), partition_epoch, (ONE, TWO), isr)


def append(partition: Partition) -> Offset:
    """One record that the follower does not have yet."""
    batch = memoryview(build_batch([Record(value=b"a", timestamp=1)]))
    return Offset(partition.append(batch, read_header(batch), 1).base_offset + 1)


def test_a_leader_on_a_failed_disk_does_not_commit_records_that_no_other_replica_has() -> None:
    """Found by the simulation (seed 62792): the leader's disk failed, the follower died, and
    records that only the failed disk had were acknowledged. Then another replica became the
    leader."""
    called: list[BrokerError | None] = []

    async def scenario() -> None:
        partition, directory = partition_and_directory()
        partition.make_leader(leading(ONE, TWO, partition_epoch=0), broker_epoch=5)
        partition.when_committed(append(partition), called.append)
        directory.state.take_offline(OSError(5, "Input/output error"))
        partition.make_leader(leading(ONE, partition_epoch=1), broker_epoch=5)
        partition.live_brokers_changed()
        partition.maybe_shrink_isr()
        assert partition.watermark_as_it_is == 0

    asyncio.run(scenario())
    assert called == []


@pytest.mark.parametrize("is_behind", [False, True])
def test_a_leader_on_a_failed_disk_resigns(is_behind: bool) -> None:
    """A follower that cannot fetch is not removed from the ISR: the leader is the one to go."""
    proposals: list[Proposal] = []

    async def scenario() -> None:
        partition, directory = partition_and_directory(propose=lambda _, p: proposals.append(p))
        partition.make_leader(leading(ONE, TWO, partition_epoch=0), broker_epoch=5)
        end = append(partition)
        partition.leader_replica.record_progress(TWO, Offset(0) if is_behind else end, Offset(0), 3)
        directory.state.take_offline(OSError(5, "Input/output error"))
        assert partition.leader_state is not None
        partition.leader_state.followers[TWO].caught_up_s -= 60
        partition.maybe_shrink_isr()
        partition.maybe_shrink_isr()

    asyncio.run(scenario())
    assert [proposal.members for proposal in proposals] == [((TWO, 3),)]
