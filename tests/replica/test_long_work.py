"""Long work on a partition's log does not block the event loop that all partitions share."""

import asyncio
import errno
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from suwi.env import LocalDisk
from suwi.env.tasks import Tasks
from suwi.log import partition_log, producer_snapshot
from suwi.log.log_durability import SyncJob
from suwi.log.sliced_work import TURN, Steps, run_steps
from suwi.metadata.image import PartitionState
from suwi.model.errors import KafkaStorageError, NotLeaderOrFollower
from suwi.model.ids import LeaderEpoch, Offset
from suwi.model.topic_config import TopicConfig
from suwi.records.batch import place
from suwi.records.builder import build_batch
from suwi.records.record import Record
from suwi.replica import log_preparation
from suwi.replica.partition import Partition
from suwi.sim import SimDisk
from tests.log.directory_kit import write_high_watermarks, write_recovery_points
from tests.replica.alone import (
    ONE,
    ORDERS,
    TWO,
    make_partition,
    partition_and_directory,
    partitions,
)
from tests.replica.test_losses import following

BATCHES = 400


class Clock:
    """Counts the event loop's iterations, and in which of them work was done."""

    def __init__(self) -> None:
        self.turn = 0
        self.done_in: list[int] = []

    def note(self) -> None:
        self.done_in.append(self.turn)

    def most_in_a_turn(self) -> int:
        return max(self.done_in.count(turn) for turn in set(self.done_in))


@asynccontextmanager
async def counting() -> AsyncIterator[Clock]:
    clock = Clock()

    async def count() -> None:
        while True:
            clock.turn += 1
            await asyncio.sleep(0)

    counter = asyncio.create_task(count())
    await asyncio.sleep(0)
    yield clock
    counter.cancel()


def watch(
    monkeypatch: pytest.MonkeyPatch, module: object, name: str, note: Callable[[], None]
) -> None:
    real = getattr(module, name)

    def noting(*arguments: object, **options: object) -> object:
        note()
        return real(*arguments, **options)

    monkeypatch.setattr(module, name, noting)


def copy_many(partition: Partition, count: int = BATCHES) -> None:
    """As many batches of an idempotent producer, with one record each."""
    for number in range(count):
        batch = build_batch(
            [Record(value=b"x" * 50, timestamp=1)],
            producer_id=7,
            producer_epoch=0,
            base_sequence=number,
        )
        place(memoryview(batch), Offset(number), LeaderEpoch(0))
        partition.follower.append_fetched(memoryview(batch), LeaderEpoch(0), Offset(0), Offset(0))


# -- truncation -----------------------------------------------------------------------------------


def test_a_truncation_replays_producers_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_snapshot, "BATCHES_AT_ONCE", 10)

    async def scenario() -> None:
        partition = make_partition()
        partition.make_follower(following(1))
        copy_many(partition)
        async with counting() as clock:
            watch(monkeypatch, producer_snapshot, "header_row", clock.note)
            partition.follower.truncate_to_divergence(LeaderEpoch(0), Offset(BATCHES - 1))
            await partition.replica_log.wait_for_preparation()
        assert len(clock.done_in) >= BATCHES // 10
        assert clock.most_in_a_turn() <= log_preparation._SHORT_SLICES_A_TURN
        producer = partition.log.producers.all()[0]
        assert [batch.last_offset for batch in producer.batches] == [394, 395, 396, 397, 398]

    asyncio.run(scenario())


def test_a_replica_neither_reads_nor_writes_while_it_truncates() -> None:
    async def scenario() -> None:
        partition = make_partition()
        partition.make_follower(following(1))
        copy_many(partition, 20)
        partition.follower.truncate_to_divergence(LeaderEpoch(0), Offset(10))
        assert partition.replica_log.is_preparing
        with pytest.raises(NotLeaderOrFollower):
            partition.read(Offset(0), 1000, committed_only=False, whole_batch=True)
        with pytest.raises(NotLeaderOrFollower):
            copy_many(partition, 1)
        assert partition.watermark_as_it_is <= partition.log_as_it_is.end_offset == 10
        await partition.replica_log.wait_for_preparation()
        assert partition.log.end_offset == 10

    asyncio.run(scenario())


def test_a_replica_elected_while_it_truncates_starts_its_epoch_after_the_truncation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producer_snapshot, "BATCHES_AT_ONCE", 10)

    async def scenario() -> None:
        partition = make_partition()
        partition.make_follower(following(1))
        copy_many(partition)
        partition.follower.truncate_to_divergence(LeaderEpoch(0), Offset(300))
        partition.make_leader(
            PartitionState(ONE, LeaderEpoch(2), 2, (TWO, ONE), (ONE,)), broker_epoch=5
        )
        with pytest.raises(NotLeaderOrFollower):
            assert partition.high_watermark
        await partition.replica_log.wait_for_preparation()
        assert partition.log.epochs.latest == 2
        assert partition.leader_state is not None
        assert partition.leader_state.epoch_start == 300

    asyncio.run(scenario())


def test_a_replica_closed_while_it_truncates_stops_truncating() -> None:
    async def scenario() -> None:
        partition = make_partition()
        partition.make_follower(following(1))
        copy_many(partition, 20)
        partition.follower.truncate_to_divergence(LeaderEpoch(0), Offset(10))
        partition.close()
        await partition.replica_log.wait_for_preparation()
        before = partition.log_as_it_is.dir
        # The producer state does not match the log: it must not be written.
        partition.log_as_it_is.finish()
        disk = partition.log_as_it_is.files.disk
        assert not [name for name in disk.list_dir(before) if name.endswith(".snapshot")]

    asyncio.run(scenario())


def test_a_truncation_of_many_segments_leaves_a_log_without_holes_at_every_step() -> None:
    disk = SimDisk()

    async def scenario() -> Partition:
        partition, _ = partition_and_directory(disk=disk)
        partition.configure(TopicConfig(segment_bytes=100))
        partition.make_follower(following(1))
        copy_many(partition, 60)
        return partition

    partition = asyncio.run(scenario())
    log = partition.log_as_it_is
    ends = [int(log.end_offset)]
    for _ in log.truncating(Offset(3)):
        ends.append(int(log.end_offset))
        found = sorted(n for n in disk.list_dir(log.dir) if n.endswith(".log"))
        assert [int(name[:20]) for name in found] == list(range(len(found)))
        assert log.end_offset <= len(found)
    assert ends == sorted(ends, reverse=True)
    steps = [before - after for before, after in pairwise(ends)]
    assert max(steps) <= partition_log.SEGMENTS_AT_ONCE + 1
    assert log.end_offset == 3


class _NoSyncOnTheLoop(LocalDisk):
    """Records which blocking disk calls are made in the event loop's thread."""

    def __init__(self) -> None:
        self.loop_thread = threading.current_thread()
        self.synced = 0
        self.on_loop: list[str] = []

    def sync_dir(self, path: str) -> None:
        self._note(path)
        super().sync_dir(path)

    def write_atomically(self, path: str, data: bytes, *, sync: bool = True) -> None:
        if sync:
            self._note(path)
        super().write_atomically(path, data, sync=sync)

    def _note(self, path: str) -> None:
        self.synced += 1
        if threading.current_thread() is self.loop_thread:
            self.on_loop.append(path)


def test_a_truncation_syncs_in_a_thread(tmp_path: Path) -> None:
    disk = _NoSyncOnTheLoop()

    async def scenario() -> None:
        partition, directory = partition_and_directory(disk=disk, path=str(tmp_path / "data"))
        partition.make_follower(following(1))
        copy_many(partition, 20)
        partition.follower.append_fetched(memoryview(b""), LeaderEpoch(1), Offset(20), Offset(0))
        assert await partition.syncer.sync_once(partition.log)
        write_recovery_points(directory)
        write_high_watermarks(directory, [(ORDERS, partition.high_watermark)])
        disk.synced, disk.on_loop = 0, []
        partition.follower.truncate_to_divergence(LeaderEpoch(0), Offset(10))
        await partition.replica_log.wait_for_preparation()
        partition.follower.truncate_fully_and_start_at(Offset(30))
        await partition.replica_log.wait_for_preparation()
        assert (disk.synced > 4, disk.on_loop) == (True, [])
        assert partition.log.durability.truncation_is_safe

    asyncio.run(scenario())


def test_a_truncation_whose_sync_fails_unexpectedly_leaves_no_file_pinned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seed 100090 of the simulation."""

    def fails(_: SyncJob) -> None:
        raise RuntimeError("unexpected")

    async def scenario() -> None:
        failures: list[str] = []
        monkeypatch.setattr(Tasks, "count", lambda _, name, error: failures.append(name))
        partition = make_partition()
        partition.make_follower(following(1))
        copy_many(partition, 20)
        monkeypatch.setattr(SyncJob, "run", fails)
        partition.follower.truncate_to_divergence(LeaderEpoch(0), Offset(10))
        with pytest.raises(KafkaStorageError):
            await partition.replica_log.wait_for_preparation()
        assert failures == ["log preparation"]
        assert not partition.log_as_it_is.files._pins

    asyncio.run(scenario())


# -- opening --------------------------------------------------------------------------------------


def test_of_many_new_leaders_a_few_start_their_epoch_in_each_loop_iteration() -> None:
    async def scenario() -> None:
        many = partitions(100)
        state = PartitionState(ONE, LeaderEpoch(1), 1, (ONE, TWO), (ONE,))
        async with counting() as clock:
            for partition in many:
                partition.make_leader(state, broker_epoch=5)
            at_once = sum(partition.is_open for partition in many)
            assert at_once <= log_preparation._SLICES_AT_ONCE_A_TURN
            began = clock.turn
            await asyncio.gather(
                *(partition.replica_log.wait_for_preparation() for partition in many)
            )
            assert (
                clock.turn - began >= (len(many) - at_once) // log_preparation._SHORT_SLICES_A_TURN
            )
        assert all(partition.log.epochs.latest == 1 for partition in many)

    asyncio.run(scenario())


def test_a_replica_whose_log_is_open_starts_its_epoch_at_once() -> None:
    async def scenario() -> None:
        partition = make_partition()
        partition.make_follower(following(0))
        copy_many(partition, 3)
        partition.make_leader(
            PartitionState(ONE, LeaderEpoch(1), 1, (ONE, TWO), (ONE,)), broker_epoch=5
        )
        assert not partition.replica_log.is_preparing
        assert partition.log.epochs.latest == 1

    asyncio.run(scenario())


def test_a_log_of_many_segments_is_opened_over_several_loop_iterations() -> None:
    disk = SimDisk()

    async def written() -> None:
        partition, directory = partition_and_directory(disk=disk)
        partition.configure(TopicConfig(segment_bytes=100))
        partition.make_follower(following(1))
        copy_many(partition, 200)
        partition.log.finish()
        directory.close(clean=True)

    async def opened() -> None:
        partition, _ = partition_and_directory(disk=disk)
        partition.make_follower(following(1))
        slices = sum(1 for _ in partition.replica_log.opening())
        assert slices >= 200 // partition_log.SEGMENTS_AT_ONCE
        assert partition.replica_log.prepare()
        assert partition.log.end_offset == 200

    asyncio.run(written())
    asyncio.run(opened())


def test_a_replica_that_cannot_be_opened_raises_the_reason_and_tries_again() -> None:
    disk = SimDisk()

    async def scenario() -> None:
        partition, _ = partition_and_directory(disk=disk)
        partition.make_follower(following(1))
        disk.faults.fail("open", errno.EMFILE, path="*.log")
        with pytest.raises(KafkaStorageError, match="Too many open files"):
            partition.replica_log.prepare()
        assert partition.replica_log.prepare()
        assert partition.log.end_offset == 0

    asyncio.run(scenario())


# -- retention ------------------------------------------------------------------------------------


def test_retention_of_many_segments_yields_the_event_loop() -> None:
    async def scenario() -> None:
        partition = make_partition()
        partition.configure(TopicConfig(segment_bytes=100, retention_ms=1_000))
        partition.make_follower(following(1))
        copy_many(partition, 100)
        partition.follower.append_fetched(memoryview(b""), LeaderEpoch(1), Offset(100), Offset(0))
        deleted: list[str] = []
        seen = [0]
        seen += [
            sum(path.endswith(".log.deleted") for path in deleted)
            for _ in partition.replica_log.retaining(10_000_000, deleted)
        ]
        steps = [after - before for before, after in pairwise(seen)]
        assert max(steps) == partition_log.SEGMENTS_AT_ONCE
        assert partition.log.start_offset == 100

    asyncio.run(scenario())


def test_retention_stops_if_the_log_was_truncated_meanwhile() -> None:
    async def scenario() -> None:
        partition = make_partition()
        partition.configure(TopicConfig(segment_bytes=100, retention_ms=1_000))
        partition.make_follower(following(1))
        copy_many(partition, 100)
        partition.follower.append_fetched(memoryview(b""), LeaderEpoch(1), Offset(100), Offset(0))
        steps = partition.replica_log.retaining(10_000_000, [])
        next(steps)
        start = partition.log.start_offset
        partition.follower.truncate_to_divergence(LeaderEpoch(0), Offset(50))
        await partition.replica_log.wait_for_preparation()
        run_steps(steps)
        assert (partition.log.start_offset, partition.log.end_offset) == (start, 50)

    asyncio.run(scenario())


def test_of_many_logs_the_first_are_opened_before_the_last_are_begun() -> None:
    """Else none of thousands would be in service before almost all are."""

    async def scenario() -> None:
        turns, begun, done = log_preparation.Turns(), [], []

        def opening(number: int) -> Steps[None]:
            begun.append(number)
            yield TURN
            yield TURN
            done.append(number)

        def work(number: int) -> Coroutine[None, None, bool]:
            return log_preparation.run_in_turns(opening(number), TURN, turns, lambda: True)

        running = asyncio.gather(*map(work, range(100)))
        while not done:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert done[0] == 0
        assert len(begun) <= log_preparation._SHORT_SLICES_A_TURN
        await running
        assert done == sorted(done)

    asyncio.run(scenario())


def test_long_work_on_one_log_lets_the_others_take_their_turns() -> None:
    async def scenario() -> None:
        turns, done = log_preparation.Turns(), []

        def steps(name: str, count: int) -> Steps[None]:
            for _ in range(count):
                yield TURN
            done.append(name)

        works = [("long", 1000), ("short", 2), ("also short", 2)]
        await asyncio.gather(
            *(
                log_preparation.run_in_turns(steps(*work), TURN, turns, lambda: True)
                for work in works
            )
        )
        assert done == ["short", "also short", "long"]

    asyncio.run(scenario())
