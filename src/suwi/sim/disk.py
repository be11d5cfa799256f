"""A disk in memory that behaves like `env.LocalDisk` and can also crash, tear, fail and stall.

A `SimDisk` is one incarnation's access to a drive. `crash` (the process is killed: written bytes
stay) and `power_loss` (unsynced bytes may be lost, all or some of them) return the next
incarnation's access; every later call on the old one, or on a file opened through it, raises
`Revoked`. Paths are absolute; relative ones start at the root.
"""

import errno
import os
from collections.abc import Callable
from posixpath import dirname, normpath

from typing_extensions import Buffer

from suwi.env import Clock
from suwi.env.disk import AlreadyLocked, replace_content
from suwi.sim.clock import ManualClock
from suwi.sim.faults import DiskFaults, Operation
from suwi.sim.incarnation import Incarnation, Revoked
from suwi.sim.random import SimRandom
from suwi.sim.volume import DirNode, FileNode, Naming, Node, Truncate, Volume, Write


def _error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)


def _cannot_stall(_duration_s: float) -> None:
    raise RuntimeError("only the disk of a simulated machine can stall")


class SimDrive:
    """The hardware: it persists over processes and boots of its machine."""

    def __init__(self, clock: Clock, random: SimRandom, capacity_bytes: int | None) -> None:
        self.clock = clock
        self.volume = Volume(clock.now_ms(), capacity_bytes)
        self.faults = DiskFaults(random.stream("faults"))
        self.tears = random.stream("tears")
        self.boot_id = str(random.uuid())
        self.stall: Callable[[float], None] = _cannot_stall

    def disk(self, incarnation: Incarnation) -> "SimDisk":
        self.volume.lose_process()
        return SimDisk(drive=self, incarnation=incarnation)

    def lose_power(self, *, tear: bool) -> None:
        self.volume.lose_power(self.tears if tear else None)
        self.boot_id = str(self.tears.uuid())


class SimFile:
    """A file open for reading and writing at positions."""

    __slots__ = ("_disk", "_node", "_open", "_path")

    def __init__(self, disk: "SimDisk", path: str, node: FileNode) -> None:
        self._disk = disk
        self._path = path
        self._node = node
        self._open = True
        node.opens += 1

    @property
    def path(self) -> str:
        return self._path

    def fileno(self) -> int:
        return -1

    def size(self) -> int:
        self._begin("stat")
        return len(self._node.content)

    def pread(self, size_bytes: int, position: int) -> bytes:
        self._begin("read")
        if size_bytes < 0 or position < 0:
            raise _error(errno.EINVAL, self._path)
        with memoryview(self._node.content) as content:
            return bytes(content[position : position + size_bytes])

    def pwrite(self, data: Buffer, position: int) -> int:
        payload = bytes(data)
        try:
            self._begin("write")
        except _DiesNow:
            # The kernel may have accepted some of the bytes before the process was killed.
            taken = self._disk.drive.tears.below(len(payload) + 1)
            self._write(payload[:taken], position)
            raise
        if position < 0:
            raise _error(errno.EINVAL, self._path)
        if not payload:
            return 0
        drive = self._disk.drive
        taken = drive.faults.shortened(self._path, len(payload))
        growth = position + taken - len(self._node.content)
        lacking = growth - drive.volume.free_bytes()
        if growth > 0 and lacking > 0:
            taken -= lacking
            if taken <= 0:
                drive.faults.errors += 1
                raise _error(errno.ENOSPC, self._path)
        self._write(payload[:taken], position)
        return taken

    def is_cached(self, position: int, size_bytes: int) -> bool:
        self._begin("stat")
        return not self._disk.drive.faults.is_cold()

    def pread_cached(self, size_bytes: int, position: int) -> bytes | None:
        if not self.is_cached(position, size_bytes):
            return None
        data = self.pread(size_bytes, position)
        return data if len(data) == size_bytes else None

    def drop_cached(self, position: int, size_bytes: int) -> None:
        """There is no page cache."""

    def truncate(self, size_bytes: int) -> None:
        self._begin("truncate")
        if size_bytes < 0:
            raise _error(errno.EINVAL, self._path)
        if size_bytes - len(self._node.content) > self._disk.drive.volume.free_bytes():
            self._disk.drive.faults.errors += 1
            raise _error(errno.ENOSPC, self._path)
        self._change(Truncate(size_bytes))

    def sync(self) -> None:
        try:
            self._begin("sync")
        except OSError as error:
            if error.errno != errno.EBADF:
                self._node.settle_badly(self._disk.drive.tears)
            raise
        self._node.settle()

    def close(self) -> None:
        self._disk.check()
        self._require_open()
        self._open = False
        self._node.opens -= 1
        self._disk.drive.volume.release_if_unused(self._node)

    def _begin(self, operation: Operation) -> None:
        self._disk.check()
        self._require_open()
        self._disk.begin(operation, self._path)

    def _require_open(self) -> None:
        if not self._open:
            raise _error(errno.EBADF, self._path)

    def _write(self, payload: bytes, position: int) -> None:
        if payload:
            self._change(Write(position, payload))

    def _change(self, change: Write | Truncate) -> None:
        drive = self._disk.drive
        drive.volume.change_file(self._node, change, drive.clock.now_ms())


class SimLock:
    __slots__ = ("_file", "_node")

    def __init__(self, file: SimFile, node: FileNode) -> None:
        self._file = file
        self._node = node

    def release(self) -> None:
        self._file.close()
        self._node.locked = False


class _DiesNow(Revoked):
    """The process is killed in the middle of this call."""


class SimDisk:
    """One incarnation's access to a drive. Implements `env.Disk`."""

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        random: SimRandom | None = None,
        capacity_bytes: int | None = None,
        incarnation: Incarnation | None = None,
        drive: SimDrive | None = None,
    ) -> None:
        if drive is None:
            drive = SimDrive(clock or ManualClock(), random or SimRandom(0), capacity_bytes)
        self.drive = drive
        self.incarnation = incarnation or Incarnation("disk")
        self.check = self.incarnation.check

    @property
    def faults(self) -> DiskFaults:
        return self.drive.faults

    def fill(self, left_bytes: int = 0) -> None:
        """No more than `left_bytes` can be written, until `free` or until files are removed."""
        self.drive.volume.capacity_bytes = self.drive.volume.used_bytes + left_bytes

    @property
    def is_filled(self) -> bool:
        return self.drive.volume.capacity_bytes is not None

    def free(self) -> None:
        self.drive.volume.capacity_bytes = None

    # The end of an incarnation.

    def revoke(self) -> None:
        """From now on every call raises `Revoked`."""
        self.incarnation.revoke()

    def crash(self) -> "SimDisk":
        """The process is killed. What it wrote is there for the next one, synced or not."""
        self.revoke()
        return self.drive.disk(Incarnation("disk"))

    def power_loss(self, *, tear: bool = True) -> "SimDisk":
        """The machine loses power. Synced bytes stay; with `tear` some of the others may, too."""
        self.revoke()
        self.drive.lose_power(tear=tear)
        return self.drive.disk(Incarnation("disk"))

    # env.Disk.

    def open(self, path: str, *, create: bool = False) -> SimFile:
        self.begin("open", path)
        return self._open(path, create=create)

    def exists(self, path: str) -> bool:
        self.begin("stat", path)
        return self._find_or_none(path) is not None

    def is_dir(self, path: str) -> bool:
        self.begin("stat", path)
        return isinstance(self._find_or_none(path), DirNode)

    def list_dir(self, path: str) -> list[str]:
        self.begin("list_dir", path)
        return sorted(self._directory(path).entries)

    def list_dirs(self, path: str) -> list[str]:
        self.begin("list_dir", path)
        entries = self._directory(path).entries
        return sorted(name for name, node in entries.items() if isinstance(node, DirNode))

    def size(self, path: str) -> int:
        self.begin("stat", path)
        node = self._find(path)
        return len(node.content) if isinstance(node, FileNode) else 4096

    def modified_ms(self, path: str) -> int:
        self.begin("stat", path)
        return self._find(path).modified_ms

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        self.begin("stat", path)
        self._find(path).modified_ms = modified_ms

    def make_dirs(self, path: str) -> None:
        self.begin("make_dirs", path)
        directory = self.drive.volume.root
        parts = _parts(path)
        for depth, name in enumerate(parts):
            node = directory.entries.get(name)
            if node is None:
                node = DirNode(self.drive.clock.now_ms())
                self._rename_all(Naming(directory, name, node))
            if isinstance(node, FileNode):
                last = depth == len(parts) - 1
                raise _error(errno.EEXIST if last else errno.ENOTDIR, path)
            directory = node

    def is_open_to_others(self, path: str) -> bool:
        self.check()
        return False  # Nobody else uses a simulated machine.

    def rename(self, old: str, new: str) -> None:
        self.begin("rename", old)
        old_parts, new_parts = _parts(old), _parts(new)
        source, target = self._parent(old), self._parent(new)
        node = source.entries.get(old_parts[-1])
        replaced = target.entries.get(new_parts[-1])
        if node is None:
            raise _error(errno.ENOENT, old)
        if len(new_parts) > len(old_parts) and new_parts[: len(old_parts)] == old_parts:
            raise _error(errno.EINVAL, new)  # A directory cannot move into itself.
        if len(old_parts) > len(new_parts) and old_parts[: len(new_parts)] == new_parts:
            raise _error(errno.ENOTEMPTY, new)
        if node is replaced:
            return
        if isinstance(node, DirNode) and isinstance(replaced, FileNode):
            raise _error(errno.ENOTDIR, new)
        if isinstance(replaced, DirNode):
            if isinstance(node, FileNode):
                raise _error(errno.EISDIR, new)
            if replaced.entries:
                raise _error(errno.ENOTEMPTY, new)
        self._rename_all(Naming(source, old_parts[-1], None), Naming(target, new_parts[-1], node))

    def remove(self, path: str) -> None:
        self.begin("remove", path)
        if isinstance(self._find(path), DirNode):
            raise _error(errno.EISDIR, path)
        self._rename_all(Naming(self._parent(path), _parts(path)[-1], None))

    def remove_tree(self, path: str) -> None:
        """Remove the names one by one, so that a crash can happen in between."""
        self.begin("remove", path)
        directory = self._directory(path)
        for name in sorted(directory.entries):
            if isinstance(directory.entries[name], DirNode):
                self.remove_tree(f"{path}/{name}")
            else:
                self.remove(f"{path}/{name}")
        self.begin("remove", path)
        self._rename_all(Naming(self._parent(path), _parts(path)[-1], None))

    def sync_dir(self, path: str) -> None:
        self.begin("sync_dir", path)
        node = self._find(path)
        if isinstance(node, FileNode):
            node.settle()
        else:
            self.drive.volume.sync_dir(node)

    def read_bytes(self, path: str) -> bytes:
        self.begin("read", path)
        node = self._find(path)
        if isinstance(node, DirNode):
            raise _error(errno.EISDIR, path)
        return bytes(node.content)

    def write_atomically(self, path: str, data: bytes, *, sync: bool = True) -> None:
        replace_content(self, path, data, sync=sync)

    def free_bytes(self, path: str) -> int:
        self.begin("stat", path)
        self._find(path)
        return self.drive.volume.free_bytes()

    def total_bytes(self, path: str) -> int:
        self.begin("stat", path)
        self._find(path)
        return self.drive.volume.capacity_bytes or 2**62

    def lock(self, path: str) -> SimLock:
        self.begin("lock", path)
        file = self._open(path, create=True)
        node = self._find(path)
        assert isinstance(node, FileNode)
        if node.locked:
            file.close()
            raise AlreadyLocked(path)
        node.locked = True
        return SimLock(file, node)

    def boot_id(self) -> str:
        self.check()
        return self.drive.boot_id

    # For tests that damage files, and checkers that read them.

    def peek(self, path: str) -> bytearray:
        """A file's bytes as they are, not a copy; no fault applies, and no process has to run."""
        node = self._find(path)
        assert isinstance(node, FileNode)
        return node.content

    def overwrite(self, path: str, data: bytes, position: int = 0) -> None:
        """Write bytes to the drive directly: safe at once, no fault applies."""
        node = self._find(path)
        assert isinstance(node, FileNode)
        node.settle()
        now_ms = node.modified_ms
        self.drive.volume.change_file(node, Write(position, data), now_ms)
        node.settle()

    # Start of calls, and path look-up.

    def begin(self, operation: Operation, path: str) -> None:
        """Everything that can fail a call before it has an effect."""
        self.check()
        drive = self.drive
        if drive.faults.crashes_now(operation):
            self.revoke()
            raise _DiesNow(f"{self.incarnation.name} was killed in {operation} of {path}")
        code = drive.faults.error_for(operation, path, drive.stall)
        if code:
            raise _error(code, path)

    def _open(self, path: str, *, create: bool) -> SimFile:
        node = self._find_or_none(path)
        if node is None:
            parent = self._parent(path)
            if not create:
                raise _error(errno.ENOENT, path)
            node = FileNode(self.drive.clock.now_ms())
            self._rename_all(Naming(parent, _parts(path)[-1], node))
        if isinstance(node, DirNode):
            raise _error(errno.EISDIR, path)
        return SimFile(self, path, node)

    def _rename_all(self, *namings: Naming) -> None:
        self.drive.volume.rename_all(*namings, now_ms=self.drive.clock.now_ms())

    def _find(self, path: str) -> Node:
        node: Node = self.drive.volume.root
        for name in _parts(path):
            if isinstance(node, FileNode):
                raise _error(errno.ENOTDIR, path)
            found = node.entries.get(name)
            if found is None:
                raise _error(errno.ENOENT, path)
            node = found
        return node

    def _find_or_none(self, path: str) -> Node | None:
        try:
            return self._find(path)
        except OSError:
            return None

    def _directory(self, path: str) -> DirNode:
        node = self._find(path)
        if isinstance(node, FileNode):
            raise _error(errno.ENOTDIR, path)
        return node

    def _parent(self, path: str) -> DirNode:
        return self._directory(dirname(normpath(f"/{path}")))


def _parts(path: str) -> list[str]:
    return [part for part in normpath(f"/{path}").split("/") if part]
