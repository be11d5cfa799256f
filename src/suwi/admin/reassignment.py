"""Moves replicas: away from a broker (`drain`), or to another replication factor.

The targets are computed here, with the rules for new partitions (`metadata/placement.py`). The
controller carries the reassignments out, also if nobody waits for them any more.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from suwi.admin.failure import Failure
from suwi.admin.text import count_text, names_text
from suwi.admin.topic_descriptions import existing_topic
from suwi.client.admin import Admin, Reassignment
from suwi.client.cluster import Cluster, TopicInfo
from suwi.client.retry import Retry
from suwi.metadata.placement import Site, extend
from suwi.model.errors import InvalidReplicationFactor, NotController, UnknownTopicOrPartition
from suwi.model.ids import NodeId, PartitionIndex, TopicPartition

_POLL_S = 0.5

Replicas = dict[TopicPartition, tuple[NodeId, ...]]
Target = tuple[NodeId, ...] | None
Tell = Callable[[str], None]
"""Gets a line whenever there is progress."""


async def drain(cluster: Cluster, node: int, tell: Tell) -> int:
    """Move all replicas away from a broker. Returns how many partitions were moved, when the
    broker has no replicas left."""
    leaving = NodeId(node)
    moved: set[TopicPartition] = set()
    while targets := await plan_drain(cluster, node):
        moved |= targets.keys()
        await move(cluster, targets, tell)
    if not moved and leaving not in cluster.brokers:
        raise Failure(f"there is no broker {node}, and no partition has a replica on it")
    return len(moved)


async def plan_drain(cluster: Cluster, node: int) -> Replicas:
    """The new replicas of every partition that has, or is to get, one on this broker."""
    admin, leaving = Admin(cluster), NodeId(node)
    topics = await cluster.topics()
    placed = {TopicPartition(t.name, p.index): p.replicas for t in topics for p in t.partitions}
    assigned = await _assigned(admin, topics)
    loads = _loads(assigned)
    remaining = [site for site in await _sites(cluster, admin) if site.node != leaving]
    targets: Replicas = {}
    for partition in [tp for tp, nodes in placed.items() if leaving in nodes]:
        replicas = assigned[partition]
        others = [replica for replica in replicas if replica != leaving]
        staying = kept_of_live(others, {site.node for site in remaining}, len(replicas))
        try:
            targets[partition] = extend(remaining, staying, len(replicas), loads)
        except InvalidReplicationFactor:
            lower = (
                f", or lower its replication factor with "
                f"`suwi topics alter {partition.topic} --replication-factor {len(others)}`"
            )
            raise Failure(
                f"{partition} has {count_text(len(replicas), 'replica')}, and too few other "
                f"brokers are running: add a broker{lower if others else ''}"
            ) from None
    return targets


async def plan_move(cluster: Cluster, name: str, index: int, nodes: Sequence[int]) -> Replicas:
    """One partition with these replicas, the preferred leader first."""
    partition = TopicPartition(name, (await existing_topic(cluster, name)).partition(index).index)
    target = tuple(NodeId(node) for node in nodes)
    live = {site.node for site in await _sites(cluster, Admin(cluster))}
    if not target or len(set(target)) < len(target):
        raise Failure("name each broker that is to have a replica once")
    for node in target:
        if node not in live:
            running = ", ".join(map(str, sorted(live)))
            raise Failure(f"broker {node} is not running; running brokers: {running}")
    return {partition: target}


async def plan_cancel(cluster: Cluster, name: str, index: int) -> dict[TopicPartition, Target]:
    """Raises `Failure` if the partition is not being reassigned."""
    partition = TopicPartition(name, PartitionIndex(index))
    if partition not in await Admin(cluster).reassignments():
        raise Failure(f"{partition} is not being reassigned")
    return {partition: None}


async def start_moving(cluster: Cluster, targets: Mapping[TopicPartition, Target]) -> None:
    """Begin reassignments, or cancel them where the target is None. Raises `Failure`."""
    for partition, error in (await Admin(cluster).reassign(targets)).items():
        if error is not None and not isinstance(error, UnknownTopicOrPartition):
            raise Failure(f"{partition}: {error.message}")


def kept_of_live(replicas: Sequence[NodeId], live: Collection[NodeId], factor: int) -> list[NodeId]:
    """The replicas that stay, in their order. A reassignment would wait for one whose broker is not
    live: it stays only if there are fewer live brokers than replicas."""
    away = [node for node in replicas if node not in live][: max(0, factor - len(live))]
    return [node for node in replicas if node in live or node in away]


async def change_replication_factor(
    cluster: Cluster, name: str, factor: int, tell: Tell, *, dry_run: bool
) -> None:
    """Give every partition of a topic this many replicas, and return when it has them."""
    admin = Admin(cluster)
    topic = await existing_topic(cluster, name)
    loads = _loads(await _assigned(admin, await cluster.topics()))
    assigned = await _assigned(admin, [topic])
    sites = await _sites(cluster, admin)
    try:
        targets = {
            tp: extend(
                sites, kept(replicas, topic.partition(tp.partition).isr, factor), factor, loads
            )
            for tp, replicas in assigned.items()
        }
    except InvalidReplicationFactor as error:
        raise Failure(str(error)) from None
    if not dry_run:
        while not await move(cluster, targets, tell):
            pass


def kept(replicas: Sequence[NodeId], isr: Sequence[NodeId], factor: int) -> list[NodeId]:
    """The replicas that stay, in their order. One that is not in sync goes first: its broker may be
    gone, and the reassignment would not end."""
    staying = sorted(replicas, key=lambda node: node not in isr)[:factor]
    return [node for node in replicas if node in staying]


async def _assigned(admin: Admin, topics: Sequence[TopicInfo]) -> Replicas:
    """The replicas that each partition has, or will have when its reassignment is complete."""
    running = await admin.reassignments()
    assigned: Replicas = {}
    for topic in topics:
        for partition in topic.partitions:
            tp = TopicPartition(topic.name, partition.index)
            removing = running[tp].removing_replicas if tp in running else ()
            assigned[tp] = tuple(node for node in partition.replicas if node not in removing)
    return assigned


async def _sites(cluster: Cluster, admin: Admin) -> list[Site]:
    """The brokers that can get replicas; a reassignment to a fenced one would not end."""
    unfenced = (await admin.describe_cluster()).unfenced
    brokers = [broker for broker in cluster.brokers.values() if broker.id in unfenced]
    uses_racks = all(broker.rack for broker in brokers)
    return [
        Site(broker.id, (broker.rack or "") if uses_racks else "", broker.address.host)
        for broker in sorted(brokers, key=lambda broker: broker.id)
    ]


def _loads(assigned: Replicas) -> Counter[NodeId]:
    return Counter(node for replicas in assigned.values() for node in replicas)


async def move(cluster: Cluster, targets: Replicas, tell: Tell) -> bool:
    """Returns True when all reassignments are complete, False if other brokers are live than
    before: there may be better targets then. Tells how many are complete, and which brokers the
    others wait for."""
    await start_moving(cluster, targets)
    tell(f"moving {count_text(len(targets), 'partition')}; Ctrl-C ends this command, not the move")
    _, live = await _progress(cluster)
    left, waiting = list(targets), ""
    while left:
        await asyncio.sleep(_POLL_S)
        running, live_now = await _progress(cluster)
        still = [partition for partition in targets if partition in running]
        if len(still) != len(left):
            tell(f"{len(targets) - len(still)} of {len(targets)} moved")
        left = still
        if left and live_now != live:
            return False
        before, waiting = waiting, _waiting_text(targets, left, live)
        if waiting and waiting != before:
            tell(waiting)
    return True


def _waiting_text(
    targets: Replicas, left: Sequence[TopicPartition], live: Collection[NodeId]
) -> str:
    """The brokers without which these reassignments cannot end."""
    away: dict[NodeId, list[str]] = {}
    for partition in left:
        for node in targets[partition]:
            if node not in live:
                away.setdefault(node, []).append(str(partition))
    return "\n".join(
        f"waiting for broker {node}, which is not running: {names_text(partitions)}"
        for node, partitions in sorted(away.items())
    )


async def _progress(
    cluster: Cluster,
) -> tuple[dict[TopicPartition, Reassignment], frozenset[NodeId]]:
    """What is being reassigned, and the live brokers. The next controller continues the
    reassignments: wait until there is one."""
    retry = Retry(cluster.settings, cluster.random)
    while True:
        try:
            admin = Admin(cluster)
            return await admin.reassignments(), (await admin.describe_cluster()).unfenced
        except (OSError, NotController) as error:
            await retry.pause_or_raise(error)
