"""Changes of leaders and replicas: preferred leaders, moves, drains; what is being reassigned.

The controller carries reassignments out; the page shows how far each is, and one can be cancelled.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from suwi.admin.failure import Failure
from suwi.admin.reassignment import Replicas, plan_cancel, plan_drain, plan_move, start_moving
from suwi.admin.text import count_text
from suwi.admin.topic_changes import elect_preferred_leaders, plan_preferred_leaders
from suwi.client.admin import Admin
from suwi.console.change import Plan, PlanRow, all_done
from suwi.console.clusters import ShownCluster
from suwi.console.page import Query
from suwi.model.ids import NodeId


class PreferredLeaders(NamedTuple):
    topic: str | None
    """None: of all topics."""


async def elect_leaders(shown: ShownCluster, asked: PreferredLeaders) -> Plan:
    names = [] if asked.topic is None else [asked.topic]
    changes = await plan_preferred_leaders(shown.client, names)
    return Plan(
        shown.command("topics elect", *names),
        lambda: all_done(elect_preferred_leaders(shown.client, changes)),
        f"elected the preferred leaders of {count_text(len(changes), 'partition')}",
        [
            PlanRow(f"{tp}: leader", "none" if now < 0 else str(now), str(then))
            for tp, now, then, _ in changes
        ],
        [
            f"{tp}: broker {then} is not in sync"
            for tp, _, then, can_lead in changes
            if not can_lead
        ],
    )


class ReplicaMove(NamedTuple):
    topic: str
    partition: int
    replicas: Sequence[int]
    """The preferred leader first."""


async def move_replicas(shown: ShownCluster, asked: ReplicaMove) -> Plan:
    targets = await plan_move(shown.client, *asked)
    to = ",".join(map(str, asked.replicas))
    command = shown.command("topics move", asked.topic, asked.partition, options=["--to", to])
    return await _moves(shown, targets, command)


class BrokerDrain(NamedTuple):
    broker: int


async def drain_broker(shown: ShownCluster, asked: BrokerDrain) -> Plan:
    targets = await plan_drain(shown.client, asked.broker)
    if not targets:
        raise Failure(f"no partition has a replica on broker {asked.broker}")
    return await _moves(shown, targets, shown.command("cluster drain", asked.broker))


async def _moves(shown: ShownCluster, targets: Replicas, command: str) -> Plan:
    names = sorted({tp.topic for tp in targets})
    await shown.client.refresh(names)
    topics = {name: await shown.client.topic(name) for name in names}
    rows = [
        PlanRow(str(tp), _text(topics[tp.topic].partition(tp.partition).replicas), _text(target))
        for tp, target in sorted(targets.items())
    ]
    done = f"moving {count_text(len(targets), 'partition')}"
    move = partial(start_moving, shown.client, targets)
    return Plan(command, move, done, rows, is_exact=True)


def _text(nodes: Sequence[NodeId]) -> str:
    return ", ".join(map(str, nodes))


class OldReassignment(NamedTuple):
    topic: str
    partition: int


async def cancel_reassignment(shown: ShownCluster, asked: OldReassignment) -> Plan:
    targets = await plan_cancel(shown.client, *asked)
    command = shown.command("topics move", *asked, options=["--cancel"])
    return Plan(command, partial(start_moving, shown.client, targets), "cancelled")


# -- progress --------------------------------------------------------------------------------------


class ReassignmentRow(NamedTuple):
    topic: str
    partition: int
    adding: Sequence[int]
    removing: Sequence[int]
    copied_bytes: int
    """Of the adding replica with the least, as far as its broker responds."""
    size_bytes: int
    """Of the largest replica."""


class Reassignments(NamedTuple):
    rows: Sequence[ReassignmentRow]


async def read_reassignments(shown: ShownCluster, _: Query) -> Reassignments:
    admin = Admin(shown.client)
    running = await admin.reassignments()
    asked: dict[str, list[int]] = {}
    for topic, index in running:
        asked.setdefault(topic, []).append(index)
    sizes = await admin.replica_sizes(asked) if asked else {}
    rows = []
    for tp, found in sorted(running.items()):
        adding, removing = found.adding_replicas, found.removing_replicas
        by_node = {size.node: size.size_bytes for size in sizes.get(tp, ())}
        copied = min((by_node.get(node, 0) for node in adding), default=0)
        size_bytes = max(by_node.values(), default=0)
        rows.append(ReassignmentRow(*tp, adding, removing, copied, size_bytes))
    return Reassignments(rows)
