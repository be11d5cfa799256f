"""Moves replicas: `suwi cluster drain` and `suwi topics alter --replication-factor`.

The targets are computed here, with the rules for new partitions (`controller/placement.py`); the
controller carries them out, also if this command ends before that.
"""

import asyncio
from collections.abc import Mapping, Sequence

from suwi.cli.options import Target
from suwi.cli.output import Failure, count_text, document, say
from suwi.cli.session import existing_topic, run
from suwi.client.admin import Admin, Reassignment
from suwi.client.cluster import Cluster
from suwi.client.retry import Retry
from suwi.client.topology import TopicInfo
from suwi.controller.placement import Site, extend
from suwi.model.errors import (
    InvalidReplicationFactor,
    NotController,
    UnknownTopicOrPartition,
)
from suwi.model.ids import NodeId, TopicPartition

_POLL_S = 0.5

Replicas = dict[TopicPartition, tuple[NodeId, ...]]


def drain(target: Target, node: int, *, json: bool) -> None:
    """Move all replicas away from a broker, and return when they are gone."""

    async def work(cluster: Cluster) -> None:
        admin = Admin(cluster)
        leaving, moved = NodeId(node), 0
        while targets := await _without(cluster, admin, leaving):
            moved += len(targets)
            await move(cluster, targets, quiet=json)
        if not moved and leaving not in cluster.brokers:
            raise Failure(f"there is no broker {node}, and no partition has a replica on it")
        if json:
            document({"broker": node, "partitions_moved": moved})
        else:
            say(f"broker {node} has no replicas left: it can be switched off")

    run(target, work)


async def _without(cluster: Cluster, admin: Admin, leaving: NodeId) -> Replicas:
    """New replicas for every partition that has, or is to get, one on this broker."""
    assigned = await _assigned(admin, await cluster.topics())
    loads = _loads(assigned)
    remaining = [site for site in await _sites(cluster, admin) if site.node != leaving]
    targets: Replicas = {}
    for partition, replicas in assigned.items():
        if leaving not in replicas:
            continue
        kept = [replica for replica in replicas if replica != leaving]
        try:
            targets[partition] = extend(remaining, kept, len(replicas), loads)
        except InvalidReplicationFactor:
            raise Failure(
                f"{partition} has {len(replicas)} replicas, and too few other brokers are "
                f"running: add a broker, or lower its replication factor with "
                f"`suwi topics alter {partition.topic} --replication-factor {len(kept)}`"
            ) from None
    return targets


async def change_replication_factor(
    cluster: Cluster, name: str, factor: int, *, dry_run: bool, quiet: bool
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
                sites,
                kept(replicas, topic.partition(tp.partition).isr, factor),
                factor,
                loads,
            )
            for tp, replicas in assigned.items()
        }
    except InvalidReplicationFactor as error:
        raise Failure(str(error)) from None
    if not dry_run:
        await move(cluster, targets, quiet=quiet)


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


def _loads(assigned: Mapping[TopicPartition, Sequence[NodeId]]) -> dict[NodeId, int]:
    loads: dict[NodeId, int] = {}
    for replicas in assigned.values():
        for node in replicas:
            loads[node] = loads.get(node, 0) + 1
    return loads


async def move(cluster: Cluster, targets: Replicas, *, quiet: bool) -> None:
    """Returns when all reassignments are complete; shows how many are."""
    results = await Admin(cluster).reassign(targets)
    for partition, error in results.items():
        if error is not None and not isinstance(error, UnknownTopicOrPartition):
            raise Failure(f"{partition}: {error.message}")
    left = len(targets)
    if not quiet:
        say(f"moving {count_text(left, 'partition')}; Ctrl-C ends this command, not the move")
    while left:
        await asyncio.sleep(_POLL_S)
        running = await _running(cluster)
        now = sum(partition in running for partition in targets)
        if now != left and not quiet:
            say(f"{len(targets) - now} of {len(targets)} moved")
        left = now


async def _running(cluster: Cluster) -> dict[TopicPartition, Reassignment]:
    """The next controller continues the reassignments: wait until there is one."""
    retry = Retry(cluster.settings, cluster.random)
    while True:
        try:
            return await Admin(cluster).reassignments()
        except (OSError, NotController) as error:
            await retry.pause_or_raise(error)
