"""What a replica says of records that it has to give up."""

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
    """What a replica reports that copied batches (offset, epoch, watermark) from one leader, and
    hears from the next that the logs part at `at`, the end of `epoch` there."""
    losses: list[Loss] = []

    async def scenario() -> None:
        partition = make_partition(losses.append)
        partition.make_follower(following(1))
        for offset, written_in, watermark in copies:
            copy(partition, offset, written_in, watermark=watermark)
        partition.make_follower(following(3, unclean=unclean))
        partition.follower.truncate_to_divergence(LeaderEpoch(epoch), Offset(at))
        await partition.replica_log.settled()

    asyncio.run(scenario())
    return losses


def test_after_an_unclean_election_all_that_is_given_up_is_reported_by_epoch() -> None:
    losses = lost_by((0, 0, 3), (3, 0, 3), (6, 1, 4), unclean=2, epoch=0, at=3)
    assert ranges(losses) == [(0, 3, 6), (1, 6, 9)]
    assert [loss.committed_below for loss in losses] == [4]


def test_a_batch_that_goes_whole_is_reported_whole() -> None:
    """Found by the simulation (seed 35007): where the logs part within a batch all of it goes, and
    only what comes after that point was reported."""
    losses = lost_by((0, 0, 3), (3, 0, 6), unclean=2, epoch=0, at=4)
    assert ranges(losses) == [(0, 3, 6)]


@pytest.mark.parametrize("unclean", [NO_EPOCH, 1])
def test_what_is_younger_than_the_unclean_election_is_given_up_in_silence(unclean: int) -> None:
    """A later leader, who was in sync, does not have it: so it was not committed."""
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
        await partition.replica_log.settled()

    asyncio.run(scenario())
    assert ranges(losses) == [(0, 4, 6)]
