"""A simulation from one seed: `Simulation` holds the loop, `Machine` is a computer in it.

A machine runs one process at a time. `start` starts a process and returns its `Env`, `spawn` runs
coroutines in it, `kill` and `power_off` end it.
Invariant: an ended process changes nothing: its calls raise `Revoked`, its tasks are unwound.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from typing import Any, TypeVar

from suwi.env import Env
from suwi.sim.clock import START_MS, SimClock
from suwi.sim.disk import SimDisk, SimDrive
from suwi.sim.incarnation import Incarnation, current
from suwi.sim.loop import SimLoop
from suwi.sim.network import SimNetwork
from suwi.sim.random import SimRandom
from suwi.sim.schedule import Schedule

_T = TypeVar("_T")


class Machine:
    """A computer with a name, a drive, a clock and at most one process."""

    def __init__(
        self,
        simulation: "Simulation",
        name: str,
        *,
        skew_ms: int = 0,
        capacity_bytes: int | None = None,
    ) -> None:
        self.name = name
        self.clock = SimClock(simulation.loop.time, start_ms=simulation.start_ms, skew_ms=skew_ms)
        self._loop = simulation.loop
        self._network = simulation.network
        self._random = simulation.random.stream(f"machine/{name}")
        self._starts = 0
        drive = SimDrive(self.clock, self._random.stream("disk"), capacity_bytes)
        drive.stall = self._stall
        self._disk = SimDisk(drive=drive, incarnation=self._next_incarnation())
        self._process: Incarnation | None = None
        self._context = Context()
        self._network.add_host(name)

    @property
    def is_running(self) -> bool:
        return self._process is not None and not self._process.revoked

    @property
    def incarnation(self) -> Incarnation:
        """The incarnation that runs, or ran last."""
        assert self._process is not None, f"{self.name} was never started"
        return self._process

    @property
    def disk(self) -> SimDisk:
        """The disk of the running process, or of the next one."""
        if self._disk.incarnation.revoked:
            self._disk = self._disk.crash(self._next_incarnation())
        return self._disk

    def start(self) -> Env:
        """Start a process; switches the machine on if necessary."""
        assert not self.is_running, f"{self.name} is running already"
        disk = self.disk
        self._process = process = disk.incarnation
        self._context = copy_context()
        self._context.run(current.set, process)
        process.on_revoke(self._end_process)
        self._network.power_on(self.name)
        random = self._random.stream(f"env/{self._starts}")
        return Env(clock=self.clock, disk=disk, random=random)

    def spawn(
        self, coroutine: Coroutine[Any, Any, _T], *, name: str | None = None
    ) -> asyncio.Task[_T]:
        """Run a coroutine in the process, on this machine."""
        self.incarnation.check()
        return self._loop.create_task(coroutine, name=name, context=self._context.copy())

    def call(self, function: Callable[..., _T], *args: Any) -> _T:
        """Call a function in the process."""
        self.incarnation.check()
        return self._context.copy().run(function, *args)

    def kill(self) -> None:
        """SIGKILL. Peers see their connections end; written bytes stay."""
        self.incarnation.revoke()

    def power_off(self, *, tear: bool = True) -> None:
        """The machine loses power. Peers see nothing; bytes that were not synced may be lost."""
        self._network.power_off(self.name)
        if self._process is not None:
            self._process.revoke()
        self._disk = self._disk.power_loss(self._next_incarnation(), tear=tear)

    def freeze(self) -> None:
        """The process is stopped (SIGSTOP) until `thaw`."""
        self._loop.freeze(self.incarnation)

    def thaw(self) -> None:
        self._loop.thaw(self.incarnation)

    def _next_incarnation(self) -> Incarnation:
        self._starts += 1
        return Incarnation(self.name, self._starts)

    def _end_process(self) -> None:
        # Connections first: `finally` blocks must not reach any peer.
        self._network.kill(self.incarnation)
        self._loop.kill(self.incarnation)

    def _stall(self, duration_s: float) -> None:
        self._loop.stall(self.incarnation, duration_s)


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
        machine = Machine(self, name, skew_ms=skew_ms, capacity_bytes=capacity_bytes)
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
