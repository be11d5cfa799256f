"""Watches of partitions: they end by themselves, are few, and add up what comes too fast."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import fields
from uuid import UUID

import pytest

from suwi.lab.events import KINDS
from suwi.model.errors import NotEnoughReplicas, RequestTimedOut, ThrottlingQuotaExceeded
from suwi.model.ids import LeaderEpoch, NodeId, Offset, TopicId
from suwi.replica.loss import LostRange
from suwi.replica.partition import Partition
from suwi.replica.partition_watch import (
    CLIENTS_MAX,
    EVENTS_MAX,
    OTHER_CLIENTS,
    TRUNCATIONS_KEPT,
    WATCHES_MAX,
    Noted,
    PartitionWatch,
    PartitionWatches,
)
from suwi.sim import ManualClock, Simulation
from suwi.wire.fetch_request import FetchPartition
from suwi.wire.fetch_response import EpochEnd, FetchedPartition
from tests.replica.alone import make_partition, partitions

LEADER = NodeId(2)
ALL = -1


def run(scenario: Callable[[PartitionWatches], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario(PartitionWatches(ManualClock()))

    Simulation(1).run(main())


def watched(watches: PartitionWatches) -> tuple[Partition, PartitionWatch]:
    partition = make_partition()
    watches.renew(partition)
    assert partition.watched_by is not None
    return partition, partition.watched_by


def asked(offset: int, epoch: int = 0) -> FetchPartition:
    return FetchPartition(0, epoch, offset, epoch, 0, 1000)


async def read(
    watches: PartitionWatches, partition: Partition, after: int = 0
) -> tuple[list[Noted], int]:
    """All that was noted so far."""
    await asyncio.sleep(0.1)
    told, last, _ = watches.read(partition.partition, after)
    return list(told), last


def test_a_watch_ends_5_seconds_after_it_was_last_renewed() -> None:
    async def scenario(watches: PartitionWatches) -> None:
        partition, _ = watched(watches)
        for _ in range(3):
            await asyncio.sleep(4)
            watches.renew(partition)
        await asyncio.sleep(4.9)
        assert partition.watched_by is not None
        await asyncio.sleep(0.2)
        assert partition.watched_by is None
        watches.renew(partition)
        assert partition.watched_by is not None

    run(scenario)


def test_a_broker_has_few_watches_and_each_ends_by_itself() -> None:
    async def scenario(watches: PartitionWatches) -> None:
        *first, other = partitions(WATCHES_MAX + 1)
        for partition in first:
            watches.renew(partition)
        watches.renew(first[0])
        with pytest.raises(ThrottlingQuotaExceeded, match="10 partitions are watched"):
            watches.renew(other)
        await asyncio.sleep(3)
        watches.renew(first[0])
        await asyncio.sleep(3)
        assert [p.watched_by is not None for p in first] == [True, *[False] * (WATCHES_MAX - 1)]
        watches.renew(other)
        watches.close()
        assert other.watched_by is first[0].watched_by is None

    run(scenario)


def test_a_replica_that_takes_the_place_of_a_watched_one_is_watched_anew() -> None:
    async def scenario(watches: PartitionWatches) -> None:
        old, _ = watched(watches)
        new, watch = watched(watches)
        assert (old.watched_by, new.watched_by) == (None, watch)

    run(scenario)


def test_up_to_20_events_a_second_are_told_one_by_one() -> None:
    async def scenario(watches: PartitionWatches) -> None:
        partition, watch = watched(watches)
        for offset in range(20):
            watch.fetch(LEADER, asked(offset))
            watch.fetch(LEADER, asked(offset))  # like the last
            await asyncio.sleep(0.051)
        told, _ = await read(watches, partition)
        assert [event["offset"] for event in told] == list(range(20))
        assert {event["times"] for event in told} == {1}

    run(scenario)


def test_what_comes_faster_is_added_up() -> None:
    async def scenario(watches: PartitionWatches) -> None:
        partition, watch = watched(watches)
        for first in range(0, 3000, 3):
            watch.sent("p", ALL, Offset(first), Offset(first + 3), 30_000)
            await asyncio.sleep(0.001)
            watch.answered(Offset(first), Offset(first + 3), None)
        told, _ = await read(watches, partition)
        sends = [event for event in told if event["kind"] == "send"]
        results = [event for event in told if event["kind"] == "send-result"]
        assert len(sends) <= 21
        assert len(results) <= 21
        assert sum(event["times"] for event in sends) == 1000
        assert sum(event["times"] for event in results) == 1000
        assert sum(event["records"] for event in sends) == 3000
        assert (results[-1]["number"], results[-1]["offset"]) == (1000, 2997)

    run(scenario)


def test_of_a_busy_sender_there_are_four_events_a_second_and_no_batch_is_missing() -> None:
    async def scenario(watches: PartitionWatches) -> None:
        partition, watch = watched(watches)
        told: list[Noted] = []
        after, batches = 0, 6_000
        for number in range(batches):
            first = Offset(10 * number)
            watch.sent("app", 1, first, Offset(first + 10), None)
            await asyncio.sleep(0.001)
            if number % 1_500 == 700:  # in the middle of what is added up
                watches.renew(partition)
                found, after, _ = watches.read(partition.partition, after)
                told += found
        found, _ = await read(watches, partition, after)
        for kind in ("send", "send-result"):
            events = [event for event in (*told, *found) if event["kind"] == kind]
            assert sum(event["times"] for event in events) == batches
            assert len(events) <= 4 * 6 + 6
            assert events[-1]["number"] == batches
        sends = [event for event in (*told, *found) if event["kind"] == "send"]
        assert sum(event["records"] for event in sends) == 10 * batches
        assert [event["offset"] for event in sends] == sorted(event["offset"] for event in sends)

    run(scenario)


def test_more_batches_of_one_moment_than_are_taken_without_being_noted_are_all_told() -> None:
    async def scenario(watches: PartitionWatches) -> None:
        partition, watch = watched(watches)
        for number in range(2_500):
            watch.sent(f"app{number % 2}", 1, Offset(number), Offset(number + 1), None)
        told, _ = await read(watches, partition)
        sends = [event for event in told if event["kind"] == "send"]
        assert [event["times"] for event in sends] == [1_250, 1_250]

    run(scenario)


def test_an_event_is_told_once_and_when_nothing_is_added_to_it_any_more() -> None:
    async def scenario(watches: PartitionWatches) -> None:
        partition, watch = watched(watches)
        watch.fetch(LEADER, asked(1))
        assert list(watches.read(partition.partition, 0)[0]) == []
        watch.fetch(LEADER, asked(2))
        told, last = await read(watches, partition)
        assert [(event["offset"], event["times"]) for event in told] == [(2, 2)]
        assert (await read(watches, partition, last))[0] == []
        watch.fetch(LEADER, asked(3))
        told, _ = await read(watches, partition, last)
        assert [event["offset"] for event in told] == [3]

    run(scenario)


def test_an_error_is_not_hidden_among_successes() -> None:
    async def scenario(watches: PartitionWatches) -> None:
        partition, watch = watched(watches)
        watch.sent("p", 1, Offset(0), Offset(1), None)
        watch.refused("p", ALL, NotEnoughReplicas("two are missing"))
        watch.sent("p", ALL, Offset(1), Offset(2), 30_000)
        watch.answered(Offset(1), Offset(2), RequestTimedOut("too late"))
        watch.sent("p", 0, Offset(2), Offset(3), None)
        told, _ = await read(watches, partition)
        results = [event for event in told if event["kind"] == "send-result"]
        assert [(e.get("offset"), e.get("error"), e["number"]) for e in results] == [
            (0, None, 1),
            (None, "NOT_ENOUGH_REPLICAS", 2),
            (None, "REQUEST_TIMED_OUT", 3),
            (None, None, 4),
        ]

    run(scenario)


def test_an_answer_to_what_was_sent_before_the_watch_is_left_out() -> None:
    async def scenario(watches: PartitionWatches) -> None:
        partition, watch = watched(watches)
        watch.answered(Offset(7), Offset(8), None)
        assert (await read(watches, partition))[0] == []

    run(scenario)


def test_it_is_known_whose_request_times_out_next() -> None:
    async def scenario(watches: PartitionWatches) -> None:
        _, watch = watched(watches)
        watch.sent("p", ALL, Offset(0), Offset(1), 30_000)
        await asyncio.sleep(2)
        watch.sent("p", ALL, Offset(1), Offset(2), 5_000)
        watch.sent("q", ALL, Offset(2), Offset(3), 1_000)
        await asyncio.sleep(1)
        watch.answered(Offset(2), Offset(3), RequestTimedOut("too late"))
        assert watch.waiting() == [{"client": "p", "sends": 2, "waited_ms": 3000, "left_ms": 4000}]

    run(scenario)


def test_of_many_clients_the_last_ones_have_no_names() -> None:
    async def scenario(watches: PartitionWatches) -> None:
        partition, watch = watched(watches)
        for number in range(CLIENTS_MAX + 3):
            watch.sent(f"p{number}", 1, Offset(number), Offset(number + 1), None)
        told, _ = await read(watches, partition)
        names = [event["client"] for event in told if event["kind"] == "send"]
        assert names == [*(f"p{number}" for number in range(CLIENTS_MAX)), OTHER_CLIENTS]

    run(scenario)


def test_events_for_which_there_is_no_room_are_missed_and_that_is_said() -> None:
    async def scenario(watches: PartitionWatches) -> None:
        partition, watch = watched(watches)
        for offset in range(EVENTS_MAX + 1):
            watch.fetch(LEADER, asked(offset))
            await asyncio.sleep(0.051)
            watches.renew(partition)
        told, last, is_complete = watches.read(partition.partition, 0)
        assert (len(list(told)), is_complete) == (EVENTS_MAX, False)
        assert watches.read(partition.partition, last)[2]

    run(scenario)


def test_the_last_truncations_are_kept_without_a_watch() -> None:
    async def scenario(watches: PartitionWatches) -> None:
        first, other = partitions(2)
        removed = [LostRange(LeaderEpoch(1), Offset(3), Offset(7))]
        watches.truncated(other.replica_log, Offset(0), removed)
        for offset in range(TRUNCATIONS_KEPT):
            watches.truncated(first.replica_log, Offset(offset), removed)
        told, last = await read(watches, first)
        assert [event["offset"] for event in told] == list(range(TRUNCATIONS_KEPT))
        assert told[0]["removed"] == [(3, 6, 1)]
        assert (await read(watches, other))[0] == []  # It was the oldest.
        assert (await read(watches, first, last))[0] == []

    run(scenario)


def test_truncations_of_a_deleted_topic_are_not_those_of_another_of_its_name() -> None:
    async def scenario(watches: PartitionWatches) -> None:
        deleted, new = make_partition(), make_partition(topic_id=TopicId(UUID(int=2)))
        watches.renew(deleted)
        watches.truncated(deleted.replica_log, Offset(3), [])
        watches.renew(new)
        watches.truncated(new.replica_log, Offset(0), [])
        told, _ = await read(watches, new)
        assert [event["offset"] for event in told] == [0]

    run(scenario)


def test_partitions_that_are_watched_one_after_the_other_leave_nothing() -> None:
    async def scenario(watches: PartitionWatches) -> None:
        many = partitions(100)
        for partition in many:
            watches.renew(partition)
            await asyncio.sleep(0.6)
        assert sum(partition.watched_by is not None for partition in many) < WATCHES_MAX
        await asyncio.sleep(5)
        assert all(partition.watched_by is None for partition in many)
        for partition in many[:WATCHES_MAX]:
            watches.renew(partition)

    run(scenario)


def test_what_is_noted_are_events_of_the_lab() -> None:
    async def scenario(watches: PartitionWatches) -> None:
        partition, watch = watched(watches)
        watch.fetch(LEADER, asked(1))
        watch.fetch_answer(LEADER, asked(1), FetchedPartition(0, 0, high_watermark=1), 40)
        diverging = FetchedPartition(0, 0, high_watermark=1, diverging_epoch=EpochEnd(0, 1))
        watch.fetch_answer(LEADER, asked(2), diverging, 0)
        watch.fetch_answer(LEADER, asked(2), FetchedPartition(0, 6, high_watermark=-1), 0)
        watch.sent(None, ALL, Offset(0), Offset(1), None)
        watches.truncated(partition.replica_log, Offset(0), [])
        told, _ = await read(watches, partition)
        kinds = [event["kind"] for event in told]
        assert kinds == ["fetch", *["fetch-answer"] * 3, "send", "send-result", "truncation"]
        for event in told:
            known = {field.name for field in fields(KINDS[event["kind"]])}
            assert event.keys() - known <= {"kind", "serial", "ago_ms", "end"}
            assert (event["broker"], event["ago_ms"]) == (1, 100)
        errors = [event.get("error") for event in told if event["kind"] == "fetch-answer"]
        assert errors == [None, None, "not_leader_or_follower"]

    run(scenario)
