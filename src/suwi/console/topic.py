"""One topic: its partitions by broker, the in-sync sets, who left them and when, the configuration
with its sources. The partitions are paged."""

from collections.abc import Sequence
from typing import NamedTuple

from suwi.admin.missing_members import MissingMember
from suwi.admin.topic_descriptions import PartitionDescription, describe_topics, visible_configs
from suwi.client.admin import ConfigSource
from suwi.client.partition_history import PartitionEvent, partition_histories
from suwi.console.clusters import ShownCluster
from suwi.console.page import Part, Query, cut
from suwi.console.topics import total
from suwi.model.ids import NodeId

_SOURCES: dict[int, str] = {
    ConfigSource.TOPIC: "topic",
    ConfigSource.BROKER: "broker",
    ConfigSource.ALL_BROKERS: "all brokers",
    ConfigSource.FILE: "server.properties",
    ConfigSource.DEFAULT: "default",
}


_EVENTS_MAX = 50
_MISSING_MAX = 50


class ConfigRow(NamedTuple):
    key: str
    value: str | None
    """None if it is sensitive or not set."""
    source: str
    doc: str | None


class Topic(NamedTuple):
    topic: str
    topic_id: str | None
    replication_factor: int
    partition_count: int
    offsets: int | None
    """How many offsets its logs have; None if not all leaders respond."""
    size_bytes: int | None
    at_ms: int
    """When this was read."""
    part: Part
    partitions: Sequence[PartitionDescription]
    missing: Sequence[MissingMember]
    """Who is not in sync, since when and why; the first of `missing_count`."""
    missing_count: int
    changes: Sequence[PartitionEvent]
    """The newest first, as one broker saw them."""
    changes_from: int | None
    """That broker; None if no broker keeps them."""
    configs: Sequence[ConfigRow]
    """The topic's own settings first."""
    command: str
    configs_command: str


async def read_topic(shown: ShownCluster, query: Query) -> Topic:
    name = query.text("topic")
    await shown.client.topic(name, fresh=True)
    (found,) = await describe_topics(shown.client, [name])
    at_ms = shown.clock.now_ms()
    entries = await visible_configs(shown.client, name, docs=True)
    configs = [
        ConfigRow(entry.name, entry.value, _SOURCES.get(entry.source, "unknown"), entry.doc)
        for entry in entries
    ]
    part, partitions = cut(found.partitions, query, lambda partition: str(partition.partition))
    changes_from, changes = await _changes(shown, name)
    return Topic(
        found.topic,
        found.topic_id,
        found.replication_factor,
        found.partition_count,
        total([_offsets(partition) for partition in found.partitions]),
        total([partition.size_bytes for partition in found.partitions]),
        at_ms,
        part,
        partitions,
        found.missing[:_MISSING_MAX],
        len(found.missing),
        changes,
        changes_from,
        sorted(configs, key=lambda config: (config.source != "topic", config.key)),
        shown.command("topics describe", name),
        shown.command("configs describe topic", name, options=["--all"]),
    )


async def _changes(shown: ShownCluster, topic: str) -> tuple[int | None, Sequence[PartitionEvent]]:
    """From the broker that saw the last one, or that remembers longest."""
    histories = await partition_histories(shown.client, topic, events_max=_EVENTS_MAX)
    if not histories:
        return None, []

    def rank(node: int) -> tuple[int, int]:
        history = histories[NodeId(node)]
        return max((e.at_ms for e in history.events), default=0), -history.complete_from_ms

    node = max(histories, key=rank)
    return node, histories[node].events


def _offsets(partition: PartitionDescription) -> int | None:
    if partition.start_offset is None or partition.end_offset is None:
        return None
    return partition.end_offset - partition.start_offset
