"""The simulated disk behaves as the real one: the same operations, the same results."""

import os
import sys
import tempfile
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from suwi.env import AlreadyLocked, Disk, File, LocalDisk, Lock
from suwi.sim import SimDisk

_NAMES = st.sampled_from(["a", "b", "c"])
_PATHS = st.lists(_NAMES, min_size=1, max_size=3).map("/".join)
_HANDLES = st.integers(0, 3)
_POSITIONS = st.integers(-1, 40)
_OPERATIONS = st.one_of(
    st.tuples(st.just("open"), _PATHS, st.booleans()),
    st.tuples(st.just("close"), _HANDLES),
    st.tuples(st.just("pwrite"), _HANDLES, st.binary(max_size=20), _POSITIONS),
    st.tuples(st.just("pread"), _HANDLES, st.integers(0, 40), _POSITIONS),
    st.tuples(st.just("truncate"), _HANDLES, _POSITIONS),
    st.tuples(st.just("sync"), _HANDLES),
    st.tuples(st.just("file_size"), _HANDLES),
    st.tuples(
        st.sampled_from(
            ["exists", "is_dir", "list_dir", "make_dirs", "remove", "remove_tree", "sync_dir"]
        ),
        _PATHS,
    ),
    st.tuples(st.just("size"), _PATHS),
    st.tuples(st.just("read_bytes"), _PATHS),
    st.tuples(st.just("rename"), _PATHS, _PATHS),
    st.tuples(st.just("write_atomically"), _PATHS, st.binary(max_size=20), st.booleans()),
    st.tuples(st.just("lock"), _PATHS),
    st.tuples(st.just("release"), _HANDLES),
)


class Driver:
    """Applies operations to a disk below a directory and returns how each ended."""

    def __init__(self, disk: Disk, base: str) -> None:
        self.disk = disk
        self.base = base
        self.files: list[File] = []
        self.locks: list[Lock] = []
        disk.make_dirs(base)

    def apply(self, operation: tuple[Any, ...]) -> object:
        try:
            return self._apply(operation)
        except AlreadyLocked:
            return "locked"
        except OSError as error:
            # Other kernels than Linux check in another order.
            return error.errno if sys.platform == "linux" else "error"

    def _apply(self, operation: tuple[Any, ...]) -> object:
        match operation:
            case ("open", path, create):
                self.files.append(self.disk.open(self._at(path), create=create))
            case ("lock", path):
                self.locks.append(self.disk.lock(self._at(path)))
            case ("release", number):
                if number < len(self.locks):
                    self.locks.pop(number).release()
            case ("rename", old, new):
                self.disk.rename(self._at(old), self._at(new))
            case ("write_atomically", path, data, sync):
                self.disk.write_atomically(self._at(path), data, sync=sync)
            case ("size", path):
                return None if self.disk.is_dir(self._at(path)) else self.disk.size(self._at(path))
            case (name, str(path)):
                return getattr(self.disk, name)(self._at(path))
            case (name, int(number), *arguments) if number < len(self.files):
                if name == "close":
                    return self.files.pop(number).close()
                if name == "file_size":
                    return self.files[number].size()
                return getattr(self.files[number], name)(*arguments)
        return None

    def _at(self, path: str) -> str:
        return f"{self.base}/{path}"

    def close(self) -> None:
        for file in self.files:
            file.close()
        for lock in self.locks:
            lock.release()


def _tree(disk: Disk, path: str) -> dict[str, object]:
    return {
        name: _tree(disk, f"{path}/{name}")
        if disk.is_dir(f"{path}/{name}")
        else disk.read_bytes(f"{path}/{name}")
        for name in disk.list_dir(path)
    }


@settings(deadline=None)
@given(st.lists(_OPERATIONS, max_size=30))
def test_any_sequence_of_operations_ends_as_on_a_real_disk(operations: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as base:
        real = Driver(LocalDisk(), os.path.realpath(base))
        simulated = Driver(SimDisk(), "/base")
        try:
            for operation in operations:
                assert simulated.apply(operation) == real.apply(operation), operation
            assert _tree(simulated.disk, simulated.base) == _tree(real.disk, real.base)
        finally:
            real.close()
            simulated.close()
