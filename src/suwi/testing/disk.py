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
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from typing_extensions import Buffer

from suwi.env import Lock, SystemRandom
from suwi.env.local_disk import LocalDisk, LocalFile
from suwi.sim.incarnation import Incarnation

T = TypeVar("T")
P = ParamSpec("P")


def _while_running(
    method: Callable[Concatenate[Any, P], T],
) -> Callable[Concatenate[Any, P], T]:
    """The same method, which raises `Revoked` after the process of a disk or file was killed."""

    @wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self.drive.lock:
            self.check()
            return method(self, *args, **kwargs)

    return call


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

    def disk(self, incarnation: Incarnation) -> "DriveDisk":
        disk = DriveDisk(self, incarnation)
        incarnation.on_revoke(disk.close_all)
        return disk

    def lose_power(self, *, tear: bool = False) -> None:
        """All unsynced bytes are lost; files are not torn."""
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


class DriveFile(LocalFile):
    """An open file. Every call raises `Revoked` after its process was killed."""

    __slots__ = ("_disk", "_inode", "_is_open", "drive")

    def __init__(self, disk: "DriveDisk", path: str, fd: int) -> None:
        super().__init__(path, fd)
        self.drive = disk.drive
        self._disk = disk
        self._inode = os.fstat(fd).st_ino
        self._is_open = True

    def check(self) -> None:
        self._disk.check()
        if not self._is_open:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self.path)

    fileno = _while_running(LocalFile.fileno)
    size = _while_running(LocalFile.size)
    pread = _while_running(LocalFile.pread)
    is_cached = _while_running(LocalFile.is_cached)
    pread_cached = _while_running(LocalFile.pread_cached)

    def drop_cached(self, position: int, size_bytes: int) -> None:
        """The machine that runs the tests keeps its page cache."""

    @_while_running
    def pwrite(self, data: Buffer, position: int) -> int:
        with memoryview(data).cast("B") as whole:
            writable = whole[: self._writable_bytes(position, len(whole))]
            unsynced = self.drive.changing(self._inode, self)
            unsynced.save_before_change(self, position, position + len(writable))
            return super().pwrite(writable, position)

    @_while_running
    def truncate(self, size_bytes: int) -> None:
        size_before = self.size()
        if self.drive.is_full and size_bytes > size_before:
            raise _full(self.path)
        unsynced = self.drive.changing(self._inode, self)
        unsynced.save_before_change(self, size_bytes, size_before)
        super().truncate(size_bytes)

    @_while_running
    def sync(self) -> None:
        # No real fsync: a real power loss of the machine that runs the tests does not matter.
        self.drive.synced(self._inode)

    @_while_running
    def close(self) -> None:
        self._disk.files.pop(self, None)
        self.close_now()

    def close_now(self) -> None:
        self._is_open = False
        super().close()

    def _writable_bytes(self, position: int, size_bytes: int) -> int:
        """How many bytes can be written: if the disk is full, none beyond the end of the file."""
        if not self.drive.is_full:
            return size_bytes
        writable_bytes = min(size_bytes, self.size() - position)
        if writable_bytes <= 0 < size_bytes:
            raise _full(self.path)
        return writable_bytes


class _DriveLock:
    def __init__(self, disk: "DriveDisk", lock: Lock) -> None:
        self._disk = disk
        self._lock = lock

    def release(self) -> None:
        self._disk.check()
        self._disk.locks.remove(self._lock)
        self._lock.release()


class DriveDisk(LocalDisk):
    """One process's access to a drive. Implements `env.Disk`."""

    def __init__(self, drive: Drive, incarnation: Incarnation) -> None:
        self.drive = drive
        self.check = incarnation.check
        self.files: dict[DriveFile, None] = {}
        self.locks: list[Lock] = []

    def close_all(self) -> None:
        """The process was killed: close its files and free its locks, as the kernel does."""
        with self.drive.lock:
            for file in self.files:
                file.close_now()
            for lock in self.locks:
                lock.release()
            self.files.clear()
            self.locks.clear()

    @_while_running
    def open(self, path: str, *, create: bool = False) -> DriveFile:
        is_new = create and not os.path.exists(path)
        fd = super().open(path, create=create).fileno()
        file = DriveFile(self, path, fd)
        if is_new:
            self.drive.created(os.fstat(fd).st_ino)
        self.files[file] = None
        return file

    @_while_running
    def sync_dir(self, path: str) -> None:
        """Names are never lost."""

    @_while_running
    def free_bytes(self, path: str) -> int:
        return 0 if self.drive.is_full else super().free_bytes(path)

    @_while_running
    def lock(self, path: str) -> _DriveLock:  # type: ignore[override]
        lock = super().lock(path)
        self.locks.append(lock)
        return _DriveLock(self, lock)

    @_while_running
    def boot_id(self) -> str:
        return self.drive.boot_id

    exists = _while_running(LocalDisk.exists)
    is_dir = _while_running(LocalDisk.is_dir)
    list_dir = _while_running(LocalDisk.list_dir)
    size = _while_running(LocalDisk.size)
    modified_ms = _while_running(LocalDisk.modified_ms)
    set_modified_ms = _while_running(LocalDisk.set_modified_ms)
    make_dirs = _while_running(LocalDisk.make_dirs)
    is_open_to_others = _while_running(LocalDisk.is_open_to_others)
    rename = _while_running(LocalDisk.rename)
    remove = _while_running(LocalDisk.remove)
    remove_tree = _while_running(LocalDisk.remove_tree)
    read_bytes = _while_running(LocalDisk.read_bytes)
    write_atomically = _while_running(LocalDisk.write_atomically)
    total_bytes = _while_running(LocalDisk.total_bytes)


def _full(path: str) -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
