"""A simulated world for production code: event loop, network, disks and clocks from one seed.

A test makes a `Simulation`, starts machines in it and runs a coroutine; everything happens in
virtual time, and the same seed gives the same run.
"""

from suwi.sim.clock import ManualClock, SimClock
from suwi.sim.disk import SimDisk
from suwi.sim.faults import DiskFaults
from suwi.sim.incarnation import Incarnation, Revoked
from suwi.sim.random import SimRandom

__all__ = [
    "DiskFaults",
    "Incarnation",
    "ManualClock",
    "Revoked",
    "SimClock",
    "SimDisk",
    "SimRandom",
]
