"""A simulated machine room for production code: event loop, network, disks and clocks from a seed.

A test creates a `Simulation`, starts machines in it and runs a coroutine in virtual time. The same
seed gives the same run.
"""

from suwi.sim.clock import ManualClock, SimClock
from suwi.sim.disk import SimDisk
from suwi.sim.faults import DiskFaults
from suwi.sim.incarnation import Incarnation, Revoked
from suwi.sim.loop import Deadlock, Livelock, SimError, SimLoop, Unhandled
from suwi.sim.machine import Machine
from suwi.sim.network import OUTSIDE, SimNetwork
from suwi.sim.random import SimRandom
from suwi.sim.simulation import Simulation, run

__all__ = [
    "OUTSIDE",
    "Deadlock",
    "DiskFaults",
    "Incarnation",
    "Livelock",
    "Machine",
    "ManualClock",
    "Revoked",
    "SimClock",
    "SimDisk",
    "SimError",
    "SimLoop",
    "SimNetwork",
    "SimRandom",
    "Simulation",
    "Unhandled",
    "run",
]
