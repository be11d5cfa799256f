"""The environment: wall clock, disk, randomness.

Nothing else in Suwi reads the time, opens a file or uses randomness, so a simulation can replace
all three (`suwi.sim`). Timers are not here: they belong to the event loop, which a simulation
replaces as well.
"""

import random
import secrets
import time
import uuid
from typing import NamedTuple, Protocol

from suwi.env.disk import AlreadyLocked, Disk, File, FileRegion, Lock
from suwi.env.local_disk import LocalDisk

__all__ = [
    "AlreadyLocked",
    "Clock",
    "Disk",
    "Env",
    "File",
    "FileRegion",
    "LocalDisk",
    "Lock",
    "Random",
    "SystemClock",
    "SystemRandom",
    "local_env",
]


class Clock(Protocol):
    """Wall-clock time. Durations and timers use the event loop's own clock instead."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, as in record timestamps."""


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class Random(Protocol):
    """Backoff jitter, replica placement and new ids."""

    def uniform(self, low: float, high: float) -> float:
        """A number between `low` and `high`."""

    def below(self, bound: int) -> int:
        """A whole number from 0 to `bound` - 1."""

    def token(self, size_bytes: int) -> bytes:
        """Unpredictable bytes: nonces, salts, keys."""

    def uuid(self) -> uuid.UUID:
        """A new unique id."""


class SystemRandom:
    def uniform(self, low: float, high: float) -> float:
        return random.uniform(low, high)

    def below(self, bound: int) -> int:
        return random.randrange(bound)

    def token(self, size_bytes: int) -> bytes:
        return secrets.token_bytes(size_bytes)

    def uuid(self) -> uuid.UUID:
        return uuid.uuid4()


class Env(NamedTuple):
    """The environment of one broker process."""

    clock: Clock
    disk: Disk
    random: Random


def local_env() -> Env:
    """The environment of the real machine."""
    return Env(clock=SystemClock(), disk=LocalDisk(), random=SystemRandom())
