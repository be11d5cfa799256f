"""Faults of a simulated cluster's network: links that are cut, refused, reset or slow."""

from collections.abc import Callable

from simulation.fault_plan import FaultPlan


async def _between_two(
    plan: FaultPlan, disturb: Callable[[str, str], None], begins: str, back: str, ends: str
) -> None:
    """Disturb the link between two brokers for a while, in one direction or both."""
    names = [node.name for node in plan.cluster.nodes.values()]
    plan.random.shuffle(names)
    one, other = names[:2]
    both = plan.random.chance(0.5)
    plan.say(begins.format(one, other) + back * both)
    disturb(one, other)
    if both:
        disturb(other, one)
    await plan.for_a_while()
    plan.say(ends.format(one, other))
    plan.network.heal(one, other)


async def cut(plan: FaultPlan) -> None:
    """Cut the link between two brokers, in one direction or both."""
    await _between_two(plan, plan.network.cut, "cut {} -> {}", " and back", "mend {} - {}")


async def isolate(plan: FaultPlan) -> None:
    """Cut one broker off from the others; in some runs also from clients and the store."""
    node = plan.pick()
    if node is None:
        return
    others = [other.name for other in plan.cluster.nodes.values() if other is not node]
    with_clients = plan.random.chance(0.3)
    with_store = plan.random.chance(0.3)
    plan.say(f"isolate {node.name}{' from clients' * with_clients}{' and the store' * with_store}")
    plan.network.partition([node.name], [*others, *(plan.clients if with_clients else [])])
    if with_store:
        node.cut_store()
    await plan.for_a_while()
    plan.say(f"mend {node.name}")
    if with_store:
        node.heal_store()
    for other in [*others, *plan.clients]:
        plan.network.heal(node.name, other)


async def refuse(plan: FaultPlan) -> None:
    """A firewall between two brokers that answers with a reset, in one direction or both."""
    refuse, back, ends = plan.network.refuse, " and the other way", "{} and {} may talk again"
    await _between_two(plan, refuse, "{} is refused by {}", back, ends)


async def reset(plan: FaultPlan) -> None:
    node = plan.pick()
    if node is not None:
        plan.say(f"reset connections of {node.name}")
        plan.network.reset(node.name)


async def slow(plan: FaultPlan) -> None:
    node = plan.pick()
    if node is None:
        return
    delay_ms = plan.random.choice((20, 200, 2000))
    plan.say(f"slow {node.name} by {delay_ms} ms")
    plan.network.slow(node.name, delay_ms)
    await plan.for_a_while()
    plan.say(f"{node.name} is fast again")
    plan.network.slow(node.name, 0)
