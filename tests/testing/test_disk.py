"""Real files that lose unsynced data, and a full disk."""

import errno
import os
from collections.abc import Callable
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


# -- files that have another link, in a snapshot or another cluster --------------------------------


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """The other link of the file `log`."""
    (tmp_path / "drive").mkdir()
    (tmp_path / "drive" / "log").write_bytes(b"0123456789")
    os.link(tmp_path / "drive" / "log", tmp_path / "shared")
    os.utime(tmp_path / "shared", (1_000_000, 1_000_000))
    return tmp_path / "shared"


@pytest.fixture
def drive_beside(tmp_path: Path) -> Drive:
    return Drive(str(tmp_path / "drive"))


CHANGES: dict[str, tuple[Callable[[DriveDisk, str], object], bytes]] = {
    "overwrite": (lambda disk, path: disk.open(path).pwrite(b"ab", 3), b"012ab56789"),
    "append": (lambda disk, path: disk.open(path).pwrite(b"ab", 10), b"0123456789ab"),
    "truncate": (lambda disk, path: disk.open(path).truncate(4), b"0123"),
    "extend": (lambda disk, path: disk.open(path).truncate(12), b"0123456789\0\0"),
    "empty": (lambda disk, path: disk.open(path, create=True).truncate(0), b""),
    "replace": (lambda disk, path: disk.write_atomically(path, b"new"), b"new"),
    "set the time": (lambda disk, path: disk.set_modified_ms(path, 5), b"0123456789"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_leaves_the_other_link_as_it_is(
    drive_beside: Drive, process: Incarnation, shared: Path, change: str
) -> None:
    path = f"{drive_beside.path}/log"
    make, expected = CHANGES[change]
    disk = drive_beside.disk(process)
    make(disk, path)
    assert disk.read_bytes(path) == expected
    assert shared.read_bytes() == b"0123456789"
    assert shared.stat().st_mtime == 1_000_000
    assert shared.stat().st_nlink == 1
    assert disk.list_dir(drive_beside.path) == ["log"]


def test_all_who_have_the_file_open_see_the_change(
    drive_beside: Drive, process: Incarnation, shared: Path
) -> None:
    disk = drive_beside.disk(process)
    reader, writer = (disk.open(f"{drive_beside.path}/log") for _ in range(2))
    descriptor = reader.fileno()
    writer.truncate(4)
    writer.pwrite(b"ab", 4)
    assert reader.fileno() == descriptor
    assert reader.pread(20, 0) == b"0123ab"


def test_reading_a_shared_file_does_not_copy_it(
    drive_beside: Drive, process: Incarnation, shared: Path
) -> None:
    disk = drive_beside.disk(process)
    assert disk.open(f"{drive_beside.path}/log").pread(3, 0) == b"012"
    assert shared.stat().st_nlink == 2


def test_a_power_loss_restores_a_shared_file_for_one_side_only(
    drive_beside: Drive, process: Incarnation, tmp_path: Path
) -> None:
    """The file was linked between a write and its sync."""
    disk = drive_beside.disk(process)
    (tmp_path / "drive").mkdir()
    file = disk.open(f"{drive_beside.path}/log", create=True)
    file.pwrite(b"synced", 0)
    file.sync()
    file.pwrite(b" and not", 6)
    os.link(file.path, tmp_path / "shared")
    drive_beside.lose_power()
    assert (tmp_path / "drive" / "log").read_bytes() == b"synced"
    assert (tmp_path / "shared").read_bytes() == b"synced and not"


def test_a_copy_keeps_what_a_power_loss_would_undo(
    drive_beside: Drive, process: Incarnation, shared: Path
) -> None:
    disk = drive_beside.disk(process)
    file = disk.open(f"{drive_beside.path}/log")
    file.pwrite(b"ab", 0)
    file.truncate(4)
    drive_beside.lose_power()
    assert disk.read_bytes(f"{drive_beside.path}/log") == b"0123456789"
