"""Faults of a simulated disk.

A test plans faults (`fail`, `shorten`, `stall`, `crash_after`); the disk asks before every call.
The plan belongs to the drive: it persists over the processes that use it.
"""

import errno
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, TypedDict, Unpack

from suwi.sim.random import SimRandom

Operation = Literal[
    "open",
    "read",
    "write",
    "truncate",
    "sync",
    "stat",
    "list_dir",
    "make_dirs",
    "rename",
    "remove",
    "sync_dir",
    "lock",
]

CHANGES: frozenset[str] = frozenset(
    ("open", "write", "truncate", "sync", "make_dirs", "rename", "remove", "sync_dir", "lock")
)
"""Operations between which a crash makes a difference."""


class When(TypedDict, total=False):
    """Which of the calls are meant. `path` is a pattern (`*` also matches `/`)."""

    path: str
    times: int | None
    skip: int
    chance: float


@dataclass(slots=True, eq=False, kw_only=True)
class Fault:
    """Matching calls fail: the first `skip` do not, then `times` do; None: always."""

    operation: Operation | Literal["*"]
    path: str = "*"
    times: int | None = 1
    skip: int = 0
    chance: float = 1.0
    error: int = 0
    stall_s: float = 0.0
    hits: int = 0

    def matches(self, operation: Operation, path: str) -> bool:
        if self.operation not in ("*", operation) or self.times == 0:
            return False
        return fnmatchcase(path, self.path)


class DiskFaults:
    """The plan of one drive."""

    def __init__(self, random: SimRandom) -> None:
        self.cold_chance = 0.0
        """The probability that a read is not in the page cache."""
        self.crashes = 0
        """How many processes were killed in the middle of a call."""
        self.errors = 0
        """How many calls failed that would have succeeded on an intact drive with free space."""
        self._random = random
        self._faults: list[Fault] = []
        self._calls_left: int | None = None

    def fail(
        self, operation: Operation | Literal["*"], error: int = errno.EIO, **when: Unpack[When]
    ) -> Fault:
        """Matching calls raise `OSError(error)`. A failed sync may lose what was not yet safe."""
        return self._plan(Fault(operation=operation, error=error, **when))

    def shorten(self, **when: Unpack[When]) -> Fault:
        """Matching writes of more than one byte take only some of their bytes."""
        return self._plan(Fault(operation="write", **when))

    def stall(
        self, duration_s: float, operation: Operation | Literal["*"] = "*", **when: Unpack[When]
    ) -> Fault:
        """Matching calls take this long in virtual time; the process is blocked meanwhile."""
        return self._plan(Fault(operation=operation, stall_s=duration_s, **when))

    def crash_after(self, calls: int) -> None:
        """Kill the process in the middle of a call: the one after `calls` further changes."""
        self._calls_left = calls

    def remove(self, fault: Fault) -> None:
        """Remove a planned fault, unless `clear` has removed it."""
        if fault in self._faults:
            self._faults.remove(fault)

    def clear(self) -> None:
        self._faults.clear()
        self._calls_left = None
        self.cold_chance = 0.0

    def crashes_now(self, operation: Operation) -> bool:
        if self._calls_left is None or operation not in CHANGES:
            return False
        self._calls_left -= 1
        if self._calls_left >= 0:
            return False
        self._calls_left = None
        self.crashes += 1
        return True

    def is_cold(self) -> bool:
        return self.cold_chance > 0 and self._random.chance(self.cold_chance)

    def error_for(self, operation: Operation, path: str, stall: Callable[[float], None]) -> int:
        """The errno this call must fail with, or 0; stalls first where that is planned."""
        for fault in self._faults:
            if (fault.error or fault.stall_s) and self._applies(fault, operation, path):
                if fault.error:
                    self.errors += 1
                    return fault.error
                stall(fault.stall_s)
        return 0

    def shortened(self, path: str, size_bytes: int) -> int:
        """How many of `size_bytes` this write takes."""
        for fault in self._faults:
            if not (fault.error or fault.stall_s or size_bytes < 2) and self._applies(
                fault, "write", path
            ):
                return self._random.between(1, size_bytes - 1)
        return size_bytes

    def _plan(self, fault: Fault) -> Fault:
        self._faults.append(fault)
        return fault

    def _applies(self, fault: Fault, operation: Operation, path: str) -> bool:
        if not fault.matches(operation, path):
            return False
        if fault.skip:
            fault.skip -= 1
            return False
        if fault.chance < 1.0 and not self._random.chance(fault.chance):
            return False
        if fault.times is not None:
            fault.times -= 1
        fault.hits += 1
        return True
