"""The local file system."""

import contextlib
import fcntl
import os
import shutil
import stat
import subprocess
import sys

from typing_extensions import Buffer

from suwi.env.disk import AlreadyLocked, replace_content

_WOULD_BLOCK_PROBE = getattr(os, "RWF_NOWAIT", 0) if hasattr(os, "preadv") else 0


# Records and password hashes are accessible by the broker's user only. A umask may restrict more.
_FILE_MODE = stat.S_IRUSR | stat.S_IWUSR
_DIR_MODE = stat.S_IRWXU


class LocalFile:
    """A file open for positional reads and writes."""

    __slots__ = ("_fd", "_path")

    def __init__(self, path: str, fd: int) -> None:
        self._path = path
        self._fd = fd

    @property
    def path(self) -> str:
        return self._path

    def fileno(self) -> int:
        return self._fd

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def pread(self, size_bytes: int, position: int) -> bytes:
        data = os.pread(self._fd, size_bytes, position)
        if len(data) == size_bytes or not data:
            return data
        pieces = [data]  # Linux reads at most 2 GiB a call; signals can shorten a read too.
        got = len(data)
        while got < size_bytes:
            more = os.pread(self._fd, size_bytes - got, position + got)
            if not more:
                break
            pieces.append(more)
            got += len(more)
        return b"".join(pieces)

    def pwrite(self, data: Buffer, position: int) -> int:
        return os.pwrite(self._fd, data, position)

    def is_cached(self, position: int, size_bytes: int) -> bool:
        if not _WOULD_BLOCK_PROBE:
            return True
        byte = [bytearray(1)]
        try:
            for probe in (position, position + size_bytes // 2, position + size_bytes - 1):
                os.preadv(self._fd, byte, probe, _WOULD_BLOCK_PROBE)
        except BlockingIOError:
            return False
        except OSError:
            return True  # The file system does not support the flag.
        return True

    def pread_cached(self, size_bytes: int, position: int) -> bytes | bytearray | None:
        if not _WOULD_BLOCK_PROBE:
            data = os.pread(self._fd, size_bytes, position)
            return data if len(data) == size_bytes else None
        buffer = bytearray(size_bytes)
        try:
            got = os.preadv(self._fd, [buffer], position, _WOULD_BLOCK_PROBE)
        except BlockingIOError:
            return None
        except OSError:  # The file system does not support the flag.
            got = os.preadv(self._fd, [buffer], position)
        return buffer if got == size_bytes else None

    def drop_cached(self, position: int, size_bytes: int) -> None:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fd, position, size_bytes, os.POSIX_FADV_DONTNEED)

    def truncate(self, size_bytes: int) -> None:
        os.ftruncate(self._fd, size_bytes)

    if sys.platform == "darwin":

        def sync(self) -> None:
            # fsync on macOS leaves data in the drive's cache.
            fcntl.fcntl(self._fd, fcntl.F_FULLFSYNC)

    else:

        def sync(self) -> None:
            os.fdatasync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


class LocalLock:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        os.close(self._fd)


class LocalDisk:
    def open(self, path: str, *, create: bool = False) -> LocalFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return LocalFile(path, os.open(path, flags, _FILE_MODE))

    def exists(self, path: str) -> bool:
        return _stat_or_none(path) is not None

    def is_dir(self, path: str) -> bool:
        found = _stat_or_none(path)
        return found is not None and stat.S_ISDIR(found.st_mode)

    def list_dir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def list_dirs(self, path: str) -> list[str]:
        with os.scandir(path) as found:
            return sorted([entry.name for entry in found if entry.is_dir()])

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))

    def make_dirs(self, path: str) -> None:
        os.makedirs(path, _DIR_MODE, exist_ok=True)

    def is_open_to_others(self, path: str) -> bool:
        return os.stat(path).st_mode & stat.S_IRWXO != 0

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def remove(self, path: str) -> None:
        os.remove(path)

    def remove_tree(self, path: str) -> None:
        shutil.rmtree(path)

    def sync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def read_bytes(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def write_atomically(self, path: str, data: bytes, *, sync: bool = True) -> None:
        replace_content(self, path, data, sync=sync)

    def free_bytes(self, path: str) -> int:
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def total_bytes(self, path: str) -> int:
        found = os.statvfs(path)
        return found.f_blocks * found.f_frsize

    def lock(self, path: str) -> LocalLock:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise AlreadyLocked(path) from None
        return LocalLock(fd)

    if sys.platform == "darwin":

        def boot_id(self) -> str:
            command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                return subprocess.check_output(command, text=True, timeout=5).strip()
            return ""

    else:

        def boot_id(self) -> str:
            with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
                return file.read().strip()
            return ""


def _stat_or_none(path: str) -> os.stat_result | None:
    """Unlike `os.path.exists`, which reports every error as a missing file."""
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
