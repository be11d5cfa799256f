"""Which replicas are missing from the in-sync sets, since when and why.

Who is missing is in the cluster's metadata, also Apache Kafka's. Since when is remembered by each
of Suwi's brokers since its start: the latest time at which any of them saw the replica leave
counts, because a broker that is cut off may remember an earlier absence.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter

from suwi.admin.text import duration_text, time_text
from suwi.client.cluster import Cluster, TopicInfo
from suwi.client.partition_history import MissingReplica, partition_histories
from suwi.model.ids import NodeId


@dataclass(frozen=True, slots=True)
class MissingMember:
    partition: int
    node: int
    since_ms: int | None
    """None: no broker knows."""
    is_exact: bool
    """False: it is missing since then at least."""
    reason: str | None


async def missing_members(cluster: Cluster, topic: TopicInfo) -> list[MissingMember]:
    """Members of the replica sets of a topic that are not in sync, without those that a
    reassignment adds, as far as Suwi's brokers tell which those are."""
    missing = [
        (p.index, node) for p in topic.partitions for node in p.replicas if node not in p.isr
    ]
    if not missing:
        return []
    histories = await partition_histories(cluster, topic.name)
    told: dict[tuple[int, NodeId], list[MissingReplica]] = {}
    for history in histories.values():
        for one in history.missing:
            told.setdefault((one.partition, one.node), []).append(one)
    # The brokers list those that are missing by their newer metadata, unless it is too many.
    is_listed = histories and not any(one.missing_left_off for one in histories.values())
    return [
        _member(index, node, told.get((index, node), ()))
        for index, node in missing
        if (index, node) in told or not is_listed
    ]


def _member(index: int, node: NodeId, told: Iterable[MissingReplica]) -> MissingMember:
    exact = [one for one in told if one.is_exact]
    since = attrgetter("since_ms")
    chosen = max(exact, key=since) if exact else min(told, key=since, default=None)
    if chosen is None:
        return MissingMember(index, node, None, False, None)
    return MissingMember(index, node, chosen.since_ms, bool(exact), chosen.reason)


def missing_text(member: MissingMember, now_ms: int) -> str:
    """`replica 3 is not in sync since 2026-01-31T12:00:00.000Z (5.0 min): the broker is away …`"""
    text = f"replica {member.node} is not in sync"
    if member.since_ms is None:
        return f"{text}; since when is not known"
    # The clocks of the broker and of this machine differ.
    for_ms = max(0, now_ms - member.since_ms)
    bound = "since" if member.is_exact else "since before"
    return f"{text} {bound} {time_text(member.since_ms)} ({duration_text(for_ms)}): {member.reason}"
