"""A real file system of a few megabytes that can be filled, for root on Linux."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_BALLAST = "ballast"
_STEP_BYTES = 4096


class SmallDisk:
    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self) -> None:
        """Not one more byte fits."""
        with (
            contextlib.suppress(OSError),
            open(self.path / _BALLAST, "ab", buffering=0) as ballast,
        ):
            while ballast.write(b"." * _STEP_BYTES):
                pass

    def free(self) -> None:
        (self.path / _BALLAST).unlink()


@contextmanager
def small_disk(path: Path, size_mb: int = 48) -> Iterator[SmallDisk]:
    """Skips the test where nothing can be mounted."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("only root may mount, and only on Linux")
    path.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "tmpfs", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a memory disk: {mounted.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)
