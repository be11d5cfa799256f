"""The topics of a cluster."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from suwi.admin.topic_descriptions import summary
from suwi.client.admin import Admin
from suwi.client.cluster import TopicInfo
from suwi.client.offsets import EARLIEST, LATEST, FoundOffset, find_offsets
from suwi.console.clusters import ShownCluster
from suwi.console.page import Part, Query, cut
from suwi.model.ids import TopicPartition


class TopicRow(NamedTuple):
    topic: str
    partition_count: int
    replication_factor: int
    under_replicated: int
    offline: int
    offsets: int | None
    """How many offsets its logs have; None if not all leaders respond. Records, unless some were
    compacted away or are markers of transactions."""
    size_bytes: int | None
    """Of the leaders' logs."""


class Topics(NamedTuple):
    part: Part
    rows: Sequence[TopicRow]
    internal_count: int
    """Internal topics that are left out."""
    command: str


async def read_topics(shown: ShownCluster, query: Query) -> Topics:
    """With `internal=yes` internal topics too. Offsets and sizes are those of the shown topics."""
    topics = await shown.client.topics()
    wanted = topics
    if query.choice("internal", "no", "yes") == "no":
        wanted = [topic for topic in topics if not topic.is_internal]
    part, cut_topics = cut(wanted, query, lambda topic: topic.name)
    return Topics(
        part,
        await _rows(shown, cut_topics),
        len(topics) - len(wanted),
        shown.command("topics list"),
    )


async def _rows(shown: ShownCluster, topics: Sequence[TopicInfo]) -> list[TopicRow]:
    cluster = shown.client
    partitions = {
        TopicPartition(topic.name, partition.index): partition
        for topic in topics
        for partition in topic.partitions
    }
    led = [tp for tp, info in partitions.items() if info.leader in cluster.brokers]
    asked = {topic.name: [p.index for p in topic.partitions] for topic in topics}
    starts, ends, sizes = await asyncio.gather(
        find_offsets(cluster, dict.fromkeys(led, EARLIEST)),
        find_offsets(cluster, dict.fromkeys(led, LATEST)),
        Admin(cluster).replica_sizes(asked),
    )

    def offsets(tp: TopicPartition) -> int | None:
        start, end = starts.get(tp), ends.get(tp)
        if isinstance(start, FoundOffset) and isinstance(end, FoundOffset):
            return end.offset - start.offset
        return None

    def size(tp: TopicPartition) -> int | None:
        leader = partitions[tp].leader
        return next((s.size_bytes for s in sizes.get(tp, ()) if s.node == leader), None)

    rows = []
    for topic in topics:
        own = [TopicPartition(topic.name, partition.index) for partition in topic.partitions]
        about = summary(topic)
        rows.append(
            TopicRow(
                topic.name,
                about.partition_count,
                about.replication_factor,
                sum(len(p.isr) < len(p.replicas) for p in topic.partitions),
                sum(p.leader not in cluster.brokers for p in topic.partitions),
                total([offsets(tp) for tp in own]),
                total([size(tp) for tp in own]),
            )
        )
    return rows


def total(numbers: Sequence[int | None]) -> int | None:
    """None if one is not known."""
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None
