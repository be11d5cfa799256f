"""A computer with a name, a drive, a clock and at most one process.

It is in a simulation (`Simulation.machine`), or in the test kit on a real event loop with real
files. `start` starts a process and returns its `Env`, `spawn` runs coroutines in it, `kill` and
`power_off` end it.
Invariant: an ended process changes nothing: its calls raise `Revoked`, its tasks are unwound.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol

from typing_extensions import TypeVar

from suwi.env import Clock, Disk, Env, Random
from suwi.sim.disk import SimDisk
from suwi.sim.incarnation import Incarnation, current
from suwi.sim.network import SimNetwork

_T = TypeVar("_T")
_D = TypeVar("_D", bound=Disk, default=SimDisk)
_D_co = TypeVar("_D_co", bound=Disk, covariant=True)


class ProcessLoop(Protocol):
    """What machines need of the event loop that runs their processes."""

    @property
    def network(self) -> SimNetwork: ...

    def create_task(
        self, coro: Coroutine[Any, Any, _T], *, name: str | None, context: Context
    ) -> asyncio.Task[_T]: ...

    def kill(self, incarnation: Incarnation) -> None: ...

    def freeze(self, incarnation: Incarnation) -> None: ...

    def thaw(self, incarnation: Incarnation) -> None: ...


class Drive(Protocol[_D_co]):
    """The hardware: it persists over processes and boots of its machine."""

    def disk(self, incarnation: Incarnation) -> _D_co:
        """The access of the next process; that of the last one has ended."""

    def lose_power(self, *, tear: bool) -> None: ...


@dataclass(eq=False, repr=False)
class Machine(Generic[_D]):
    _loop: ProcessLoop
    name: str
    _drive: Drive[_D]
    clock: Clock
    _random: Callable[[int], Random]
    """Gives the randomness of the n-th process."""
    _starts: int = 0
    _process: Incarnation | None = None
    _context: Context = field(default_factory=Context)

    def __post_init__(self) -> None:
        self._prepare_next()
        self._loop.network.add_host(self.name)

    @property
    def is_running(self) -> bool:
        return self._process is not None and not self._process.revoked

    @property
    def incarnation(self) -> Incarnation:
        """The incarnation that runs, or ran last."""
        assert self._process is not None, f"{self.name} was never started"
        return self._process

    @property
    def disk(self) -> _D:
        """The disk of the running process, or of the next one."""
        if self._next.revoked:
            self._prepare_next()
        return self._disk

    def start(self) -> Env:
        """Start a process; switches the machine on if necessary."""
        assert not self.is_running, f"{self.name} is running already"
        disk = self.disk
        self._process = process = self._next
        self._context = copy_context()
        self._context.run(current.set, process)
        process.on_revoke(self._end_process)
        self._loop.network.power_on(self.name)
        return Env(clock=self.clock, disk=disk, random=self._random(self._starts))

    def spawn(
        self, coroutine: Coroutine[Any, Any, _T], *, name: str | None = None
    ) -> asyncio.Task[_T]:
        """Run a coroutine in the process, on this machine."""
        self.incarnation.check()
        return self._loop.create_task(coroutine, name=name, context=self._context.copy())

    def call(self, function: Callable[..., _T], *args: Any) -> _T:
        self.incarnation.check()
        return self._context.copy().run(function, *args)

    def kill(self) -> None:
        """SIGKILL. Peers see their connections end; written bytes stay."""
        self.incarnation.revoke()

    def power_off(self, *, tear: bool = True) -> None:
        """The machine loses power. Peers see nothing; bytes that were not synced may be lost."""
        self._loop.network.power_off(self.name)
        if self._process is not None:
            self._process.revoke()
        self._drive.lose_power(tear=tear)
        self._prepare_next()

    def freeze(self) -> None:
        """The process is stopped (SIGSTOP) until `thaw`."""
        self._loop.freeze(self.incarnation)

    def thaw(self) -> None:
        self._loop.thaw(self.incarnation)

    def _prepare_next(self) -> None:
        self._starts += 1
        self._next = Incarnation(self.name, self._starts)
        self._disk = self._drive.disk(self._next)

    def _end_process(self) -> None:
        # Connections first: `finally` blocks must not reach any peer.
        self._loop.network.kill(self.incarnation)
        self._loop.kill(self.incarnation)
