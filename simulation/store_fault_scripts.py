"""Faults of a simulated cluster's metadata store: cut off, expired sessions, late, old answers."""

from simulation.fault_plan import FaultPlan
from suwi.metadata.memory import Faults


async def cut_store(plan: FaultPlan) -> None:
    node = plan.pick()
    if node is None:
        return
    plan.say(f"{node.name} cannot reach the store")
    node.cut_store()
    await plan.for_a_while()
    plan.say(f"{node.name} can reach the store again")
    node.heal_store()


async def expire(plan: FaultPlan) -> None:
    node = plan.pick()
    if node is not None and node.view is not None:
        plan.say(f"the session of {node.name} expires")
        node.view.expire()


async def worsen_store(plan: FaultPlan) -> None:
    """Slow answers, lost answers, stale reads and late notices for all brokers."""
    plan.say("the store is slow and loses answers")
    random = plan.random
    plan.cluster.set_store_faults(
        Faults(
            latency_s=(0.0, random.choice((0.001, 0.05, 0.5))),
            notice_delay_s=(0.0, random.choice((0.01, 0.3, 1.0))),
            read_lag_max=random.choice((0, 2, 8)),
            new_session_lag_max=random.choice((0, 4)),
            unknown_applied_chance=random.choice((0.0, 0.2)),
            unknown_dropped_chance=random.choice((0.0, 0.2)),
        ),
    )
    await plan.for_a_while()
    plan.say("the store is well")
    plan.cluster.set_store_faults(Faults())
