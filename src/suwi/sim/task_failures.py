"""An exception that nobody foresaw, in a task of a given name, at a chosen moment.

`Sabotage` makes the next step of a matching task raise `Unforeseen` where it waits. `judge` then
says whether the unit that the task belongs to failed as designed: a broker stops by itself with a
reason, a partition fails alone, a task is started again and counted. How brokers are asked for that
is not known here: `Supervision` is the adapter between them and the simulation.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from enum import Enum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Protocol

from suwi.broker.broker import Broker
from suwi.sim.checkers import Broken
from suwi.sim.incarnation import Incarnation
from suwi.sim.loop import SimLoop

if TYPE_CHECKING:
    from suwi.sim.cluster import SimNode
    from suwi.sim.fault_plan import FaultPlan

_FAILS_WITHIN_S = 15.0
"""Within so long a matching task takes a step."""
_FOLLOWS_WITHIN_S = 10.0
_STEP_S = 0.05


class Unforeseen(RuntimeError):
    """What no handler expects."""


class Unit(Enum):
    """What a task belongs to, and so what its failure must lead to."""

    BROKER = "the broker stops by itself, with a reason"
    PARTITION = "one partition fails, and is tried again"
    RESTARTED = "the task is started again, and that is counted"


class Supervision(Protocol):
    """How brokers tell what became of their tasks."""

    @property
    def tasks(self) -> Mapping[str, Unit]:
        """Patterns of the names of all supervised tasks."""

    async def ended(self, broker: Broker) -> str:
        """Return, with the reason, when a broker has stopped by itself."""

    def restarts(self, broker: Broker) -> int:
        """How many tasks were started again."""

    def failed_partitions(self, broker: Broker) -> int:
        """How many partitions have failed so far."""


class Sabotage:
    """Sees every task of a loop begin, and makes one of them fail when told to."""

    def __init__(self, loop: SimLoop) -> None:
        self.failed: str | None = None
        """The name of the task that was made to fail."""
        self._pattern: str | None = None
        self._victim: Incarnation | None = None
        loop.wrap_task = self._wrap

    def arm(self, pattern: str, victim: Incarnation | None = None) -> None:
        """The next step of a task of such a name, of one process or any, raises `Unforeseen`."""
        self._pattern, self._victim, self.failed = pattern, victim, None

    def disarm(self) -> None:
        self._pattern = None

    def strikes(self, name: str, owner: Incarnation | None) -> bool:
        if self._pattern is None or not fnmatchcase(name, self._pattern):
            return False
        if self._victim is not None and owner is not self._victim:
            return False
        self._pattern, self.failed = None, name
        return True

    def _wrap(self, coroutine: Any, name: str, owner: Incarnation | None) -> Any:
        return _Fragile(coroutine, lambda: self.strikes(name, owner))


class _Fragile(Coroutine[Any, Any, Any]):
    """A coroutine that an exception may be thrown into before any step but the first."""

    def __init__(self, inner: Any, strikes: Callable[[], bool]) -> None:
        self._inner = inner
        self._strikes = strikes
        self._has_begun = False
        self.__qualname__ = getattr(inner, "__qualname__", type(inner).__qualname__)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)  # cr_frame and the like, for those who look where it is.

    def send(self, value: Any) -> Any:
        if self._has_begun and self._strikes():
            return self._inner.throw(Unforeseen("nobody thought of this"))
        self._has_begun = True
        return self._inner.send(value)

    def throw(self, *error: Any) -> Any:
        return self._inner.throw(*error)

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Any:
        return self._inner.__await__()


class Judged(Protocol):
    """One process whose task failed, as the judge sees it."""

    @property
    def stopped_because(self) -> str | None:
        """Why it stopped by itself; None while it runs, and where somebody else ended it."""

    @property
    def is_running(self) -> bool: ...

    @property
    def restarts(self) -> int: ...

    @property
    def failed_partitions(self) -> int: ...


async def judge(
    unit: Unit,
    process: Judged,
    fail: Callable[[], Awaitable[str | None]],
    within_s: float = _FOLLOWS_WITHIN_S,
) -> None:
    """Let a task fail (`fail` returns its name) and see what becomes of it. Raises `Broken`."""
    restarts, partitions = process.restarts, process.failed_partitions
    name = await fail()
    if name is None:
        return  # No such task took a step in time.

    def has_followed() -> bool:
        match unit:
            case Unit.BROKER:
                return bool(process.stopped_because)
            case Unit.PARTITION:
                return process.is_running and process.failed_partitions == partitions + 1
            case Unit.RESTARTED:
                return process.is_running and process.restarts == restarts + 1

    for _ in range(int(within_s / _STEP_S)):
        if has_followed():
            break
        await asyncio.sleep(_STEP_S)
    else:
        raise Broken(f"{name} failed, and not so: {unit.value}")
    if unit is not Unit.BROKER and process.failed_partitions > partitions + 1:
        raise Broken(f"{name} failed, and {process.failed_partitions - partitions} partitions did")


class _Node:
    """A broker of a cluster as the judge sees it."""

    def __init__(self, node: "SimNode", supervision: Supervision) -> None:
        self._node = node
        self._supervision = supervision
        self._life = node.machine.incarnation
        assert node.broker is not None
        self._broker = node.broker

    @property
    def stopped_because(self) -> str | None:
        return self._node.stopped_because.get(self._life.name)

    @property
    def is_running(self) -> bool:
        return not self._life.revoked

    @property
    def restarts(self) -> int:
        return self._supervision.restarts(self._broker)

    @property
    def failed_partitions(self) -> int:
        return self._supervision.failed_partitions(self._broker)


async def fail_task(plan: "FaultPlan") -> None:
    """Of one broker one task fails; the broker is started again if that ended it."""
    supervision, sabotage = plan.supervision, plan.sabotage
    if supervision is None or sabotage is None:
        return

    async def act(node: "SimNode") -> None:
        pattern = plan.random.choice(sorted(supervision.tasks))

        async def fail() -> str | None:
            plan.say(f"task {pattern} of {node.name} fails")
            sabotage.arm(pattern, node.machine.incarnation)
            for _ in range(int(_FAILS_WITHIN_S / _STEP_S)):
                if sabotage.failed is not None or plan.is_healing:
                    break
                await asyncio.sleep(_STEP_S)
            sabotage.disarm()
            return sabotage.failed

        await judge(supervision.tasks[pattern], _Node(node, supervision), fail)
        await plan.for_a_while()
        await plan.start(node)

    await plan.alone(act)
