"""An exception that nobody foresaw, in a background task of a given name, at a drawn moment.

`fail_task` is a kind of trouble (`fault_plan`): `Sabotage` makes a task of one broker raise
`Unforeseen` where it waits, and then the unit that the task belongs to must fail as designed.
Invariant: every task that brokers start by name is in `UNITS`.
"""

import asyncio
from collections.abc import Callable, Coroutine
from enum import Enum
from typing import TYPE_CHECKING, Any

from suwi.broker.broker import Broker
from suwi.replica.replica_manager import TASK as CHANGE_OF_ROLE
from suwi.sim.checkers import Broken
from suwi.sim.cluster import SimCluster, SimNode
from suwi.sim.incarnation import Incarnation

if TYPE_CHECKING:
    from suwi.sim.fault_plan import FaultPlan

_STRIKES_WITHIN_S = 5.0
"""Within so long the task takes a step, or it is left alone."""
_FOLLOWS_WITHIN_S = 30.0
"""A broker that stops by itself hands its leaders over first, to brokers it may be cut off from."""
_STEP_S = 0.05
_FLUSH = "log flush"


class Unforeseen(RuntimeError):
    """What no handler expects."""


class Unit(Enum):
    """What a task belongs to, and so what its failure must lead to."""

    BROKER = "the broker stops by itself and says why"
    PARTITION = "one partition is out of service until a retry works"
    WORK = "it is counted, and the broker goes on"


UNITS = {
    "broker registration": Unit.BROKER,
    "controller election": Unit.BROKER,
    "high watermark checkpoint": Unit.BROKER,
    _FLUSH: Unit.BROKER,
    "log start offset checkpoint": Unit.BROKER,
    "metadata follower": Unit.BROKER,
    "recovery point checkpoint": Unit.BROKER,
    CHANGE_OF_ROLE: Unit.PARTITION,
    "deferred deletion": Unit.WORK,
    "election after power loss": Unit.WORK,
    "failure detector": Unit.WORK,
    "in-sync set proposals": Unit.WORK,
    "isr shrink": Unit.WORK,
    "log cleaner": Unit.WORK,
    "log preparation": Unit.WORK,
    "log retention": Unit.WORK,
    "log sync": Unit.WORK,
    "loss reports": Unit.WORK,
    "preferred leader election": Unit.WORK,
    "producer expiry": Unit.WORK,
    "replica fetcher": Unit.WORK,
    "retry of failed partitions": Unit.WORK,
}
"""By name of the task. A change of role is part of the metadata follower's work."""


class Sabotage:
    """Sees every task of a cluster's brokers begin, and makes some of them fail when told to."""

    def __init__(self, cluster: SimCluster) -> None:
        self._armed: set[tuple[str, Incarnation | None]] = set()
        cluster.simulation.loop.wrap_task = self._wrap
        cluster.on_birth.append(self._on_birth)

    def arm(self, name: str, victim: Incarnation) -> None:
        """The next step of a task of this name and process raises `Unforeseen`."""
        self._armed.add((name, victim))

    def is_armed(self, name: str, victim: Incarnation) -> bool:
        """Whether it has not failed yet."""
        return (name, victim) in self._armed

    def disarm(self, name: str, victim: Incarnation) -> None:
        self._armed.discard((name, victim))

    def _strikes(self, name: str, owner: Incarnation | None) -> bool:
        if (name, owner) not in self._armed:
            return False
        self._armed.remove((name, owner))
        return True

    def _wrap(self, coroutine: Any, name: str, owner: Incarnation | None) -> Any:
        if name not in UNITS:
            return coroutine
        return _Fragile(coroutine, lambda: self._strikes(name, owner))

    def _on_birth(self, node: SimNode) -> None:
        """A change of role is no task of its own, and does not wait."""
        assert node.broker is not None
        replicas, life = node.broker.replicas, node.machine.incarnation
        apply_state = replicas._apply_state

        def fragile(*given: Any, **named: Any) -> None:
            if self._strikes(CHANGE_OF_ROLE, life):
                raise Unforeseen("nobody thought of this")
            apply_state(*given, **named)

        replicas._apply_state = fragile  # type: ignore[method-assign]


class _Fragile(Coroutine[Any, Any, Any]):
    """A supervised task's coroutine that an exception may be thrown into where its work waits."""

    def __init__(self, inner: Any, strikes: Callable[[], bool]) -> None:
        self._inner = inner
        self._strikes = strikes
        self.__qualname__ = inner.__qualname__

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)  # cr_frame and the like, for those who look where it is.

    def send(self, value: Any) -> Any:
        if self._works() and self._strikes():
            return self._inner.throw(Unforeseen("nobody thought of this"))
        return self._inner.send(value)

    def _works(self) -> bool:
        """Whether it has begun, and is not in the pause before it begins again."""
        waits_for = self._inner.cr_await
        return waits_for is not None and getattr(waits_for, "cr_code", None) is not _SLEEP

    def throw(self, *error: Any) -> Any:
        return self._inner.throw(*error)

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Any:
        return self._inner.__await__()


_SLEEP = asyncio.sleep.__code__


async def fail_task(plan: "FaultPlan") -> None:
    """Of one broker one task fails; the broker is started again if that ended it."""

    async def act(node: SimNode) -> None:
        if not node.in_service.is_set():
            return  # A start that fails is told by `start`.
        name = plan.random.choice(plan.tasks)
        plan.say(f"task {name!r} of {node.name} fails")
        await _fail(plan, name, node)
        if not node.is_running:
            await plan.for_a_while()
            plan.say(f"start {node.name}")
            await plan.start(node)

    await plan.alone(act)


async def _fail(plan: "FaultPlan", name: str, node: SimNode) -> None:
    """Let a task fail, and see what becomes of it. Raises `Broken`."""
    assert node.broker is not None
    expected, life = _Expected(name, node, node.broker), node.machine.incarnation
    sabotage = plan.sabotage
    sabotage.arm(name, life)
    waited_s = 0.0
    while sabotage.is_armed(name, life) and waited_s < _STRIKES_WITHIN_S and not plan.is_healing:
        await asyncio.sleep(_STEP_S)
        waited_s += _STEP_S
    if sabotage.is_armed(name, life):
        sabotage.disarm(name, life)
        return  # There was no such task, or it had nothing to do.
    plan.say(f"task {name!r} of {node.name} has failed")
    for _ in range(int(_FOLLOWS_WITHIN_S / _STEP_S)):
        if expected.is_seen():
            return
        await asyncio.sleep(_STEP_S)
    raise Broken(f"{name!r} of {node.name} failed, and not so: {UNITS[name].value}")


class _Expected:
    """What must follow from the failure of a task of one broker's life."""

    def __init__(self, name: str, node: SimNode, broker: Broker) -> None:
        self._name = name
        self._node = node
        self._broker = broker
        self._ended = len(node.failures)
        self._counted = self._count()
        self._failed = set(broker.replicas.failed)

    def _count(self) -> int:
        # A partition that cannot be compacted is counted by itself.
        uncleanable = (
            len(self._broker.log_cleaner.uncleanable) if self._name == "log cleaner" else 0
        )
        return self._broker.tasks.failures[self._name] + uncleanable

    def is_seen(self) -> bool:
        ended = [failure.task for failure in self._node.failures[self._ended :]]
        is_counted = self._count() > self._counted
        match UNITS[self._name]:
            case Unit.BROKER:
                if self._name == _FLUSH and self._broker.failure is None:
                    return is_counted  # A sync of one partition failed alone.
                return is_counted and ended == [self._name]
            case Unit.PARTITION:
                out_of_service = set(self._broker.replicas.failed) - self._failed
                return is_counted and not ended and len(out_of_service) <= 1
            case Unit.WORK:
                return is_counted and not ended and self._node.is_running
