"""Full disks, failing disks and short writes: nothing acknowledged is lost or incomplete."""

import errno
import os
from collections.abc import Callable

import pytest

from suwi.log import names
from suwi.log.sliced_work import run_steps
from suwi.model.errors import KafkaStorageError
from suwi.model.ids import LeaderEpoch, Offset
from suwi.model.topic_config import TopicConfig
from suwi.records.record import MarkerType
from suwi.sim import Revoked, SimDisk
from suwi.sim.faults import Operation
from tests.log.kit import NOW_MS, Bench, apply_retention, batch_of, values_in

SMALL = TopicConfig(segment_bytes=1024, index_interval_bytes=0)


def _fill(bench: Bench) -> int:
    """Append until the disk is full. Returns how many appends were acknowledged."""
    for acked in range(10_000):
        try:
            bench.append(batch_of(producer=(7, 0, acked)))
        except KafkaStorageError:
            return acked
    raise AssertionError("the disk never filled up")


@pytest.mark.parametrize("capacity", range(2_000, 5_000, 37))
def test_a_full_disk_refuses_appends_and_loses_nothing(capacity: int) -> None:
    bench = Bench(disk=SimDisk(capacity_bytes=capacity), config=SMALL)
    acked = _fill(bench)
    for _ in range(3):
        with pytest.raises(KafkaStorageError):
            bench.append(batch_of(producer=(7, 0, acked), value=b"x" * 500))
    assert bench.log.end_offset == acked
    assert [h.base_offset for h in bench.headers()] == list(range(acked))
    assert bench.state.offline_because is None

    bench.sim.free()
    assert bench.append(batch_of(producer=(7, 0, acked - 1))).is_duplicate
    for i in range(acked, acked + 50):
        assert bench.append(batch_of(producer=(7, 0, i))).base_offset == i
    for open_again in (bench.crash, bench.reopen):
        open_again()
        assert [h.base_offset for h in bench.headers()] == list(range(acked + 50))
        assert bench.append(batch_of(producer=(7, 0, acked + 49))).is_duplicate


@pytest.mark.parametrize("capacity", range(2_000, 5_000, 111))
def test_a_broker_killed_on_a_full_disk_recovers_everything_it_acknowledged(
    capacity: int,
) -> None:
    bench = Bench(disk=SimDisk(capacity_bytes=capacity), config=SMALL)
    acked = _fill(bench)
    bench.sim.free()
    bench.crash()
    assert [h.base_offset for h in bench.headers()] == list(range(acked))


@pytest.mark.parametrize("capacity", range(2_000, 5_000, 111))
def test_a_log_that_is_recovered_on_a_full_disk_can_be_read_and_is_complete_later(
    capacity: int,
) -> None:
    """Earlier it could not be opened: neither its indexes nor its epochs could be written."""
    bench = Bench(disk=SimDisk(capacity_bytes=capacity), config=SMALL)
    acked = _fill(bench)
    for suffix in (names.OFFSET_INDEX, names.TIME_INDEX, names.LEADER_EPOCHS, names.SNAPSHOT):
        bench.sim.faults.fail("write", errno.ENOSPC, path=f"*{suffix}*", times=None)
    bench.crash()
    assert [h.base_offset for h in bench.headers()] == list(range(acked))
    bench.sim.faults.clear()
    bench.sim.free()
    assert bench.append(batch_of(producer=(7, 0, acked))).base_offset == acked
    job = bench.log.durability.sync_job()
    assert job is not None
    job.run()
    bench.log.durability.synced(job)
    assert all(len(segment.offset_index) for segment in bench.log.segments()[:-1])
    for open_again in (bench.crash, bench.reopen):
        open_again()
        assert [h.base_offset for h in bench.headers()] == list(range(acked + 1))


def _roll_fails(bench: Bench, operation: Operation, path: str) -> None:
    bench.append_many(14)
    assert len(bench.log.segments()) == 1
    bench.sim.faults.fail(operation, errno.ENOSPC, path=path)
    with pytest.raises(KafkaStorageError):
        bench.append()
    assert bench.sim.faults._faults[0].hits == 1


@pytest.mark.parametrize(
    ("operation", "path"),
    [
        ("write", "*0.index"),
        ("write", "*0.timeindex"),
        ("open", "*14.log"),
        ("open", "*14.index"),
        ("open", "*14.timeindex"),
    ],
)
def test_a_roll_that_fails_changes_nothing(operation: Operation, path: str) -> None:
    bench = Bench(config=SMALL)
    _roll_fails(bench, operation, path)
    assert len(bench.headers()) == 14
    assert not [n for n in bench.names() if n.startswith("00000000000000000014.")]
    bench.append_many(20)
    for open_again in (bench.crash, bench.reopen):
        open_again()
        assert [h.base_offset for h in bench.headers()] == list(range(34))


def test_a_snapshot_that_cannot_be_written_fails_nothing_else() -> None:
    bench = Bench(config=SMALL)
    bench.sim.faults.fail("write", errno.ENOSPC, path="*.snapshot*", times=None)
    for i in range(30):
        bench.append(batch_of(producer=(7, 0, i)))
    bench.crash()
    assert bench.append(batch_of(producer=(7, 0, 29))).is_duplicate


def test_an_index_that_cannot_be_written_does_not_fail_a_batch_that_is_in_the_log() -> None:
    """Earlier it returned an error, stayed in the file, and its position was written twice."""
    bench = Bench(config=TopicConfig(index_interval_bytes=0))
    bench.sim.faults.fail("write", errno.ENOSPC, path="*.index", times=None)
    bench.append_many(1_200)
    assert bench.log.end_offset == 1_200
    assert [h.base_offset for h in bench.headers()] == list(range(1_200))
    with pytest.raises(KafkaStorageError):
        bench.log.finish()
    bench.sim.faults.clear()
    bench.reopen()
    assert [h.base_offset for h in bench.headers()] == list(range(1_200))
    assert len(bench.log.active.offset_index) >= 1_198


def test_an_abort_on_a_full_disk_keeps_offsets_unique_and_the_transaction_aborted() -> None:
    """Earlier the marker was in the log, and its offset was assigned again."""
    bench = Bench()
    bench.append(batch_of(producer=(7, 0, 0), transactional=True))
    bench.sim.faults.fail("open", errno.ENOSPC, path="*.txnindex")
    bench.append_marker(7, 0, MarkerType.ABORT)
    bench.append()
    assert [h.base_offset for h in bench.headers()] == [0, 1, 2]
    assert len(bench.log.aborted_between(Offset(0), Offset(3))) == 1
    bench.reopen()
    assert len(bench.log.aborted_between(Offset(0), Offset(3))) == 1


def test_an_abort_that_could_not_be_indexed_is_indexed_before_the_next_sync() -> None:
    """Earlier the sync looked for a file that was not there, and took the directory offline
    (seed 117 with copiers)."""
    bench = Bench()
    bench.append(batch_of(producer=(7, 0, 0), transactional=True))
    bench.sim.faults.fail("open", errno.EMFILE, path="*.txnindex", times=2)
    bench.append_marker(7, 0, MarkerType.ABORT)
    with pytest.raises(KafkaStorageError):
        bench.log.durability.sync_job()
    assert bench.log.state.offline_because is None
    job = bench.log.durability.sync_job()
    assert job is not None
    assert len(bench.disk.read_bytes(f"{bench.dir}/{0:020d}.txnindex")) == 34


def test_epochs_that_could_not_be_written_are_written_before_the_next_append() -> None:
    bench = Bench()
    bench.append_many(3)
    bench.sim.faults.fail("write", errno.ENOSPC, path="*leader-epoch*", times=2)
    with pytest.raises(KafkaStorageError):
        bench.log.assign_epoch(LeaderEpoch(1), Offset(3))
    bench.epoch = 1
    with pytest.raises(KafkaStorageError):
        bench.append()
    bench.append_many(2)
    bench.reopen()
    assert bench.log.epochs.entries() == [(0, 0), (1, 3)]
    assert bench.disk.read_bytes(f"{bench.dir}/{names.LEADER_EPOCHS}") == b"0\n2\n0 0\n1 3\n"


def test_retention_frees_space_on_a_full_disk() -> None:
    """Earlier it wrote the leader epochs first, which failed on a full disk."""
    config = TopicConfig(segment_bytes=1024, retention_bytes=2_000)
    bench = Bench(disk=SimDisk(capacity_bytes=20_000), config=config)
    acked = _fill(bench)
    bench.epoch = 1
    for path in apply_retention(bench.log, bench.log.end_offset, NOW_MS):
        bench.disk.remove(path)
    assert bench.log.start_offset > 0
    assert bench.append(batch_of(producer=(7, 0, acked))).base_offset == acked
    bench.reopen()
    assert bench.log.epochs.epoch_at(Offset(acked)) == 1


# -- failing disks --------------------------------------------------------------------------------


def _assert_offline(bench: Bench) -> None:
    assert bench.state.offline_because is not None
    bench.sim.faults.clear()
    for use in (
        bench.append,
        lambda: bench.log.read(Offset(0), 1, Offset(1), whole_batch=True),
        bench.log.finish,
        lambda: bench.log.remove_oldest(1),
        lambda: bench.truncate_to(Offset(0)),
    ):
        with pytest.raises(KafkaStorageError):
            use()


def test_a_write_error_takes_the_directory_offline_and_loses_nothing() -> None:
    bench = Bench()
    bench.append_many(5)
    bench.sim.faults.fail("write", errno.EIO, path="*.log")
    with pytest.raises(KafkaStorageError):
        bench.append()
    _assert_offline(bench)
    bench.crash()
    assert len(bench.headers()) == 5


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_a_failed_sync_takes_the_directory_offline_whatever_the_reason(error: int) -> None:
    """The kernel may have dropped what it could not write: a second sync would succeed wrongly."""
    bench = Bench()
    bench.append_many(5)
    bench.sim.faults.fail("sync", error, path="*.log")
    job = bench.log.durability.sync_job()
    assert job is not None
    with pytest.raises(OSError, match=os.strerror(error)) as failed:
        job.run()
    bench.log.durability.sync_failed(job, failed.value)
    assert bench.log.recovery_point == 0
    _assert_offline(bench)


def test_a_torn_write_that_cannot_be_undone_takes_the_directory_offline() -> None:
    bench = Bench()
    bench.append_many(5)
    bench.sim.faults.shorten(path="*.log")
    bench.sim.faults.fail("write", errno.ENOSPC, path="*.log", skip=1)
    bench.sim.faults.fail("truncate", errno.EIO, path="*.log")
    with pytest.raises(KafkaStorageError):
        bench.append()
    _assert_offline(bench)
    bench.crash()
    assert len(bench.headers()) == 5


def test_a_read_error_takes_the_directory_offline() -> None:
    bench = Bench(config=SMALL)
    bench.append_many(40)
    bench.reopen()
    bench.sim.faults.fail("read", errno.EIO, path="*.log")
    with pytest.raises(KafkaStorageError):
        bench.log.read(Offset(3), 100, Offset(40), whole_batch=True)
    _assert_offline(bench)


def test_a_truncation_is_complete_although_its_files_cannot_be_removed_yet() -> None:
    """They were renamed, and are removed when the log is opened the next time."""
    bench = Bench(config=SMALL)
    bench.append_many(40)
    bench.sim.faults.fail("remove", errno.EACCES, path="*.log*")
    bench.truncate_to(Offset(10))
    assert (bench.log.end_offset, bench.state.offline_because) == (10, None)
    bench.reopen()
    assert len(bench.headers()) == 10
    assert not [name for name in bench.names() if name.endswith(names.DELETED)]


@pytest.mark.parametrize("operation", ["rename", "open"])
def test_a_log_that_could_not_be_restarted_still_has_a_segment(operation: Operation) -> None:
    """Found by the simulation (seed 32): what looks at all logs, such as flushing, failed."""
    bench = Bench(config=SMALL)
    bench.append_many(40)
    bench.sim.faults.fail(operation, errno.EACCES, path="*.log*")
    with pytest.raises(KafkaStorageError):
        run_steps(bench.log.restarting_at(Offset(100)))
    assert bench.log.active.base_offset == bench.log.segments()[-1].base_offset
    assert bench.log.first_base_offset == bench.log.segments()[0].base_offset
    _assert_offline(bench)


@pytest.mark.parametrize("operation", ["rename", "truncate"])
def test_a_truncation_that_fails_takes_the_directory_offline(operation: Operation) -> None:
    bench = Bench(config=SMALL)
    bench.append_many(40)
    before = values_in(bench.log)
    bench.sim.faults.fail(operation, errno.ENOSPC, path="*.log*")
    with pytest.raises(KafkaStorageError):
        bench.truncate_to(Offset(10))
    _assert_offline(bench)
    bench.crash()
    after = values_in(bench.log)
    assert after == before[: len(after)]
    assert len(after) >= 10


def test_the_callback_is_called_once_when_a_directory_goes_offline() -> None:
    called: list[Exception] = []
    bench = Bench()
    bench.log.state._on_offline = called.append
    bench.append()
    bench.sim.faults.fail("write", errno.EIO, times=None)
    for _ in range(3):
        with pytest.raises(KafkaStorageError):
            bench.append()
    assert len(called) == 1


def test_short_writes_change_nothing() -> None:
    bench = Bench(config=SMALL)
    bench.sim.faults.shorten(times=None, chance=0.7)
    for i in range(100):
        bench.append(batch_of(producer=(7, 0, i), value=b"x" * i))
    for open_again in (bench.crash, bench.reopen):
        open_again()
        assert [h.base_offset for h in bench.headers()] == list(range(100))


# -- processes killed in the middle of any call ---------------------------------------------------


def _write_steadily(bench: Bench, acked: list[int]) -> None:
    for i in range(40):
        bench.epoch = i // 15
        bench.append(batch_of(producer=(7, 0, i), value=b"x" * (i % 5)))
        acked.append(i)
        if i % 12 == 11:
            bench.sync()
    apply_retention(bench.log, Offset(30), NOW_MS)
    bench.log.finish()


def _crash_at_every_step(work: Callable[[Bench, list[int]], None]) -> int:
    """Kill the process in the middle of its first, second, third … change to the disk."""
    calls = 0
    while True:
        bench = Bench(config=TopicConfig(segment_bytes=1024, retention_bytes=1024))
        acked: list[int] = []
        assert bench.log.end_offset == 0
        bench.sim.faults.crash_after(calls)
        try:
            work(bench, acked)
        except Revoked:
            pass
        else:
            return calls
        bench.sim.faults.clear()
        bench.disk = bench.sim.crash()
        bench.open(clean=False)
        found = [h.base_offset for h in bench.headers()]
        assert found == list(range(bench.log.start_offset, bench.log.end_offset))
        assert bench.log.end_offset in (len(acked), len(acked) + 1)
        assert all(bench.log.epochs.epoch_at(Offset(offset)) == offset // 15 for offset in found)
        if acked:
            assert bench.append(batch_of(producer=(7, 0, acked[-1]), value=b"")).is_duplicate
        calls += 1


def test_a_process_may_be_killed_in_the_middle_of_any_call() -> None:
    assert _crash_at_every_step(_write_steadily) > 90
