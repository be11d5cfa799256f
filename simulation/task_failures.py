"""An unexpected exception in a background task of a given name, at a random moment.

`TaskFaults` makes a task of one broker raise `InjectedFailure` at an await; `task_fault_scripts`
then expects the unit that the task belongs to to fail as designed.
Invariant: every task that brokers start by name is in `UNITS`.
"""

import asyncio
from collections.abc import Callable, Coroutine
from enum import Enum
from typing import Any

from suwi.replica.replica_manager import TASK as CHANGE_OF_ROLE
from suwi.sim.cluster import SimCluster, SimNode
from suwi.sim.incarnation import Incarnation

FLUSH = "log flush"


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
    FLUSH: Unit.BROKER,
    "log start offset checkpoint": Unit.BROKER,
    "metadata follower": Unit.BROKER,
    "recovery point checkpoint": Unit.BROKER,
    CHANGE_OF_ROLE: Unit.PARTITION,
    "check of suspect batches": Unit.WORK,
    "coordinator replay": Unit.WORK,
    "damaged replicas": Unit.WORK,
    "deferred deletion": Unit.WORK,
    "election after power loss": Unit.WORK,
    "failure detector": Unit.WORK,
    "in-sync set proposals": Unit.WORK,
    "isr shrink": Unit.WORK,
    "log cleaner": Unit.WORK,
    "log preparation": Unit.WORK,
    "log retention": Unit.WORK,
    "log scrubber": Unit.WORK,
    "problem watch": Unit.WORK,
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
