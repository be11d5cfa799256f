"""A follower appends fetched batches in slices and yields the event loop in between."""

import asyncio

import pytest

from suwi.model.ids import LeaderEpoch, Offset
from suwi.records.batch import end_of_batches, place
from suwi.records.builder import build_batch
from suwi.records.record import Record
from suwi.replica import replica_fetcher as fetching
from suwi.replica.partition import Partition
from suwi.replica.replica_fetcher import PartitionFetchState, ReplicaFetcher
from suwi.wire.fetch_request import FetchPartition
from suwi.wire.fetch_response import FetchedPartition
from tests.replica.alone import make_partition
from tests.replica.test_losses import following


def fetched(count: int, first: int = 0) -> FetchedPartition:
    records = bytearray()
    for offset in range(first, first + count):
        batch = build_batch([Record(value=b"x", timestamp=1)])
        place(memoryview(batch), Offset(offset), LeaderEpoch(1))
        records += batch
    return FetchedPartition(0, high_watermark=count, log_start_offset=0, records=bytes(records))


def asked(offset: int) -> FetchPartition:
    return FetchPartition(0, 1, offset, -1, 0, 1 << 20)


def make_fetcher() -> tuple[ReplicaFetcher, PartitionFetchState, Partition]:
    """A fetcher without a leader, and the partition it fetches."""
    partition = make_partition()
    partition.make_follower(following(1))
    return (
        ReplicaFetcher.__new__(ReplicaFetcher),
        PartitionFetchState(partition, LeaderEpoch(1)),
        partition,
    )


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "_BATCHES_A_TURN", 10)


def test_many_small_batches_are_appended_over_several_loop_iterations() -> None:
    async def scenario() -> None:
        fetcher, copy, partition = make_fetcher()
        ends: list[int] = []

        async def look() -> None:
            while True:
                ends.append(int(partition.log.end_offset))
                await asyncio.sleep(0)

        looking = asyncio.create_task(look())
        assert await fetcher._process_in_slices(copy, asked(0), fetched(95))
        looking.cancel()
        assert partition.log.end_offset == partition.high_watermark == 95
        assert set(range(10, 91, 10)) <= set(ends)

    asyncio.run(scenario())


def test_the_remaining_batches_are_dropped_if_the_leader_changes_meanwhile() -> None:
    async def scenario() -> None:
        fetcher, copy, partition = make_fetcher()
        asyncio.get_running_loop().call_soon(partition.make_follower, following(2))
        assert not await fetcher._process_in_slices(copy, asked(0), fetched(95))
        assert partition.log.end_offset == 10

    asyncio.run(scenario())


def test_a_response_to_another_fetch_offset_is_ignored() -> None:
    async def scenario() -> None:
        fetcher, copy, partition = make_fetcher()
        assert await fetcher._process_in_slices(copy, asked(20), fetched(95, first=20))
        assert partition.log.end_offset == 0

    asyncio.run(scenario())


def test_the_end_of_batches_is_found_by_their_lengths() -> None:
    records = memoryview(fetched(3).records)  # type: ignore[arg-type]
    one = len(records) // 3
    assert [end_of_batches(records, count) for count in (1, 2, 3, 9)] == [
        one,
        2 * one,
        3 * one,
        3 * one,
    ]
    assert end_of_batches(records[: 2 * one - 1], 2) == 2 * one - 1
    assert end_of_batches(memoryview(b""), 5) == 0
    assert end_of_batches(memoryview(bytes(100)), 5) == 100
