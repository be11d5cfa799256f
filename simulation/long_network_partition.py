"""A link that is down for half an hour, while the clients pause.

Idle time costs nothing in virtual time; retries do. So followers that are not affected use a longer
fetch wait (`SETTINGS`).
"""

import asyncio

from simulation.fault_plan import FaultPlan
from simulation.workload import Workload
from suwi.model.ids import NO_NODE
from suwi.sim.cluster import SimNode

DURATION_S = 30 * 60.0
_LOOKS_MAX = 20
SETTINGS = {"replica.fetch.wait.max.ms": "10000"}


async def long_cut(plan: FaultPlan, workload: Workload) -> None:
    """A follower cannot reach its leader: it is refused at once, or gets no response."""
    pair = _leader_and_follower(plan)
    for _ in range(_LOOKS_MAX):
        if pair is not None:
            break
        await asyncio.sleep(1)
        pair = _leader_and_follower(plan)
    else:
        return
    leader, follower = (node.name for node in pair)
    is_refused = plan.random.chance(0.7)
    plan.say(f"{follower} {'is refused by' if is_refused else 'is cut off from'} {leader} for long")
    workload.rest()
    if is_refused:
        plan.network.refuse(follower, leader)
    else:
        plan.network.cut(follower, leader)
    await asyncio.sleep(DURATION_S)
    plan.network.heal(leader, follower)
    plan.say(f"{follower} reaches {leader} again")
    workload.go_on()


def _leader_and_follower(plan: FaultPlan) -> tuple[SimNode, SimNode] | None:
    """Of some partition; neither is the controller if possible, because it would be deposed."""
    found = []
    for state in plan.monitor.world.states.values():
        leader = plan.free(state.leader) if state.leader != NO_NODE else None
        for node in state.replicas:
            follower = plan.free(node) if node != state.leader else None
            if leader is not None and follower is not None:
                found.append((plan.controller() in (leader.id, follower.id), leader, follower))
    if not found:
        return None
    wanted = min(involves for involves, _, _ in found)
    _, leader, follower = plan.random.choice([each for each in found if each[0] == wanted])
    return leader, follower
