"""Real files on a disk that can become full and that loses unsynced data in a power loss.

A `Drive` survives its broker's processes; `disk` gives each process its access (`env.Disk`), which
ends with the process. For every file it keeps what is needed to undo unsynced writes: the size at
the last sync, and the bytes below it that were overwritten since. File names are not lost, because
the file systems of brokers journal them.
A file may have a second link in a snapshot or another cluster (`snapshot.py`). Everything that
changes a file in place does so here, and breaks the link first (`Drive.break_link`).
Invariants: after `lose_power` each file has its content of the last sync; a file with several links
is never changed.
"""

import errno
import os
import threading
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from typing_extensions import Buffer

from suwi.env import Lock, SystemRandom
from suwi.env.local_disk import LocalDisk, LocalFile
from suwi.log.file_cache import write_all
from suwi.sim.incarnation import Incarnation

T = TypeVar("T")
P = ParamSpec("P")

_CHUNK_BYTES = 1 << 20


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

    def __init__(self, path: str, boot_id: str = "") -> None:
        """`boot_id`: that of the machine whose files were copied to `path`."""
        self.path = path
        self.is_full = False
        self.boot_id = boot_id or str(SystemRandom().uuid())
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
                        self.break_link(path)
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

    def break_link(
        self, path: str, open_files: "Iterable[DriveFile]" = (), size_bytes: int | None = None
    ) -> None:
        """If the file has other links, replace it by a copy of its first `size_bytes` bytes.
        `open_files` that are this file become the copy."""
        shared = os.stat(path)
        if shared.st_nlink == 1:
            return
        end = shared.st_size if size_bytes is None else min(size_bytes, shared.st_size)
        disk, temporary = LocalDisk(), f"{path}.tmp"
        with closing(disk.open(path)) as file, closing(disk.open(temporary, create=True)) as copy:
            copy.truncate(0)
            for position in range(0, end, _CHUNK_BYTES):
                write_all(copy, file.pread(min(_CHUNK_BYTES, end - position), position), position)
            inode = os.fstat(copy.fileno()).st_ino
            for each in open_files:
                if each.inode == shared.st_ino:
                    each.reopen(copy.fileno(), inode)
        os.utime(temporary, ns=(shared.st_atime_ns, shared.st_mtime_ns))
        # Last: with its name the shared file loses a link, and then another cluster may change it.
        os.replace(temporary, path)
        self._unsynced.pop(inode, None)
        if shared.st_ino in self._unsynced:
            self._unsynced[inode] = self._unsynced.pop(shared.st_ino)


class DriveFile(LocalFile):
    """An open file. Every call raises `Revoked` after its process was killed."""

    __slots__ = ("_disk", "_is_open", "drive", "inode")

    def __init__(self, disk: "DriveDisk", path: str, fd: int) -> None:
        super().__init__(path, fd)
        self.drive = disk.drive
        self._disk = disk
        self.inode = os.fstat(fd).st_ino
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
            unsynced = self.drive.changing(self.inode, self)
            unsynced.save_before_change(self, position, position + len(writable))
            self._break_link()
            return super().pwrite(writable, position)

    @_while_running
    def truncate(self, size_bytes: int) -> None:
        size_before = self.size()
        if self.drive.is_full and size_bytes > size_before:
            raise _full(self.path)
        unsynced = self.drive.changing(self.inode, self)
        unsynced.save_before_change(self, size_bytes, size_before)
        self._break_link(size_bytes)
        super().truncate(size_bytes)

    def _break_link(self, size_bytes: int | None = None) -> None:
        if os.fstat(self._fd).st_nlink > 1:
            self.drive.break_link(self.path, self._disk.files, size_bytes)
            assert os.fstat(self._fd).st_nlink == 1, f"{self.path} was renamed while it was open"

    def reopen(self, fd: int, inode: int) -> None:
        """Continue with another open file, under the same descriptor."""
        os.dup2(fd, self._fd, inheritable=False)
        self.inode = inode

    @_while_running
    def sync(self) -> None:
        # No real fsync: a real power loss of the machine that runs the tests does not matter.
        self.drive.synced(self.inode)

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

    @_while_running
    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        self.drive.break_link(path, self.files)
        super().set_modified_ms(path, modified_ms)

    exists = _while_running(LocalDisk.exists)
    is_dir = _while_running(LocalDisk.is_dir)
    list_dir = _while_running(LocalDisk.list_dir)
    list_dirs = _while_running(LocalDisk.list_dirs)
    size = _while_running(LocalDisk.size)
    modified_ms = _while_running(LocalDisk.modified_ms)
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
