"""The local disk, where it differs from Python's own helpers."""

import os
from pathlib import Path

import pytest

from suwi.env import LocalDisk


def test_an_inaccessible_file_is_not_a_missing_one(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    os.symlink(loop, loop)  # `stat` fails with ELOOP, also for root.
    disk = LocalDisk()
    with pytest.raises(OSError, match="symbolic links"):
        disk.exists(str(loop / "00000000000000000000.log"))
    with pytest.raises(OSError, match="symbolic links"):
        disk.is_dir(str(loop))


def test_a_missing_file_and_one_below_a_file_do_not_exist(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    disk = LocalDisk()
    for path in (tmp_path / "missing", tmp_path / "file" / "below"):
        assert not disk.exists(str(path))
        assert not disk.is_dir(str(path))
    assert disk.exists(str(tmp_path / "file"))
    assert not disk.is_dir(str(tmp_path / "file"))
    assert disk.is_dir(str(tmp_path))
