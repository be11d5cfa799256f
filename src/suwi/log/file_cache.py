"""A cache of open files with a limit; the least recently used file is closed first.

Entrances: `get` for use before the next call into the cache, `pin` for longer use (a response being
sent, a sync in a thread).
Invariant: a pinned file is never closed.
"""

import asyncio
import resource
from collections import OrderedDict
from itertools import islice
from posixpath import dirname

from typing_extensions import Buffer

from suwi.env import Disk, File

_OPEN_FILES_WANTED = 65_536
_OPEN_FILES_OF_MACOS = 10_240
_SYNCS_AT_ONCE = 8
_SYNCED_SHARE = 0.5


def raise_open_file_limit() -> int:
    """Raise the soft limit of open files as far as allowed. Returns the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _OPEN_FILES_WANTED
    for wanted in (_OPEN_FILES_WANTED, _OPEN_FILES_OF_MACOS):
        allowed = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        if soft >= allowed:
            break
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        except (ValueError, OSError):
            continue  # macOS reports no limit but rejects values above its kernel's.
        return allowed
    return soft


def make_empty(file: File) -> None:
    """Truncate the file to 0 bytes, unless it is empty: that saves a journal entry."""
    if file.size():
        file.truncate(0)


def write_all(file: File, data: Buffer, position: int) -> None:
    """Write all bytes, in several calls if needed. Raises OSError; some bytes may be written."""
    written = file.pwrite(data, position)
    view = memoryview(data)
    while written < len(view):
        written += file.pwrite(view[written:], position + written)


class FileCache:
    def __init__(self, disk: Disk, open_files_max: int) -> None:
        assert open_files_max > 0
        self._disk = disk
        self._open_files_max = open_files_max
        self._files: OrderedDict[str, File] = OrderedDict()
        self._paths: dict[str, dict[str, None]] = {}
        """The open files of each directory, so that forgetting a directory does not depend on how
        many other files are open."""
        self._pins: dict[File, int] = {}
        self._forgotten: set[File] = set()
        self.sync_slots = asyncio.Semaphore(_SYNCS_AT_ONCE)
        """Taken before the files of a sync are pinned: after a crash every log is to be synced, and
        connections need descriptors, too."""

    @property
    def files_per_sync_max(self) -> int:
        """So that all syncs at once take a part of the limit."""
        return int(self._open_files_max * _SYNCED_SHARE) // _SYNCS_AT_ONCE

    @property
    def disk(self) -> Disk:
        return self._disk

    def __len__(self) -> int:
        return len(self._files)

    def get(self, path: str, *, create: bool = False) -> File:
        """The open file. Valid until the next call into this cache."""
        files = self._files
        file = files.get(path)
        if file is not None:
            files.move_to_end(path)
            return file
        self._close_oldest(room_for=1)
        file = self._disk.open(path, create=create)
        files[path] = file
        self._paths.setdefault(dirname(path), {})[path] = None
        return file

    def pin(self, path: str) -> File:
        """The open file; it stays open until `unpin`."""
        file = self.get(path)
        self._pins[file] = self._pins.get(file, 0) + 1
        return file

    def unpin(self, file: File) -> None:
        left = self._pins[file] - 1
        if left:
            self._pins[file] = left
            return
        del self._pins[file]
        if file in self._forgotten:
            self._forgotten.discard(file)
            file.close()
        else:
            self._close_oldest()

    def forget(self, path: str) -> None:
        """The file is about to be renamed or removed: close it as soon as it is not pinned."""
        file = self._take(path)
        if file is None:
            return
        if file in self._pins:
            self._forgotten.add(file)
        else:
            file.close()

    def forget_dir(self, directory: str) -> None:
        """`forget` every file in a directory."""
        for path in list(self._paths.get(directory, ())):
            self.forget(path)

    def forget_tree(self, directory: str) -> None:
        """`forget` every file in a directory and its subdirectories."""
        below = f"{directory}/"
        for found in [d for d in self._paths if d == directory or d.startswith(below)]:
            self.forget_dir(found)

    def _take(self, path: str) -> File | None:
        file = self._files.pop(path, None)
        if file is not None:
            directory = dirname(path)
            paths = self._paths[directory]
            del paths[path]
            if not paths:
                del self._paths[directory]
        return file

    def _close_oldest(self, room_for: int = 0) -> None:
        surplus = len(self._files) + room_for - self._open_files_max
        if surplus <= 0:
            return
        idle = (path for path, file in self._files.items() if file not in self._pins)
        for path in list(islice(idle, surplus)):
            file = self._take(path)
            assert file is not None
            file.close()
