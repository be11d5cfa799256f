"""Real files on a disk that can become full and that loses unsynced data in a power loss.

A `Drive` survives its broker's processes; `disk` gives each process its access (`env.Disk`), which
ends with the process. For every file it keeps what is needed to undo unsynced writes: the size at
the last sync, and the bytes below it that were overwritten since. File names are not lost, because
the file systems of brokers journal them.
Invariant: after `lose_power` each file has its content of the last sync.
"""

import errno
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import Buffer

from suwi.env import Lock, SystemRandom
from suwi.env.local_disk import LocalDisk, LocalFile
from suwi.testing.process import Process


@dataclass(slots=True)
class _Unsynced:
    """What is needed to restore the content of the last sync."""

    size_bytes: int
    overwritten: list[tuple[int, bytes]] = field(default_factory=list)

    def save_before_change(self, file: LocalFile, start: int, end: int) -> None:
        end = min(end, self.size_bytes)
        if start < end:
            self.overwritten.append((start, file.pread(end - start, start)))

    def undo(self, path: str) -> None:
        disk = LocalDisk()
        file = disk.open(path)
        try:
            for position, before in reversed(self.overwritten):
                file.pwrite(before, position)
            file.truncate(self.size_bytes)
        finally:
            file.close()


class Drive:
    """The disk of one broker's machine."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.is_full = False
        self.boot_id = str(SystemRandom().uuid())
        self.lock = threading.RLock()
        """Threads use the disk too, and must stop when their process is killed."""
        self._unsynced: dict[int, _Unsynced] = {}
        """By inode, which renames do not change."""

    def disk(self, process: Process) -> "DriveDisk":
        return DriveDisk(self, process)

    def lose_power(self) -> None:
        with self.lock:
            for directory, _, names in os.walk(self.path):
                for name in names:
                    path = os.path.join(directory, name)
                    unsynced = self._unsynced.pop(os.stat(path).st_ino, None)
                    if unsynced is not None:
                        unsynced.undo(path)
            self._unsynced.clear()
            self.boot_id = str(SystemRandom().uuid())

    def created(self, inode: int) -> None:
        self._unsynced[inode] = _Unsynced(0)

    def changing(self, inode: int, file: LocalFile) -> _Unsynced:
        unsynced = self._unsynced.get(inode)
        if unsynced is None:
            unsynced = self._unsynced[inode] = _Unsynced(file.size())
        return unsynced

    def synced(self, inode: int) -> None:
        self._unsynced.pop(inode, None)


class DriveFile:
    """An open file. Every call raises `Revoked` after its process was killed."""

    __slots__ = ("_disk", "_drive", "_file", "_inode", "_is_open")

    def __init__(self, disk: "DriveDisk", file: LocalFile) -> None:
        self._disk = disk
        self._drive = disk.drive
        self._file = file
        self._inode = os.fstat(file.fileno()).st_ino
        self._is_open = True

    @property
    def path(self) -> str:
        return self._file.path

    def fileno(self) -> int:
        self._check()
        return self._file.fileno()

    def size(self) -> int:
        with self._drive.lock:
            self._check()
            return self._file.size()

    def pread(self, size_bytes: int, position: int) -> bytes:
        with self._drive.lock:
            self._check()
            return self._file.pread(size_bytes, position)

    def pwrite(self, data: Buffer, position: int) -> int:
        with self._drive.lock, memoryview(data).cast("B") as whole:
            self._check()
            writable = whole[: self._writable_bytes(position, len(whole))]
            self._drive.changing(self._inode, self._file).save_before_change(
                self._file, position, position + len(writable)
            )
            return self._file.pwrite(writable, position)

    def is_cached(self, position: int, size_bytes: int) -> bool:
        with self._drive.lock:
            self._check()
            return self._file.is_cached(position, size_bytes)

    def pread_cached(self, size_bytes: int, position: int) -> bytes | bytearray | None:
        with self._drive.lock:
            self._check()
            return self._file.pread_cached(size_bytes, position)

    def drop_cached(self, position: int, size_bytes: int) -> None:
        """The machine that runs the tests keeps its page cache."""

    def truncate(self, size_bytes: int) -> None:
        with self._drive.lock:
            self._check()
            size_before = self._file.size()
            if self._drive.is_full and size_bytes > size_before:
                raise _full(self.path)
            self._drive.changing(self._inode, self._file).save_before_change(
                self._file, size_bytes, size_before
            )
            self._file.truncate(size_bytes)

    def sync(self) -> None:
        # No real fsync: a real power loss of the machine that runs the tests does not matter.
        with self._drive.lock:
            self._check()
            self._drive.synced(self._inode)

    def close(self) -> None:
        with self._drive.lock:
            self._check()
            self._disk.files.pop(self, None)
            self.close_now()

    def close_now(self) -> None:
        self._is_open = False
        self._file.close()

    def _check(self) -> None:
        self._disk.check()
        if not self._is_open:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self.path)

    def _writable_bytes(self, position: int, size_bytes: int) -> int:
        """How many bytes can be written: if the disk is full, none beyond the end of the file."""
        if not self._drive.is_full:
            return size_bytes
        writable_bytes = min(size_bytes, self._file.size() - position)
        if writable_bytes <= 0 < size_bytes:
            raise _full(self.path)
        return writable_bytes


class _DriveLock:
    def __init__(self, disk: "DriveDisk", lock: Lock) -> None:
        self._disk = disk
        self._lock = lock

    def release(self) -> None:
        self._disk.check()
        self._disk.locks.remove(self)
        self.close_now()

    def close_now(self) -> None:
        self._lock.release()


class DriveDisk(LocalDisk):
    """One process's access to a drive. Implements `env.Disk`."""

    def __init__(self, drive: Drive, process: Process) -> None:
        self.drive = drive
        self.check = process.check
        self.files: dict[DriveFile, None] = {}
        self.locks: list[_DriveLock] = []

    def revoke(self) -> None:
        """The process was killed: close its files and free its locks, as the kernel does."""
        with self.drive.lock:
            for file in self.files:
                file.close_now()
            for lock in self.locks:
                lock.close_now()
            self.files.clear()
            self.locks.clear()

    def open(self, path: str, *, create: bool = False) -> DriveFile:  # type: ignore[override]
        with self.drive.lock:
            self.check()
            is_new = create and not os.path.exists(path)
            local = super().open(path, create=create)
            file = DriveFile(self, local)
            if is_new:
                self.drive.created(os.fstat(local.fileno()).st_ino)
            self.files[file] = None
            return file

    def write_atomically(self, path: str, data: bytes, *, sync: bool = True) -> None:
        with self.drive.lock:
            super().write_atomically(path, data, sync=sync)

    def sync_dir(self, path: str) -> None:
        self.check()

    def free_bytes(self, path: str) -> int:
        return 0 if self.drive.is_full else self._call(super().free_bytes, path)

    def lock(self, path: str) -> _DriveLock:  # type: ignore[override]
        self.check()
        lock = _DriveLock(self, super().lock(path))
        self.locks.append(lock)
        return lock

    def boot_id(self) -> str:
        self.check()
        return self.drive.boot_id

    # The other methods are those of `LocalDisk`, while the process is running.

    def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        with self.drive.lock:
            self.check()
            return function(*args)

    def exists(self, path: str) -> bool:
        return bool(self._call(super().exists, path))

    def is_dir(self, path: str) -> bool:
        return bool(self._call(super().is_dir, path))

    def list_dir(self, path: str) -> list[str]:
        return list(self._call(super().list_dir, path))

    def size(self, path: str) -> int:
        return int(self._call(super().size, path))

    def modified_ms(self, path: str) -> int:
        return int(self._call(super().modified_ms, path))

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        self._call(super().set_modified_ms, path, modified_ms)

    def make_dirs(self, path: str) -> None:
        self._call(super().make_dirs, path)

    def is_open_to_others(self, path: str) -> bool:
        return bool(self._call(super().is_open_to_others, path))

    def rename(self, old: str, new: str) -> None:
        self._call(super().rename, old, new)

    def remove(self, path: str) -> None:
        self._call(super().remove, path)

    def remove_tree(self, path: str) -> None:
        self._call(super().remove_tree, path)

    def read_bytes(self, path: str) -> bytes:
        return bytes(self._call(super().read_bytes, path))

    def total_bytes(self, path: str) -> int:
        return int(self._call(super().total_bytes, path))


def _full(path: str) -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
