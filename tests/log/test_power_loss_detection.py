"""Whether a data directory may have lost what was not synced, as it looks when it is opened."""

from collections.abc import Callable

import pytest

from suwi.env import Env, SystemRandom
from suwi.log import names
from suwi.log.file_cache import FileCache
from suwi.log.log_directories import LogDirectories
from suwi.log.log_directory import LogDirectory
from suwi.model.ids import NodeId
from suwi.sim import ManualClock, SimDisk


def opened(disk: SimDisk, path: str = "/data") -> LogDirectory:
    env = Env(clock=ManualClock(), disk=disk, random=SystemRandom())
    directory = LogDirectory(env, path, FileCache(disk, 100))
    directory.open()
    return directory


def used(disk: SimDisk, path: str = "/data") -> LogDirectory:
    """A life that has begun and is trusted."""
    directory = opened(disk, path)
    directory.identify(NodeId(1), "cluster")
    directory.begin()
    directory.trust()
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
def test_after_a_power_loss_something_may_be_missing(tear: bool) -> None:
    disk = SimDisk()
    used(disk)
    assert opened(disk.power_loss(tear=tear)).lost_power


def test_after_a_clean_stop_a_power_loss_costs_nothing() -> None:
    disk = SimDisk()
    used(disk).close(clean=True)
    assert not opened(disk.power_loss()).lost_power


def test_a_doubt_outlives_a_crash_until_it_was_told() -> None:
    disk = SimDisk()
    used(disk)
    disk = disk.power_loss()
    opened(disk).begin()
    disk = disk.crash()
    again = opened(disk)
    assert again.lost_power
    again.begin()
    again.trust()
    assert not again.lost_power
    assert not opened(disk.crash()).lost_power


def test_where_the_machine_has_no_boot_id_every_crash_is_in_doubt() -> None:
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
def test_a_mark_that_cannot_be_read_says_nothing_good(
    damage: Callable[[SimDisk, str], None],
) -> None:
    disk = SimDisk()
    used(disk)
    disk = disk.crash()
    damage(disk, f"/data/{names.RUNNING}")
    assert opened(disk).lost_power


def test_a_full_disk_keeps_no_broker_from_starting() -> None:
    disk = SimDisk()
    used(disk)
    disk = disk.crash()
    disk.faults.fail("write", path=f"*{names.RUNNING}*")
    directory = opened(disk)
    directory.begin()
    assert not directory.lost_power


def test_a_directory_that_is_new_is_no_loss_beside_one_that_is_not() -> None:
    disk = SimDisk()
    used(disk, "/a")
    disk = disk.crash()
    assert not directories(disk, "/a", "/b").lost_power


def test_a_broker_with_nothing_but_new_directories_may_have_lost_all_it_had() -> None:
    made = directories(SimDisk(), "/a", "/b")
    assert made.lost_power
    made.trust()
    assert not made.lost_power
