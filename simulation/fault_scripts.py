"""Faults of several steps, for states that single faults reach only in thousands of runs.

Each is aimed at a partition in its current state, and skips what does not apply. They are kinds of
faults like the others (`fault_kinds`).
"""

import errno
from collections.abc import Callable

from simulation.fault_plan import FaultPlan
from simulation.topic_churn import CHURNED
from suwi.metadata.image import PartitionState
from suwi.model.ids import NO_NODE, NodeId, TopicPartition
from suwi.sim.checkers.facts import LogId
from suwi.sim.cluster import DATA, SimNode
from suwi.sim.faults import Operation

_STEP_S = 0.02


async def double_failover(plan: FaultPlan) -> None:
    """Two quick fail-overs, with a replica in between that nobody fetches from (hazard 3)."""
    chosen = choose_partition(plan)
    if chosen is None or len(chosen.followers) < 2:
        return
    leader, middle, last = chosen.leader, *chosen.followers[:2]
    with plan.taking(leader, middle):
        plan.say(f"double failover of {chosen.log}: {leader.name}, {middle.name}, {last.name}")
        plan.network.partition([middle.name], [leader.name, last.name])
        await plan.pause(plan.random.uniform(0, 1))
        leader.kill()
        if await until(plan, lambda: chosen.now().leader == middle.id, 2 * plan.session_s):
            await plan.pause(plan.random.uniform(0, 1))
            if middle.is_running:
                middle.kill()
            await until(plan, lambda: chosen.now().leader == last.id, 2 * plan.session_s)
            await plan.pause(plan.random.uniform(0, 1))
        plan.network.heal(middle.name, leader.name)
        plan.network.heal(middle.name, last.name)
        plan.say(f"end of the double failover of {chosen.log}")
        await plan.start(middle)
        await plan.start(leader)


async def unclean_rejoin(plan: FaultPlan) -> None:
    """A follower that has caught up loses power while its leader proposes it for the ISR, and comes
    back without its last records (hazard 10)."""
    chosen = choose_partition(plan)
    controller = plan.controller()
    if chosen is None or controller in (None, chosen.leader.id, chosen.followers[0].id):
        return
    leader, follower = chosen.leader, chosen.followers[0]
    controller_name = f"b{controller}"
    with plan.taking(follower):
        plan.say(
            f"unclean rejoin of {follower.name} as a follower of {leader.name} in {chosen.log}"
        )
        follower.kill()
        await until(plan, lambda: follower.id not in chosen.now().isr, 2 * plan.session_s)
        plan.network.partition([leader.name], [controller_name])
        await plan.start(follower)
        await until(plan, lambda: _has_caught_up(plan, chosen), plan.session_s)
        if follower.is_running and plan.may_lose_power(follower):
            plan.lose_power_of(follower)
            plan.network.cut(leader.name, follower.name)
            await plan.start(follower)
            await plan.pause(plan.random.uniform(0, 0.5))
        plan.network.heal(leader.name, controller_name)
        await plan.pause(plan.random.uniform(0, 1))
        plan.network.heal(leader.name, follower.name)
        plan.say(f"end of the unclean rejoin of {follower.name}")
        await plan.start(follower)


async def fail_deletion(plan: FaultPlan) -> None:
    """The directory of a topic that is being deleted cannot be renamed, or not even read, and
    the broker continues."""
    states = plan.monitor.world.states
    log = next((log for log in states if log.name.topic == CHURNED), None)
    nodes = [plan.free(node) for node in states[log].replicas] if log is not None else []
    running = [node for node in nodes if node is not None]
    if log is None or not running:
        await plan.pause(_STEP_S)
        return
    node = plan.random.choice(running)
    operation: Operation = plan.random.choice(("rename", "stat"))
    plan.say(f"the deletion of {log} fails on {node.name} in a {operation}")
    faults = node.machine.disk.faults
    planned = faults.fail(operation, errno.EIO, path=f"{DATA}/{log}*", times=None)
    await until(plan, lambda: log not in states, 2 * plan.session_s)
    await plan.pause(0.1)
    faults.remove(planned)
    plan.say(f"end of the deletion of {log}")


class ChosenPartition:
    """A partition whose replicas all run and are in sync: its leader and its followers."""

    def __init__(self, plan: FaultPlan, log: LogId, nodes: list[SimNode]) -> None:
        self.log = log
        self.leader, *self.followers = nodes
        self._plan = plan
        self._last = plan.monitor.world.states[log]

    def now(self) -> PartitionState:
        self._last = self._plan.monitor.world.states.get(self.log, self._last)
        return self._last


def choose_partition(
    plan: FaultPlan, is_wanted: Callable[[TopicPartition], bool] = lambda _: True
) -> ChosenPartition | None:
    found = []
    for log, state in plan.monitor.world.states.items():
        if not is_wanted(log.name):
            continue
        order = [state.leader, *(node for node in state.replicas if node != state.leader)]
        if state.leader != NO_NODE and set(state.isr) == set(state.replicas) and len(order) > 1:
            nodes = [plan.free(node) for node in order]
            if all(node is not None for node in nodes):
                found.append((log, [node for node in nodes if node is not None]))
    return ChosenPartition(plan, *plan.random.choice(found)) if found else None


def _has_caught_up(plan: FaultPlan, chosen: ChosenPartition) -> bool:
    ends = [_end(plan, node.id, chosen.log) for node in (chosen.leader, chosen.followers[0])]
    return chosen.followers[0].in_service.is_set() and ends[0] == ends[1]


def _end(plan: FaultPlan, node: NodeId, log: LogId) -> int:
    replica = plan.monitor.world.replica(node, log)
    return replica.end if replica is not None and replica.is_live else -1


async def until(plan: FaultPlan, condition: Callable[[], bool], limit_s: float) -> bool:
    """Wait for something, not too long; returns whether it happened."""
    for _ in range(int(limit_s / _STEP_S)):
        if condition():
            return True
        if plan.is_healing:
            return False
        await plan.pause(_STEP_S)
    return condition()
