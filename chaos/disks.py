"""Disks that fail: each is a file system on a loop device, whose file is in a small memory disk.

Nothing is simulated: a full disk refuses writes, a sync fails because the device cannot store the
pages, and a power loss leaves what had been synced. For Linux and root (`why_unavailable`).
"""

import contextlib
import errno
import fcntl
import os
import shutil
import struct
import subprocess
import time
from pathlib import Path

_SIZE_MB = 2_048
_DEVICE_SIZE_MB = _SIZE_MB + 256
_SHUTDOWN = 0x8004587D
"""EXT4_IOC_SHUTDOWN: from now on the file system writes nothing."""
_WITHOUT_FLUSH = struct.pack("I", 2)
_BALLAST = "ballast"
_BUSY_S = 20.0


def why_unavailable() -> str | None:
    if not os.path.exists("/dev/loop-control"):
        return "no loop devices"
    if os.geteuid() != 0:
        return "only root may mount"
    missing = [name for name in ("mkfs.ext4", "e2fsck", "mount") if shutil.which(name) is None]
    return f"no {missing[0]}" if missing else None


class Disk:
    def __init__(self, device: Path, mount: Path) -> None:
        """`device`: where the memory disk is, `mount`: where the file system is."""
        self._device = device
        self._mount = mount

    def make(self) -> None:
        for path in (self._device, self._mount):
            path.mkdir(parents=True)
        _run("mount", "-t", "tmpfs", "-o", f"size={_DEVICE_SIZE_MB}m", "tmpfs", self._device)
        with self._image.open("wb") as image:
            image.truncate(_SIZE_MB << 20)
        _run("mkfs.ext4", "-q", "-m", "0", self._image)
        self._mount_again()

    def remove(self) -> None:
        """The files stay, on the disk beneath."""
        if os.path.ismount(self._mount):
            kept = self._mount.with_name("kept")
            # A run that was broken off may have left a file system that cannot be read.
            with contextlib.suppress(OSError, shutil.Error):
                shutil.copytree(self._mount, kept)
            _run("umount", "-l", self._mount)
            if kept.exists():
                self._mount.rmdir()
                kept.rename(self._mount)
        if os.path.ismount(self._device):
            _run("umount", "-l", self._device)

    # -- faults ----------------------------------------------------------------------------------

    def fill(self) -> None:
        """No file can grow."""
        _fill(self._mount)

    def free(self) -> None:
        (self._mount / _BALLAST).unlink(missing_ok=True)

    def exhaust(self) -> None:
        """Writes succeed, and syncs fail: the device cannot store more, as one that is thinly
        provisioned. The pages that could not be written are lost."""
        _run("fstrim", self._mount)  # Else there is room where files were removed.
        _fill(self._device)

    def cut_power(self) -> None:
        """What was not synced is lost. Who uses the disk gets errors and has to end."""
        directory = os.open(self._mount, os.O_RDONLY)
        try:
            fcntl.ioctl(directory, _SHUTDOWN, _WITHOUT_FLUSH)
        finally:
            os.close(directory)

    def switch_on(self) -> None:
        """After `exhaust` or `cut_power`: as a machine that boots. Nobody uses the disk."""
        (self._device / _BALLAST).unlink(missing_ok=True)
        self._unmount()
        # 1: errors were corrected.
        _run("e2fsck", "-f", "-y", self._image, accepted=(0, 1))
        self._mount_again()

    # --------------------------------------------------------------------------------------------

    @property
    def _image(self) -> Path:
        return self._device / "image"

    def _unmount(self) -> None:
        """A process that was killed may have to finish its last calls."""
        until_s = time.monotonic() + _BUSY_S
        while True:
            try:
                return _run("umount", self._mount)
            except OSError:
                if time.monotonic() > until_s:
                    raise
                time.sleep(0.05)

    def _mount_again(self) -> None:
        _run("mount", "-o", "loop", self._image, self._mount)


def _fill(directory: Path) -> None:
    with (directory / _BALLAST).open("wb") as file:
        size, step = 0, _DEVICE_SIZE_MB << 20
        while step >= 1 << 12:
            try:
                os.posix_fallocate(file.fileno(), size, step)
                size += step
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                step //= 2


def _run(*command: str | Path, accepted: tuple[int, ...] = (0,)) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in accepted:
        raise OSError(f"{' '.join(map(str, command))}: {done.stdout}{done.stderr}")
