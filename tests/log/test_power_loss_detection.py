"""Whether a data directory may have lost unsynced data, determined when it is opened."""

from collections.abc import Callable

import pytest

from suwi.env import Env, SystemRandom
from suwi.env.problems import ProblemKind
from suwi.log import names
from suwi.log.file_cache import FileCache
from suwi.log.log_directories import LogDirectories
from suwi.log.log_directory import LogDirectory
from suwi.model.ids import NodeId
from suwi.sim import ManualClock, SimDisk
from tests.log.directory_kit import append, log_of


def opened(disk: SimDisk, path: str = "/data") -> LogDirectory:
    env = Env(clock=ManualClock(), disk=disk, random=SystemRandom())
    directory = LogDirectory(env, path, FileCache(disk, 100))
    directory.open()
    return directory


def used(disk: SimDisk, path: str = "/data") -> LogDirectory:
    """A directory in use that is not suspect."""
    directory = opened(disk, path)
    directory.identify(NodeId(1), "cluster")
    directory.begin()
    directory.clear_power_loss()
    return directory


def directories(disk: SimDisk, *paths: str) -> LogDirectories:
    env = Env(clock=ManualClock(), disk=disk, random=SystemRandom())
    made = LogDirectories(env, paths, FileCache(disk, 100))
    made.open()
    return made


def test_a_process_that_crashed_has_lost_nothing() -> None:
    disk = SimDisk()
    used(disk)
    assert not opened(disk.crash()).lost_power


@pytest.mark.parametrize("tear", [False, True])
def test_after_a_power_loss_the_directory_is_suspect(tear: bool) -> None:
    disk = SimDisk()
    used(disk)
    assert opened(disk.power_loss(tear=tear)).lost_power


def test_a_suspect_directory_is_told_in_the_log_and_no_other_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = SimDisk()
    used(disk)
    disk = disk.crash()
    opened(disk)
    assert caplog.records == []
    disk = disk.crash()
    disk.remove(f"/data/{names.RUNNING}")
    opened(disk)
    (told,) = caplog.records
    assert told.getMessage() == "records may be missing"
    assert names.RUNNING in told.__dict__["reason"]


def test_a_first_checkpoint_that_a_power_loss_left_empty_has_lost_nothing() -> None:
    disk = SimDisk()
    used(disk)
    lost = disk.power_loss()
    starts = f"/data/{names.LOG_START_OFFSETS}"
    lost.open(starts, create=True).truncate(0)
    assert list(opened(lost).state.problems) == []


def test_a_checkpoint_that_is_empty_without_a_power_loss_is_lost() -> None:
    disk = SimDisk()
    used(disk)
    crashed = disk.crash()
    crashed.open(f"/data/{names.LOG_START_OFFSETS}").truncate(0)
    (problem,) = opened(crashed).state.problems
    assert problem.kind is ProblemKind.START_OFFSETS_LOST


def test_after_a_clean_shutdown_a_power_loss_loses_nothing() -> None:
    disk = SimDisk()
    used(disk).close(clean=True)
    assert not opened(disk.power_loss()).lost_power


def test_a_suspect_directory_stays_suspect_after_a_crash_until_it_is_cleared() -> None:
    disk = SimDisk()
    used(disk)
    disk = disk.power_loss()
    opened(disk).begin()
    disk = disk.crash()
    again = opened(disk)
    assert again.lost_power
    again.begin()
    again.clear_power_loss()
    assert not again.lost_power
    assert not opened(disk.crash()).lost_power


def test_without_a_boot_id_the_directory_is_suspect_after_every_crash() -> None:
    disk = SimDisk()
    disk.drive.boot_id = ""
    used(disk)
    assert opened(disk.crash()).lost_power


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda disk, path: disk.remove(path), id="missing"),
        pytest.param(lambda disk, path: disk.write_atomically(path, b""), id="empty"),
        pytest.param(lambda disk, path: disk.write_atomically(path, b"\xff\x00"), id="garbage"),
    ],
)
def test_an_unreadable_running_mark_makes_the_directory_suspect(
    damage: Callable[[SimDisk, str], None],
) -> None:
    disk = SimDisk()
    used(disk)
    disk = disk.crash()
    damage(disk, f"/data/{names.RUNNING}")
    assert opened(disk).lost_power


def test_a_broker_can_start_on_a_full_disk() -> None:
    disk = SimDisk()
    used(disk)
    disk = disk.crash()
    disk.faults.fail("write", path=f"*{names.RUNNING}*")
    directory = opened(disk)
    directory.begin()
    assert not directory.lost_power


def test_a_new_directory_beside_a_used_one_is_not_suspect() -> None:
    disk = SimDisk()
    used(disk, "/a")
    disk = disk.crash()
    assert not directories(disk, "/a", "/b").lost_power


def test_a_broker_with_only_new_directories_is_suspect() -> None:
    made = directories(SimDisk(), "/a", "/b")
    assert made.lost_power
    made.clear_power_loss()
    assert not made.lost_power


def test_a_kill_does_not_make_a_recovery_forget_that_it_removed_damaged_records() -> None:
    """The log shows no trace of them, and without them no replica may be taken for complete."""
    disk = SimDisk()
    directory = used(disk)
    append(log_of(directory), 3)
    path = log_of(directory).active.log_path
    disk = disk.crash()
    size_bytes = disk.size(path)
    disk.overwrite(path, b"?", size_bytes - 1)
    recovering = opened(disk)
    assert log_of(recovering).end_offset == 2
    assert recovering.may_lack_records
    for _ in range(2):
        disk = disk.crash()
        again = opened(disk)
        assert again.may_lack_records
        assert not again.lost_power, "all others are there"
        assert log_of(again).end_offset == 2
        again.begin()
    again.clear_power_loss()
    assert not opened(disk.crash()).may_lack_records
