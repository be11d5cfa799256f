"""Faults that lead to a mechanism which the drawn kinds reach seldom.

They are not among the kinds that every run draws: a run has them if its pair of mechanisms needs
them (`mechanisms`). Like other scripts of several steps, each skips what does not apply.
"""

from collections.abc import Sequence

from simulation.fault_plan import UNCLEAN_ELECTION, FaultPlan
from simulation.fault_scripts import ChosenPartition, choose_partition, until
from simulation.group_workload import GROUP, SESSION_S
from simulation.side_topic import SIDE_TOPIC
from suwi.model.ids import NO_NODE, TopicPartition
from suwi.sim.cluster import SimNode

_CHOICE_TRIES = 12
_CHOICE_PAUSE_S = 0.25


async def depose_controller(plan: FaultPlan) -> None:
    """The session of the active controller ends."""
    controller = plan.controller()
    node = plan.cluster.nodes[controller] if controller is not None else None
    if node is not None and node.is_running and node.view is not None:
        plan.say(f"the session of {node.name}, the controller, expires")
        node.view.expire()


async def depose_leader(plan: FaultPlan) -> None:
    """A leader is cut off from the others and the store, not from clients: what it appends until it
    notices is truncated later."""
    chosen = choose_partition(plan)
    if chosen is None:
        return
    leader = chosen.leader
    others = [node.name for node in plan.cluster.nodes.values() if node is not leader]
    plan.say(f"{leader.name}, the leader of {chosen.log}, is alone")
    plan.network.partition([leader.name], others)
    leader.cut_store()
    await until(plan, lambda: chosen.now().leader != leader.id, 3 * plan.session_s)
    await plan.pause(plan.random.uniform(0, 0.5))
    plan.say(f"{leader.name} is back")
    leader.heal_store()
    for other in others:
        plan.network.heal(leader.name, other)


async def store_outage(plan: FaultPlan) -> None:
    """No broker reaches the store, which ends no session meanwhile."""
    plan.say("the store is away")
    plan.cluster.begin_store_outage()
    await plan.for_a_while()
    plan.say("the store is back")
    plan.cluster.end_store_outage()


async def too_few_in_sync(plan: FaultPlan) -> None:
    """Followers end or pause until a partition refuses writes."""
    await _thin_out(plan, choose_partition(plan), plan.random.uniform(0.5, 2 * plan.session_s))


async def coordinator_waits(plan: FaultPlan) -> None:
    """As `too_few_in_sync`, of a group's coordinator, for longer than the sessions of members."""
    broker = next(iter(plan.cluster.nodes.values())).broker
    assert broker is not None
    if not broker.groups.runtime.partitions:
        return  # Nobody has asked for a coordinator yet.
    partition = broker.groups.runtime.partition_of(GROUP)
    chosen = choose_partition(plan, lambda each: each == partition)
    await _thin_out(plan, chosen, plan.random.uniform(SESSION_S, 3 * SESSION_S))


async def _thin_out(plan: FaultPlan, chosen: ChosenPartition | None, hold_s: float) -> None:
    if chosen is None:
        return
    needed = min(_min_insync(plan, chosen), chosen.now().replication_factor)
    away = chosen.followers[: max(1, len(chosen.followers) + 2 - needed)]
    with plan.taking(*away):
        plan.say(f"too few replicas of {chosen.log} will be in sync")
        if plan.random.chance(0.5):
            for node in away:
                node.freeze()
            await _until_out(plan, chosen, away, hold_s)
            for node in away:
                plan.say(f"thaw {node.name}")
                node.thaw(plan.random.uniform(0, 0.5))
        else:
            for node in away:
                node.kill()
            await _until_out(plan, chosen, away, hold_s)
            for node in away:
                plan.say(f"start {node.name}")
                await plan.start(node)


async def _until_out(
    plan: FaultPlan, chosen: ChosenPartition, away: Sequence[SimNode], hold_s: float
) -> None:
    out = {node.id for node in away}
    await until(plan, lambda: out.isdisjoint(chosen.now().isr), 3 * plan.session_s)
    await plan.pause(hold_s)


def _min_insync(plan: FaultPlan, chosen: ChosenPartition) -> int:
    return plan.monitor.world.rules_of(chosen.log).min_insync_replicas


async def fill_disk_of_a_leader(plan: FaultPlan) -> None:
    states = plan.monitor.world.states
    leaders = [(log, state.leader) for log, state in states.items() if state.leader != NO_NODE]
    if not leaders:
        return
    log, leader = plan.random.choice(leaders)
    node = plan.free(leader)
    if node is None:
        return
    plan.say(f"disk of {node.name}, the leader of {log}, is full")
    disk = node.machine.disk
    disk.fill(plan.random.below(200))
    await plan.pause(plan.random.uniform(0.5, 2 * plan.session_s))
    plan.say(f"disk of {node.name} has space again")
    disk.free()


def _is_of_side_topic(partition: TopicPartition) -> bool:
    return partition.topic == SIDE_TOPIC


async def unclean_election(plan: FaultPlan) -> None:
    """The only replica that is back when its leader is gone was not in sync."""
    chosen = choose_partition(plan, _is_of_side_topic)
    for _ in range(_CHOICE_TRIES):
        if chosen is not None or plan.is_healing:
            break
        await plan.pause(_CHOICE_PAUSE_S)
        chosen = choose_partition(plan, _is_of_side_topic)
    if chosen is None or len(chosen.followers) < 2:
        return
    behind, *in_sync = chosen.followers[0], *chosen.followers[1:], chosen.leader
    with plan.taking(*in_sync):
        with plan.taking(behind):
            plan.say(f"unclean election of {behind.name} in {chosen.log}")
            behind.kill()
            await until(plan, lambda: behind.id not in chosen.now().isr, 2 * plan.session_s)
            await plan.pause(plan.random.uniform(0.2, 1))
            for node in in_sync:
                if node.is_running:
                    node.kill()
            await plan.start(behind)
            await until(plan, lambda: chosen.now().leader == behind.id, 3 * plan.session_s)
        plan.meet(UNCLEAN_ELECTION)  # While it leads alone.
        await plan.pause(plan.random.uniform(0, 2))
        plan.say(f"end of the unclean election in {chosen.log}")
        for node in in_sync:
            await plan.start(node)
