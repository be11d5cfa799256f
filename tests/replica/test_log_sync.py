"""Syncing a log in a thread, while the log changes or the caller is cancelled."""

import asyncio
import errno
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from suwi.metadata.image import PartitionState
from suwi.model.errors import KafkaStorageError
from suwi.model.ids import LeaderEpoch, Offset
from suwi.model.topic_config import TopicConfig
from suwi.records.batch import read_header
from suwi.records.builder import build_batch
from suwi.records.record import Record
from suwi.replica import log_threads
from suwi.replica.log_sync import sync_log
from suwi.sim import SimDisk
from tests.log.kit import Bench
from tests.replica.alone import ONE, make_partition, partition_and_directory


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with ThreadPoolExecutor(1) as executor:
        monkeypatch.setattr(log_threads, "_executor", executor)
        yield


class HeldThread:
    """Blocks the only thread for jobs until it is released."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        log_threads.start_in_sync_thread(self.let_go.wait)


def pins(bench: Bench) -> int:
    return len(bench.files._pins)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_so():  # noqa: ASYNC110 - a thread sets no event
            await asyncio.sleep(0.001)


def run(scenario: Callable[[Bench], Awaitable[None]]) -> None:
    async def main() -> None:
        bench = Bench()
        bench.append_many(3)
        await scenario(bench)

    asyncio.run(main())


def test_a_sync_whose_caller_was_cancelled_keeps_its_files_pinned_and_is_recorded() -> None:
    async def scenario(bench: Bench) -> None:
        thread = HeldThread()
        syncing = asyncio.ensure_future(sync_log(bench.log))
        await asyncio.sleep(0)
        syncing.cancel()
        await asyncio.gather(syncing, return_exceptions=True)
        assert syncing.cancelled()
        assert pins(bench) == 1, "a thread is about to use the file"
        thread.let_go.set()
        await until(lambda: pins(bench) == 0)
        assert bench.log.recovery_point == 3

    run(scenario)


def test_a_failed_sync_takes_the_directory_offline_even_if_its_caller_was_cancelled() -> None:
    async def scenario(bench: Bench) -> None:
        thread = HeldThread()
        bench.sim.faults.fail("sync", errno.EIO)
        syncing = asyncio.ensure_future(sync_log(bench.log))
        await asyncio.sleep(0)
        syncing.cancel()
        thread.let_go.set()
        await until(lambda: pins(bench) == 0)
        assert bench.state.offline_because is not None

    run(scenario)


def delete(bench: Bench) -> None:
    bench.log.close()
    bench.files.forget_dir(bench.dir)
    bench.sim.rename(bench.dir, f"{bench.dir}.deleted")


def truncate(bench: Bench) -> None:
    bench.truncate_to(Offset(1))


@pytest.mark.parametrize("change", [delete, truncate])
@pytest.mark.parametrize("error", [errno.ENOENT, errno.EBADF])
def test_missing_files_are_no_disk_failure_if_the_log_was_truncated_or_deleted(
    change: Callable[[Bench], None], error: int
) -> None:
    async def scenario(bench: Bench) -> None:
        thread = HeldThread()
        syncing = asyncio.ensure_future(sync_log(bench.log))
        await asyncio.sleep(0)
        change(bench)
        bench.sim.faults.fail("sync", error)
        thread.let_go.set()
        with pytest.raises(KafkaStorageError):
            await syncing
        assert bench.state.offline_because is None
        assert pins(bench) == 0

    run(scenario)


@pytest.mark.parametrize("change", [delete, truncate, lambda _: None])
def test_a_lost_write_is_a_disk_failure_even_if_the_log_was_truncated_or_deleted(
    change: Callable[[Bench], None],
) -> None:
    """The kernel reports it once; the lost write may be another log's directory entry."""

    async def scenario(bench: Bench) -> None:
        thread = HeldThread()
        syncing = asyncio.ensure_future(sync_log(bench.log))
        await asyncio.sleep(0)
        change(bench)
        bench.sim.faults.fail("sync", errno.EIO)
        thread.let_go.set()
        with pytest.raises(KafkaStorageError):
            await syncing
        assert bench.state.offline_because is not None

    run(scenario)


def test_a_missing_file_of_an_unchanged_log_is_a_disk_failure() -> None:
    async def scenario(bench: Bench) -> None:
        bench.sim.faults.fail("sync", errno.ENOENT, path="*.log")
        with pytest.raises(KafkaStorageError):
            await sync_log(bench.log)
        assert bench.state.offline_because is not None

    run(scenario)


def test_a_log_without_read_permission_does_not_affect_other_logs() -> None:
    async def scenario(bench: Bench) -> None:
        bench.files.forget_dir(bench.dir)
        fault = bench.sim.faults.fail("open", errno.EACCES, path="*.log", times=None)
        for _ in range(2):
            with pytest.raises(KafkaStorageError, match="Permission denied"):
                bench.log.read(Offset(0), 100, Offset(3), whole_batch=True)
            with pytest.raises(KafkaStorageError, match="Permission denied"):
                bench.append()
            with pytest.raises(KafkaStorageError, match="Permission denied"):
                await sync_log(bench.log)
        assert bench.state.offline_because is None
        bench.sim.faults.remove(fault)
        assert bench.append().base_offset == 3
        assert await sync_log(bench.log)

    run(scenario)


def test_a_deleted_log_does_not_read_from_its_successors_files() -> None:
    async def scenario(bench: Bench) -> None:
        old = bench.log
        delete(bench)
        bench.open()
        bench.append_many(5)
        uses: list[Callable[[], object]] = [
            partial(old.read, Offset(0), 100, Offset(3), whole_batch=True),
            partial(old.batch_at_time, 0),
            partial(old.aborted_between, Offset(0), Offset(3)),
            old.durability.sync_job,
            old.finish,
        ]
        for use in uses:
            with pytest.raises(KafkaStorageError, match="deleted"):
                use()
        assert bench.state.offline_because is None

    run(scenario)


def test_the_only_replica_commits_nothing_unsynced_when_a_new_epoch_begins() -> None:
    """Found by the simulation: with flush.messages=1 a cancelled reassignment gave the only replica
    a new leader epoch, which committed what no sync had reached yet."""

    async def scenario() -> None:
        partition = make_partition()
        partition.configure(TopicConfig(flush_messages=1))
        partition.make_leader(PartitionState(ONE, LeaderEpoch(0), 0, (ONE,), (ONE,)), 1)
        thread = HeldThread()
        batch = build_batch([Record(value=b"a", timestamp=0)])
        partition.append(memoryview(batch), read_header(memoryview(batch)), 0)
        partition.make_leader(PartitionState(ONE, LeaderEpoch(1), 1, (ONE,), (ONE,)), 1)
        assert partition.high_watermark == 0
        thread.let_go.set()
        await until(lambda: partition.high_watermark == 1)

    asyncio.run(scenario())


def test_a_sync_that_lacks_descriptors_is_repeated_and_the_directory_stays_online() -> None:
    async def scenario(bench: Bench) -> None:
        bench.sim.faults.fail("open", errno.EMFILE, path="*/leader-epoch-checkpoint")
        with pytest.raises(KafkaStorageError):
            await sync_log(bench.log)
        assert bench.state.offline_because is None
        assert bench.log.recovery_point == 0
        assert await sync_log(bench.log)
        assert bench.log.recovery_point == 3

    run(scenario)


def test_a_leader_repeats_a_sync_that_has_failed_without_another_append() -> None:
    async def scenario() -> None:
        disk = SimDisk()
        partition, _ = partition_and_directory(disk=disk)
        partition.configure(TopicConfig(flush_messages=1))
        partition.make_leader(PartitionState(ONE, LeaderEpoch(0), 0, (ONE,), (ONE,)), 1)
        disk.faults.fail("sync", errno.EMFILE, times=1)
        batch = build_batch([Record(value=b"a", timestamp=0)])
        partition.append(memoryview(batch), read_header(memoryview(batch)), 0)
        await until(lambda: partition.high_watermark == 1)

    asyncio.run(scenario())
