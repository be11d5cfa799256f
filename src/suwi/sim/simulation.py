"""A simulation from one seed: the event loop with its network, the machines, and their run."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from suwi.sim.clock import START_MS, SimClock
from suwi.sim.disk import SimDrive
from suwi.sim.loop import SimLoop
from suwi.sim.machine import Machine
from suwi.sim.network import SimNetwork
from suwi.sim.random import SimRandom
from suwi.sim.ready import Schedule

_T = TypeVar("_T")


class Simulation:
    """One run. Schedule, network, machines, `faults` and `workload` draw from separate streams."""

    def __init__(
        self,
        seed: int = 0,
        *,
        schedule: Schedule = "random",
        start_ms: int = START_MS,
        trace: Callable[[str], None] | None = None,
    ) -> None:
        self.seed = seed
        self.start_ms = start_ms
        self.random = SimRandom(seed)
        self.faults = self.random.stream("faults")
        self.workload = self.random.stream("workload")
        random = self.random.stream("loop")
        # Abstract to mypy: readers, signals and subprocesses do not exist in a simulation.
        self.loop = SimLoop(random, schedule=schedule, trace=trace)  # type: ignore[abstract]
        self.machines: dict[str, Machine] = {}

    @property
    def network(self) -> SimNetwork:
        return self.loop.network

    @property
    def trace_hash(self) -> str:
        """Equal for equal seeds; compare it after the run."""
        return self.loop.trace.digest()

    def machine(self, name: str, *, skew_ms: int = 0, capacity_bytes: int | None = None) -> Machine:
        """A new machine, switched on, with an empty drive and no process yet."""
        assert name not in self.machines, f"there is a machine {name} already"
        random = self.random.stream(f"machine/{name}")
        clock = SimClock(self.loop.time, start_ms=self.start_ms, skew_ms=skew_ms)
        drive = SimDrive(clock, random.stream("disk"), capacity_bytes)
        machine = Machine(self.loop, name, drive, clock, lambda n: random.stream(f"env/{n}"))
        drive.stall = lambda duration_s: self.loop.stall(machine.incarnation, duration_s)
        self.machines[name] = machine
        return machine

    def add_checker(self, check: Callable[[], None]) -> None:
        """Call this after every step; an exception that it raises ends the run."""
        self.loop.add_step_hook(check)

    def run(self, main: Coroutine[Any, Any, _T]) -> _T:
        """Run to the end, as `asyncio.run` does. Fails on any unhandled exception."""
        loop = self.loop
        try:
            result = loop.run_until_complete(main)
            loop.run_until_complete(self._cancel_rest())
            loop.check_tasks()
            return result
        except BaseException as error:
            error.add_note(f"seed {self.seed}, {loop.time():.6f} s of virtual time")
            raise
        finally:
            loop.close()

    async def _cancel_rest(self) -> None:
        """Cancel what still runs, in the order of its start."""
        rest = [task for task in self.loop.tasks.running() if task is not asyncio.current_task()]
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest)
        await self.loop.shutdown_asyncgens()


def run(main: Coroutine[Any, Any, _T], *, seed: int = 0, schedule: Schedule = "random") -> _T:
    """Run one coroutine in its own simulation."""
    return Simulation(seed, schedule=schedule).run(main)
