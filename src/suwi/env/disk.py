"""The disk as the log sees it: files read and written at positions, and directories.

All calls are synchronous. Errors are `OSError`, as the kernel gives them. A write may be short.
"""

from collections.abc import Callable
from posixpath import dirname
from typing import Protocol, final

from typing_extensions import Buffer


class AlreadyLocked(Exception):
    """Another process holds the lock."""


class Lock(Protocol):
    def release(self) -> None: ...


class File(Protocol):
    @property
    def path(self) -> str: ...

    def fileno(self) -> int:
        """The kernel's descriptor for sendfile; -1 where there is none (simulation)."""

    def size(self) -> int: ...

    def pread(self, size_bytes: int, position: int) -> bytes:
        """Up to `size_bytes` bytes at `position`; fewer only at the end of the file."""

    def pwrite(self, data: Buffer, position: int) -> int:
        """Write at `position`; return how many bytes were written, which may be fewer."""

    def is_cached(self, position: int, size_bytes: int) -> bool:
        """Whether reading this range would probably not wait for the device."""

    def pread_cached(self, size_bytes: int, position: int) -> bytes | bytearray | None:
        """As `pread`, but None where that would wait for the device or the file ends before."""

    def truncate(self, size_bytes: int) -> None: ...

    def sync(self) -> None:
        """Return when all bytes written so far survive a power loss (fdatasync)."""

    def close(self) -> None: ...


class Disk(Protocol):
    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing; `create` makes the file where it is missing, for its owner
        alone."""

    def exists(self, path: str) -> bool:
        """Whether there is such a name. Raises OSError where the disk cannot say: a file that could
        not be looked at is not a missing one."""

    def is_dir(self, path: str) -> bool:
        """As `exists`, and it is a directory."""

    def list_dir(self, path: str) -> list[str]:
        """The names in a directory, sorted."""

    def size(self, path: str) -> int: ...

    def modified_ms(self, path: str) -> int:
        """When the file was last written, in milliseconds since 1970."""

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        """Let the file seem last written then: a copy is as old as what it copies."""

    def make_dirs(self, path: str) -> None:
        """Make the directory, for its owner alone, and its parents where they are missing."""

    def is_open_to_others(self, path: str) -> bool:
        """Whether other users of the machine than its owner and group may use it."""

    def rename(self, old: str, new: str) -> None:
        """Rename a file or directory, replacing a file of the new name."""

    def remove(self, path: str) -> None: ...

    def remove_tree(self, path: str) -> None: ...

    def sync_dir(self, path: str) -> None:
        """Make names created, renamed or removed in this directory survive a power loss."""

    def read_bytes(self, path: str) -> bytes: ...

    def write_atomically(self, path: str, data: bytes, *, sync: bool = True) -> None:
        """Replace the file's content so that a crash leaves either the old or the new one.

        Without `sync` that holds for a crash of the process; a power loss may leave it empty.
        """

    def free_bytes(self, path: str) -> int: ...

    def total_bytes(self, path: str) -> int: ...

    def lock(self, path: str) -> Lock:
        """Hold an exclusive lock on a file until released or the process ends.

        Raises `AlreadyLocked` where another holds it.
        """

    def boot_id(self) -> str:
        """Changes whenever the machine starts anew; empty where that is unknown."""


def replace_content(disk: Disk, path: str, data: bytes, *, sync: bool) -> None:
    """How a disk writes atomically: into another file, which then takes the name."""
    temporary = f"{path}.tmp"
    file = disk.open(temporary, create=True)
    try:
        file.truncate(0)
        written = file.pwrite(data, 0)
        while written < len(data):
            written += file.pwrite(memoryview(data)[written:], written)
        if sync:
            file.sync()
    finally:
        file.close()
    disk.rename(temporary, path)
    if sync:
        disk.sync_dir(dirname(path))


def _always() -> bool:
    return True


@final
class FileRegion:
    """A range of a file that is on its way to a client.

    Whoever sends it keeps the file open until then, and asks `is_current` before each piece: it
    turns false when the log was truncated or deleted under the reply, which must then be aborted.
    """

    __slots__ = ("file", "is_current", "position", "size_bytes")

    def __init__(
        self,
        file: File,
        position: int,
        size_bytes: int,
        is_current: Callable[[], bool] = _always,
    ) -> None:
        self.file = file
        self.position = position
        self.size_bytes = size_bytes
        self.is_current = is_current
