"""A failed sync, a new process without a reboot, and then a power loss.

The kernel shows the new process everything that was written, and considers it clean although it is
not on the disk: a successful sync proves nothing, unless the data was written again.
"""

import errno
from uuid import UUID

import pytest

from suwi.env import Env, SystemRandom
from suwi.log import names
from suwi.log.file_cache import FileCache
from suwi.log.log_directory import LogDirectory
from suwi.log.partition_log import PartitionLog
from suwi.log.sliced_work import run_steps
from suwi.model.ids import LeaderEpoch, PartitionIndex, TopicId, TopicPartition
from suwi.model.topic_config import TopicConfig
from suwi.records.batch import read_header
from suwi.sim import ManualClock, SimDisk
from suwi.sim.random import SimRandom
from tests.log.directory_kit import write_recovery_points
from tests.log.kit import NOW_MS, batch_of, values_in

ORDERS = TopicPartition("orders", PartitionIndex(0))
TOPIC_ID = TopicId(UUID(int=1))
FIRST_SEGMENT, LAST_SEGMENT = (f"/data/orders-0/{offset:020d}.log" for offset in (0, 56))


def _begun(disk: SimDisk) -> LogDirectory:
    env = Env(clock=ManualClock(), disk=disk, random=SystemRandom())
    directory = LogDirectory(env, "/data", FileCache(disk, 100))
    directory.open()
    directory.begin()
    directory.clear_power_loss()
    return directory


def _log(directory: LogDirectory) -> PartitionLog:
    config = TopicConfig(segment_bytes=1000)
    return run_steps(directory.opening(ORDERS, TOPIC_ID, config, None))


def _append(log: PartitionLog, first: int, end: int) -> None:
    for number in range(first, end):
        batch = batch_of(value=b"%d" % number)
        log.append_as_leader(memoryview(batch), read_header(batch), LeaderEpoch(0), NOW_MS)


def _sync(log: PartitionLog) -> None:
    while (job := log.durability.sync_job()) is not None:
        try:
            job.run()
        except OSError as error:
            log.durability.sync_failed(job, error)
            return
        log.durability.synced(job)


def _after_a_failed_sync(disk: SimDisk) -> list[bytes]:
    """Some records are synced, the sync of others fails; then the process is killed."""
    directory = _begun(disk)
    log = _log(directory)
    _append(log, 0, 20)
    _sync(log)
    assert write_recovery_points(directory)
    _append(log, 20, 60)
    written = values_in(log)
    disk.faults.fail("sync", errno.EIO)
    _sync(log)
    assert directory.state.offline_because is not None
    disk.faults.clear()
    return written


@pytest.mark.parametrize("seed", range(20))
def test_a_successful_sync_after_a_failed_one_is_durable(seed: int) -> None:
    disk = SimDisk(random=SimRandom(seed))
    written = _after_a_failed_sync(disk)
    disk = disk.crash()
    log = _log(_begun(disk))
    assert values_in(log) == written, "the page cache has everything"
    _append(log, 60, 65)
    written = values_in(log)
    _sync(log)
    assert log.recovery_point == 65
    log = _log(_begun(disk.power_loss(tear=False)))
    assert values_in(log) == written


def test_a_directory_is_suspect_after_a_failed_sync_until_it_is_cleared() -> None:
    disk = SimDisk()
    _after_a_failed_sync(disk)
    disk = disk.crash()
    env = Env(clock=ManualClock(), disk=disk, random=SystemRandom())
    directory = LogDirectory(env, "/data", FileCache(disk, 100))
    directory.open()
    assert directory.lost_power, "pages that the kernel evicted since are lost"
    directory.begin()
    directory.clear_power_loss()
    disk = disk.crash()
    directory = LogDirectory(Env(ManualClock(), disk, SystemRandom()), "/data", FileCache(disk, 9))
    directory.open()
    assert not directory.lost_power


def test_a_failed_sync_is_recorded_on_a_full_disk() -> None:
    disk = SimDisk()
    directory = _begun(disk)
    log = _log(directory)
    _append(log, 0, 20)
    disk.drive.volume.capacity_bytes = 1
    disk.faults.fail("sync", errno.ENOSPC)
    _sync(log)
    disk.faults.clear()
    disk = disk.crash()
    assert disk.peek(f"/data/{names.RUNNING}").startswith(b"unsynced")


def test_the_directory_stays_suspect_if_rewriting_fails_too() -> None:
    disk = SimDisk()
    _after_a_failed_sync(disk)
    disk = disk.crash()
    disk.faults.fail("sync", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        _begun(disk)
    disk = disk.crash()
    assert disk.peek(f"/data/{names.RUNNING}").startswith(b"unsynced")


def test_synced_data_is_not_rewritten() -> None:
    clock = ManualClock()
    disk = SimDisk(clock=clock)
    _after_a_failed_sync(disk)
    disk = disk.crash()
    before_ms = disk.modified_ms(FIRST_SEGMENT)
    clock.advance(10)
    _begun(disk)
    assert disk.modified_ms(FIRST_SEGMENT) == before_ms
    assert disk.modified_ms(LAST_SEGMENT) == before_ms + 10


def test_another_brokers_directory_is_not_marked() -> None:
    """It could not be locked, so the failure says nothing about its contents."""
    disk = SimDisk()
    _begun(disk)
    disk.faults.fail("lock", errno.ENOLCK)
    env = Env(clock=ManualClock(), disk=disk, random=SystemRandom())
    stranger = LogDirectory(env, "/data", FileCache(disk, 100))
    with pytest.raises(OSError, match="locks"):
        stranger.open()
    stranger.state.take_offline(OSError(errno.ENOLCK, "no locks"))
    assert not disk.peek(f"/data/{names.RUNNING}").startswith(b"unsynced")
