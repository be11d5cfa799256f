"""The disks of `make chaos-cluster` fail as real ones do. On Linux, for root."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.disks import Disk, why_unavailable

pytestmark = pytest.mark.skipif(why_unavailable() is not None, reason=why_unavailable() or "")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path / "device", tmp_path / "data")
    try:
        disk.make()
        yield disk
    finally:
        disk.remove()


def write(path: Path, *, sync: bool) -> None:
    with path.open("ab") as file:
        file.write(b"." * 100_000)
        file.flush()
        if sync:
            os.fsync(file.fileno())


def test_a_full_disk_takes_nothing_until_it_is_freed(disk: Disk, tmp_path: Path) -> None:
    disk.fill()
    with pytest.raises(OSError, match="No space") as refused:
        write(tmp_path / "data" / "log", sync=False)
    assert refused.value.errno == errno.ENOSPC
    disk.free()
    write(tmp_path / "data" / "log", sync=True)


def test_a_power_loss_leaves_what_was_synced(disk: Disk, tmp_path: Path) -> None:
    log, other = tmp_path / "data" / "log", tmp_path / "data" / "other"
    write(log, sync=True)
    write(log, sync=False)
    write(other, sync=False)
    disk.cut_power()
    disk.switch_on()
    assert log.stat().st_size == 100_000
    assert not other.exists()


def test_an_exhausted_device_takes_writes_and_fails_to_sync_them(
    disk: Disk, tmp_path: Path
) -> None:
    log = tmp_path / "data" / "log"
    write(log, sync=True)
    disk.exhaust()
    write(log, sync=False)
    with log.open("ab") as file, pytest.raises(OSError, match=r"No space|Input/output"):
        os.fsync(file.fileno())
    disk.cut_power()
    disk.switch_on()
    write(log, sync=True)


def test_the_files_stay_when_the_disk_is_removed(disk: Disk, tmp_path: Path) -> None:
    write(tmp_path / "data" / "log", sync=False)
    disk.remove()
    assert not os.path.ismount(tmp_path / "data")
    assert (tmp_path / "data" / "log").stat().st_size == 100_000
