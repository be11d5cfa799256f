"""A background task of a simulated broker fails; its unit must then fail as designed."""

import asyncio

from simulation.fault_plan import FaultPlan
from simulation.task_failures import FLUSH, UNITS, Unit
from suwi.broker.broker import Broker
from suwi.model.ids import TopicPartition
from suwi.replica.log_cleaner import Uncleanable
from suwi.sim.checkers import Broken
from suwi.sim.cluster import SimNode

_STRIKES_WITHIN_S = 5.0
"""If the task takes no step within this time, no exception is raised in it."""
_FOLLOWS_WITHIN_S = 30.0
"""A broker that stops itself does a controlled shutdown first, perhaps without a connection."""
_STEP_S = 0.05


async def fail_task(plan: FaultPlan) -> None:
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


async def _fail(plan: FaultPlan, name: str, node: SimNode) -> None:
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
        self._counted = broker.tasks.failures[name]
        self._uncleanable = self._uncleanable_logs()
        self._failed = set(broker.replicas.failed)

    def _uncleanable_logs(self) -> dict[TopicPartition, Uncleanable]:
        """Partitions that cannot be compacted, which are not failures of the task. One may take the
        place of an earlier one of the same partition, after which its log has changed."""
        if self._name != "log cleaner":
            return {}
        return dict(self._broker.log_manager.log_cleaner.uncleanable)

    def is_seen(self) -> bool:
        ended = [failure.task for failure in self._node.failures[self._ended :]]
        is_counted = self._broker.tasks.failures[self._name] > self._counted or any(
            self._uncleanable.get(tp) != found for tp, found in self._uncleanable_logs().items()
        )
        match UNITS[self._name]:
            case Unit.BROKER:
                if self._name == FLUSH and self._broker.failure is None:
                    return is_counted  # Only the sync of one partition failed.
                return is_counted and ended == [self._name]
            case Unit.PARTITION:
                out_of_service = set(self._broker.replicas.failed) - self._failed
                return is_counted and not ended and len(out_of_service) <= 1
            case Unit.WORK:
                return is_counted and not ended and self._node.is_running
