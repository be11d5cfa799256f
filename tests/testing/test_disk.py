"""Real files that lose unsynced data, and a full disk."""

import errno
from pathlib import Path

import pytest

from suwi.sim.incarnation import Incarnation, Revoked
from suwi.testing.disk import Drive, DriveDisk


@pytest.fixture
def drive(tmp_path: Path) -> Drive:
    return Drive(str(tmp_path))


@pytest.fixture
def process() -> Incarnation:
    return Incarnation("broker-1")


@pytest.fixture
def disk(drive: Drive, process: Incarnation) -> DriveDisk:
    return drive.disk(process)


def test_a_power_loss_removes_unsynced_data(disk: DriveDisk, drive: Drive, tmp_path: Path) -> None:
    file = disk.open(str(tmp_path / "log"), create=True)
    file.pwrite(b"synced", 0)
    file.sync()
    file.pwrite(b" and not", 6)
    file.close()
    drive.lose_power()
    assert (tmp_path / "log").read_bytes() == b"synced"


def test_a_power_loss_restores_overwritten_and_truncated_data(
    disk: DriveDisk, drive: Drive, tmp_path: Path
) -> None:
    file = disk.open(str(tmp_path / "log"), create=True)
    file.pwrite(b"0123456789", 0)
    file.sync()
    file.pwrite(b"abc", 2)
    file.truncate(4)
    file.pwrite(b"xyz", 3)
    file.pwrite(b"beyond the end", 8)
    file.close()
    drive.lose_power()
    assert (tmp_path / "log").read_bytes() == b"0123456789"


def test_a_file_that_was_never_synced_is_empty_after_a_power_loss(
    disk: DriveDisk, drive: Drive, tmp_path: Path
) -> None:
    disk.write_atomically(str(tmp_path / "kept"), b"kept")
    disk.write_atomically(str(tmp_path / "lost"), b"lost", sync=False)
    drive.lose_power()
    assert (tmp_path / "kept").read_bytes() == b"kept"
    assert (tmp_path / "lost").read_bytes() == b""


def test_a_renamed_file_keeps_its_unsynced_state(
    disk: DriveDisk, drive: Drive, tmp_path: Path
) -> None:
    file = disk.open(str(tmp_path / "old"), create=True)
    file.pwrite(b"synced", 0)
    file.sync()
    file.pwrite(b" not", 6)
    disk.rename(str(tmp_path / "old"), str(tmp_path / "new"))
    drive.lose_power()
    assert (tmp_path / "new").read_bytes() == b"synced"


def test_a_preexisting_file_keeps_its_content(
    disk: DriveDisk, drive: Drive, tmp_path: Path
) -> None:
    (tmp_path / "log").write_bytes(b"from before")
    disk.open(str(tmp_path / "log")).pwrite(b"!", 11)
    drive.lose_power()
    assert (tmp_path / "log").read_bytes() == b"from before"


def test_each_power_loss_changes_the_boot_id(disk: DriveDisk, drive: Drive) -> None:
    before = disk.boot_id()
    drive.lose_power()
    assert disk.boot_id() != before


def test_no_file_grows_on_a_full_disk(disk: DriveDisk, drive: Drive, tmp_path: Path) -> None:
    file = disk.open(str(tmp_path / "log"), create=True)
    file.pwrite(b"0123", 0)
    drive.is_full = True
    assert disk.free_bytes(str(tmp_path)) == 0
    assert file.pwrite(b"abcd", 2) == 2  # as much as there is space for
    with pytest.raises(OSError, match="No space") as raised:
        file.pwrite(b"abcd", 4)
    assert raised.value.errno == errno.ENOSPC
    drive.is_full = False
    assert file.pwrite(b"abcd", 4) == 4
    assert file.pread(100, 0) == b"01ababcd"


def test_a_killed_process_cannot_use_the_disk(
    disk: DriveDisk, drive: Drive, process: Incarnation, tmp_path: Path
) -> None:
    file = disk.open(str(tmp_path / "log"), create=True)
    file.pwrite(b"written", 0)
    disk.lock(str(tmp_path / ".lock"))
    process.revoke()
    with pytest.raises(Revoked):
        file.pwrite(b"!", 0)
    with pytest.raises(Revoked):
        file.close()
    with pytest.raises(Revoked):
        disk.remove(str(tmp_path / "log"))
    with pytest.raises(Revoked):
        disk.write_atomically(str(tmp_path / "log"), b"")
    next_disk = drive.disk(Incarnation("broker-1", 2))
    assert next_disk.read_bytes(str(tmp_path / "log")) == b"written"
    next_disk.lock(str(tmp_path / ".lock")).release()
