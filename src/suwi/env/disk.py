"""The disk interface of the log: files with positional reads and writes, and directories.

All calls are synchronous. Errors are `OSError` as the kernel returns them. A write may be short.
"""

from collections.abc import Callable
from dataclasses import dataclass
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
        """The file descriptor for sendfile; -1 if there is none (simulation)."""

    def size(self) -> int: ...

    def pread(self, size_bytes: int, position: int) -> bytes:
        """Up to `size_bytes` bytes at `position`; fewer only at the end of the file."""

    def pwrite(self, data: Buffer, position: int) -> int:
        """Write at `position`. Returns how many bytes were written, which may be fewer."""

    def is_cached(self, position: int, size_bytes: int) -> bool:
        """Whether reading this range would probably not wait for the disk."""

    def pread_cached(self, size_bytes: int, position: int) -> bytes | bytearray | None:
        """As `pread`, but None if that would wait for the disk or reaches beyond the file's end."""

    def drop_cached(self, position: int, size_bytes: int) -> None:
        """Advise that this range will not be read again soon."""

    def truncate(self, size_bytes: int) -> None: ...

    def sync(self) -> None:
        """Return when all bytes written so far survive a power loss (fdatasync)."""

    def close(self) -> None: ...


class Disk(Protocol):
    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing; `create` creates a missing file for its owner only."""

    def exists(self, path: str) -> bool:
        """Whether the path exists. Raises OSError if that cannot be determined: an inaccessible
        file is not a missing one."""

    def is_dir(self, path: str) -> bool:
        """As `exists`, and it is a directory."""

    def list_dir(self, path: str) -> list[str]:
        """The names in a directory, sorted."""

    def list_dirs(self, path: str) -> list[str]:
        """The names of the directories in a directory, sorted."""

    def size(self, path: str) -> int: ...

    def modified_ms(self, path: str) -> int:
        """When the file was last written, in milliseconds since 1970."""

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        """Set the modification time: a copy gets the time of its original."""

    def make_dirs(self, path: str) -> None:
        """Create the directory and missing parents, accessible by the owner only."""

    def is_open_to_others(self, path: str) -> bool:
        """Whether users other than the owner and group may access it."""

    def rename(self, old: str, new: str) -> None:
        """Rename a file or directory, replacing an existing file."""

    def remove(self, path: str) -> None: ...

    def remove_tree(self, path: str) -> None: ...

    def sync_dir(self, path: str) -> None:
        """Make created, renamed and removed entries of this directory survive a power loss."""

    def read_bytes(self, path: str) -> bytes: ...

    def write_atomically(self, path: str, data: bytes, *, sync: bool = True) -> None:
        """Replace the file's content so that a crash leaves either the old or the new content.

        Without `sync` that holds for a crash of the process; a power loss may leave the file empty.
        """

    def free_bytes(self, path: str) -> int: ...

    def total_bytes(self, path: str) -> int: ...

    def lock(self, path: str) -> Lock:
        """Hold an exclusive lock on a file until it is released or the process ends.

        Raises `AlreadyLocked` if another process holds it.
        """

    def boot_id(self) -> str:
        """Changes whenever the machine boots; empty if unknown."""


def replace_content(disk: Disk, path: str, data: bytes, *, sync: bool) -> None:
    """Implements `write_atomically`: write a temporary file, then rename it."""
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


@final
@dataclass(slots=True, eq=False)
class FileRegion:
    """A range of a file that is being sent to a client.

    The sender keeps the file open until it is sent, and checks `is_current` before each part: it
    becomes false when the log was truncated or deleted; then the response must be aborted.
    """

    file: File
    position: int
    size_bytes: int
    is_current: Callable[[], bool] = lambda: True
