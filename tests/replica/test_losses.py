"""What a replica reports about truncated records."""

import asyncio

import pytest

from suwi.metadata.image import PartitionState
from suwi.model.ids import NO_EPOCH, LeaderEpoch, Offset
from suwi.records.batch import place
from suwi.records.builder import build_batch
from suwi.records.record import Record
from suwi.replica.loss import Loss
from suwi.replica.partition import Partition
from tests.replica.alone import ONE, TWO, make_partition


def following(epoch: int, *, unclean: int = NO_EPOCH) -> PartitionState:
    return PartitionState(
        TWO,
        LeaderEpoch(epoch),
        epoch,
        (TWO, ONE),
        (TWO,),
        unclean_epoch=LeaderEpoch(unclean),
    )


def copy(partition: Partition, offset: int, epoch: int, *, watermark: int) -> None:
    """Three records from the leader."""
    batch = build_batch([Record(value=value, timestamp=1) for value in (b"a", b"b", b"c")])
    place(memoryview(batch), Offset(offset), LeaderEpoch(epoch))
    partition.follower.append_fetched(
        memoryview(batch), LeaderEpoch(epoch), Offset(watermark), Offset(0)
    )


def ranges(losses: list[Loss]) -> list[tuple[int, int, int]]:
    return [(lost.epoch, lost.first, lost.end) for loss in losses for lost in loss.ranges]


def lost_by(*copies: tuple[int, int, int], unclean: int, epoch: int, at: int) -> list[Loss]:
    """The losses reported by a replica that fetched batches (offset, epoch, high watermark) from
    one leader, and then learns from the next that the logs diverge at `at`, the end of `epoch`
    there."""
    losses: list[Loss] = []

    async def scenario() -> None:
        partition = make_partition(losses.append)
        partition.make_follower(following(1))
        for offset, written_in, watermark in copies:
            copy(partition, offset, written_in, watermark=watermark)
        partition.make_follower(following(3, unclean=unclean))
        partition.follower.truncate_to_divergence(LeaderEpoch(epoch), Offset(at))
        await partition.replica_log.wait_for_preparation()

    asyncio.run(scenario())
    return losses


def test_after_an_unclean_election_all_truncated_records_are_reported_by_epoch() -> None:
    losses = lost_by((0, 0, 3), (3, 0, 3), (6, 1, 4), unclean=2, epoch=0, at=3)
    assert ranges(losses) == [(0, 3, 6), (1, 6, 9)]
    assert [loss.committed_below for loss in losses] == [4]


def test_a_batch_that_is_truncated_completely_is_reported_completely() -> None:
    """Found by the simulation (seed 35007): if the logs diverge within a batch, the whole batch is
    truncated, but only the part after that point was reported."""
    losses = lost_by((0, 0, 3), (3, 0, 6), unclean=2, epoch=0, at=4)
    assert ranges(losses) == [(0, 3, 6)]


@pytest.mark.parametrize("unclean", [NO_EPOCH, 1])
def test_records_newer_than_the_unclean_election_are_truncated_without_a_report(
    unclean: int,
) -> None:
    """A later leader from the ISR does not have them, so they were not committed."""
    assert lost_by((0, 0, 3), (3, 1, 3), unclean=unclean, epoch=1, at=3) == []


def test_deleted_records_are_not_lost() -> None:
    losses: list[Loss] = []

    async def scenario() -> None:
        partition = make_partition(losses.append)
        partition.make_follower(following(0))
        copy(partition, 0, 0, watermark=3)
        copy(partition, 3, 0, watermark=6)
        partition.follower.append_fetched(memoryview(b""), LeaderEpoch(0), Offset(6), Offset(4))
        partition.make_follower(following(1, unclean=1))
        partition.follower.truncate_to_divergence(LeaderEpoch(0), Offset(3))
        await partition.replica_log.wait_for_preparation()

    asyncio.run(scenario())
    assert ranges(losses) == [(0, 4, 6)]
