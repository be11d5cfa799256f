"""The environment: wall clock, disk, randomness.

Nothing else in Suwi reads the time, opens a file or uses randomness, so a simulation can replace
all three (`suwi.sim`). Timers are not here: they belong to the event loop, which a simulation
replaces as well.
"""

from typing import NamedTuple

from suwi.env.clock import Clock, SystemClock
from suwi.env.disk import AlreadyLocked, Disk, File, FileRegion, Lock
from suwi.env.local_disk import LocalDisk
from suwi.env.random import Random, SystemRandom

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


class Env(NamedTuple):
    """The environment of one broker process."""

    clock: Clock
    disk: Disk
    random: Random


def local_env() -> Env:
    """The environment of the real machine."""
    return Env(clock=SystemClock(), disk=LocalDisk(), random=SystemRandom())
