"""An unexpected exception in a background task of a given name, at a random moment.

`fail_task` is a kind of fault (`fault_plan`): `TaskFaults` makes a task of one broker raise
`InjectedFailure` at an await, and then the unit that the task belongs to must fail as designed.
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
"""If the task takes no step within this time, no exception is raised in it."""
_FOLLOWS_WITHIN_S = 30.0
"""A broker that stops itself does a controlled shutdown first, perhaps without a connection."""
_STEP_S = 0.05
_FLUSH = "log flush"


class InjectedFailure(RuntimeError):
    """An exception that no handler expects."""


class Unit(Enum):
    """The unit that a task belongs to, and so what must follow from its failure."""

    BROKER = "the broker stops itself and gives the reason"
    PARTITION = "one partition is out of service until a retry succeeds"
    WORK = "it is counted, and the broker continues"


UNITS = {
    "broker registration": Unit.BROKER,
    "controller election": Unit.BROKER,
    "high watermark checkpoint": Unit.BROKER,
    _FLUSH: Unit.BROKER,
    "log start offset checkpoint": Unit.BROKER,
    "metadata follower": Unit.BROKER,
    "recovery point checkpoint": Unit.BROKER,
    CHANGE_OF_ROLE: Unit.PARTITION,
    "coordinator replay": Unit.WORK,
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


class TaskFaults:
    """Wraps every task of a cluster's brokers, and makes those fail that are armed."""

    def __init__(self, cluster: SimCluster) -> None:
        self._armed: set[tuple[str, Incarnation | None]] = set()
        cluster.simulation.loop.wrap_task = self._wrap
        cluster.on_start.append(self._on_start)

    def arm(self, name: str, victim: Incarnation) -> None:
        """The next step of a task of this name and process raises `InjectedFailure`."""
        self._armed.add((name, victim))

    def is_armed(self, name: str, victim: Incarnation) -> bool:
        """Whether it has not failed yet."""
        return (name, victim) in self._armed

    def disarm(self, name: str, victim: Incarnation) -> None:
        self._armed.discard((name, victim))

    def _is_due(self, name: str, owner: Incarnation | None) -> bool:
        if (name, owner) not in self._armed:
            return False
        self._armed.remove((name, owner))
        return True

    def _wrap(self, coroutine: Any, name: str, owner: Incarnation | None) -> Any:
        if name not in UNITS:
            return coroutine
        return _FailingCoroutine(coroutine, lambda: self._is_due(name, owner))

    def _on_start(self, node: SimNode) -> None:
        """A change of role is not a task of its own, and has no await."""
        assert node.broker is not None
        replicas, incarnation = node.broker.replicas, node.machine.incarnation
        apply_state = replicas._apply_state

        def fragile(*given: Any, **named: Any) -> None:
            if self._is_due(CHANGE_OF_ROLE, incarnation):
                raise InjectedFailure("injected")
            apply_state(*given, **named)

        replicas._apply_state = fragile  # type: ignore[method-assign]


class _FailingCoroutine(Coroutine[Any, Any, Any]):
    """A supervised task's coroutine that an exception may be thrown into at an await."""

    def __init__(self, inner: Any, strikes: Callable[[], bool]) -> None:
        self._inner = inner
        self._is_due = strikes
        self.__qualname__ = inner.__qualname__

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)  # cr_frame and the like, for stack traces.

    def send(self, value: Any) -> Any:
        if self._works() and self._is_due():
            return self._inner.throw(InjectedFailure("injected"))
        return self._inner.send(value)

    def _works(self) -> bool:
        """Whether it has started, and is not in the pause before a restart."""
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
    """One task of one broker fails; the broker is started again if that stopped it."""

    async def act(node: SimNode) -> None:
        if not node.in_service.is_set():
            return  # Failed starts are reported by `start`.
        name = plan.random.choice(plan.tasks)
        plan.say(f"task {name!r} of {node.name} fails")
        await _fail(plan, name, node)
        if not node.is_running:
            await plan.for_a_while()
            plan.say(f"start {node.name}")
            await plan.start(node)

    await plan.alone(act)


async def _fail(plan: "FaultPlan", name: str, node: SimNode) -> None:
    """Make a task fail, and wait for what must follow. Raises `Broken`."""
    assert node.broker is not None
    expected, incarnation = _Expected(name, node, node.broker), node.machine.incarnation
    task_faults = plan.task_faults
    task_faults.arm(name, incarnation)
    waited_s = 0.0
    while (
        task_faults.is_armed(name, incarnation)
        and waited_s < _STRIKES_WITHIN_S
        and not plan.is_healing
    ):
        await asyncio.sleep(_STEP_S)
        waited_s += _STEP_S
    if task_faults.is_armed(name, incarnation):
        task_faults.disarm(name, incarnation)
        return  # There was no such task, or it had nothing to do.
    plan.say(f"task {name!r} of {node.name} has failed")
    for _ in range(int(_FOLLOWS_WITHIN_S / _STEP_S)):
        if expected.is_seen():
            return
        await asyncio.sleep(_STEP_S)
    raise Broken(f"{name!r} of {node.name} failed, and this did not follow: {UNITS[name].value}")


class _Expected:
    """What must follow from the failure of a task of one incarnation of a broker."""

    def __init__(self, name: str, node: SimNode, broker: Broker) -> None:
        self._name = name
        self._node = node
        self._broker = broker
        self._ended = len(node.failures)
        self._counted = self._count()
        self._failed = set(broker.replicas.failed)

    def _count(self) -> int:
        # A partition that cannot be compacted has its own counter.
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
                    return is_counted  # Only the sync of one partition failed.
                return is_counted and ended == [self._name]
            case Unit.PARTITION:
                out_of_service = set(self._broker.replicas.failed) - self._failed
                return is_counted and not ended and len(out_of_service) <= 1
            case Unit.WORK:
                return is_counted and not ended and self._node.is_running
