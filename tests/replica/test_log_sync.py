"""Bringing a log to disk in a thread, whatever happens meanwhile to it or to whoever waits."""

import asyncio
import errno
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from suwi.log import sync_threads
from suwi.log.time_lookup import batch_at_time
from suwi.model.errors import KafkaStorageError
from suwi.model.ids import Offset
from suwi.replica.log_sync import sync_log
from tests.log.kit import Bench


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with ThreadPoolExecutor(1) as executor:
        monkeypatch.setattr(sync_threads, "_executor", executor)
        yield


class HeldThread:
    """The one thread that there is for jobs does nothing until it is let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        sync_threads.start_in_sync_thread(self.let_go.wait)


def pins(bench: Bench) -> int:
    return len(bench.files._pins)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_so():  # noqa: ASYNC110 - a thread tells nobody
            await asyncio.sleep(0.001)


def run(scenario: Callable[[Bench], Awaitable[None]]) -> None:
    async def main() -> None:
        bench = Bench()
        bench.append_many(3)
        await scenario(bench)

    asyncio.run(main())


def test_a_sync_whose_waiter_was_cancelled_pins_its_files_until_it_ends_and_counts() -> None:
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


def test_a_sync_that_fails_takes_the_directory_offline_even_if_nobody_waits_any_more() -> None:
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
def test_files_that_are_gone_are_no_fault_of_the_disk_where_the_log_has_changed(
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
def test_a_lost_write_is_a_fault_of_the_disk_whatever_became_of_the_log(
    change: Callable[[Bench], None],
) -> None:
    """The kernel reports it once; what was lost may be another log's name in the directory."""

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


def test_a_file_that_is_gone_from_a_log_as_it_was_is_a_fault() -> None:
    async def scenario(bench: Bench) -> None:
        bench.sim.faults.fail("sync", errno.ENOENT, path="*.log")
        with pytest.raises(KafkaStorageError):
            await sync_log(bench.log)
        assert bench.state.offline_because is not None

    run(scenario)


def test_a_log_that_may_not_be_read_any_more_takes_no_other_log_with_it() -> None:
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


def test_a_deleted_log_reads_nothing_not_even_from_its_successors_files() -> None:
    async def scenario(bench: Bench) -> None:
        old = bench.log
        delete(bench)
        bench.open()
        bench.append_many(5)
        uses: list[Callable[[], object]] = [
            partial(old.read, Offset(0), 100, Offset(3), whole_batch=True),
            partial(batch_at_time, old, 0),
            partial(old.aborted_between, Offset(0), Offset(3)),
            old.sync_job,
            old.finish,
        ]
        for use in uses:
            with pytest.raises(KafkaStorageError, match="deleted"):
                use()
        assert bench.state.offline_because is None

    run(scenario)
