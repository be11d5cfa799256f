"""Topics as they are: settings, leaders, offsets and sizes, and the state of each replica."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from suwi.admin.failure import Failure
from suwi.admin.missing_members import MissingMember, missing_members
from suwi.client.admin import Admin, ConfigEntry, ConfigSource, ReplicaSize, Resource, ResourceType
from suwi.client.cluster import Cluster, PartitionInfo, TopicInfo
from suwi.client.offsets import EARLIEST, LATEST, FoundOffset, find_offsets
from suwi.client.replicas import PartitionReplicas, describe_replicas
from suwi.log.checkpoints import topic_id_text
from suwi.model.config_kinds import did_you_mean
from suwi.model.errors import BrokerError, UnknownTopicOrPartition
from suwi.model.ids import NO_NODE, NO_TOPIC_ID, NodeId, TopicPartition

_STATE_KEYS = (
    "node role leader leader_epoch epochs log_start last_stable high_watermark log_end "
    "recovery_point problem"
).split()


class TopicSummary(NamedTuple):
    topic: str
    topic_id: str | None
    partition_count: int
    replication_factor: int
    is_internal: bool


class PartitionDescription(NamedTuple):
    partition: int
    leader: int | None
    leader_epoch: int
    replicas: Sequence[int]
    isr: Sequence[int]
    offline_replicas: Sequence[int]
    start_offset: int | None
    end_offset: int | None
    size_bytes: int | None
    """On the leader."""
    problem: str | None


class TopicDescription(NamedTuple):
    topic: str
    topic_id: str | None
    partition_count: int
    replication_factor: int
    is_internal: bool
    configs: Mapping[str, str | None]
    """The topic's own settings."""
    partitions: Sequence[PartitionDescription]
    missing: Sequence[MissingMember]
    """Replicas that are not in sync; empty also where they were not asked for."""


class ReplicaDescriptions(NamedTuple):
    """The replicas of one partition, each with what its broker reports."""

    topic: str
    topic_id: str | None
    partition: int
    leader: int | None
    leader_epoch: int
    isr: Sequence[int]
    isr_proposed: Sequence[int] | None
    replicas: Sequence[Mapping[str, Any]]


# -- finding topics --------------------------------------------------------------------------------


async def existing_topic(cluster: Cluster, name: str) -> TopicInfo:
    """The topic; if it does not exist, the failure suggests a similar name."""
    try:
        return await cluster.topic(name)
    except UnknownTopicOrPartition:
        names = [topic.name for topic in await cluster.topics()]
        raise Failure(unknown_topic(name, names)) from None


def unknown_topic(name: str, names: list[str], *, can_create: bool = True) -> str:
    hint = did_you_mean(name, names)
    if not hint and can_create:
        hint = f"; `suwi topics create {name}` creates it"
    return f"topic {name!r} does not exist{hint}"


async def _topics(cluster: Cluster, names: Iterable[str]) -> list[TopicInfo]:
    """The named topics; without names all topics that are not internal."""
    if names:
        return [await existing_topic(cluster, name) for name in dict.fromkeys(names)]
    return [topic for topic in await cluster.topics() if not topic.is_internal]


def summary(topic: TopicInfo) -> TopicSummary:
    factor = max((len(partition.replicas) for partition in topic.partitions), default=0)
    return TopicSummary(
        topic.name, id_text(topic.id), len(topic.partitions), factor, topic.is_internal
    )


def id_text(topic_id: UUID) -> str | None:
    return None if topic_id == NO_TOPIC_ID else topic_id_text(topic_id)


# -- topics ----------------------------------------------------------------------------------------


async def describe_topics(cluster: Cluster, names: Sequence[str]) -> list[TopicDescription]:
    """Without names: all topics except internal ones, and not since when replicas are missing."""
    topics = await _topics(cluster, names)
    partitions = {topic.name: [p.index for p in topic.partitions] for topic in topics}
    sizes = await Admin(cluster).replica_sizes(partitions) if topics else {}
    return [
        await _describe(
            cluster, topic, sizes, await missing_members(cluster, topic) if names else ()
        )
        for topic in topics
    ]


async def visible_configs(
    cluster: Cluster, topic: str, *, docs: bool = False
) -> Sequence[ConfigEntry]:
    """The settings of a topic; none for whoever may see it, but not them."""
    try:
        return await Admin(cluster).describe_configs(Resource(ResourceType.TOPIC, topic), docs=docs)
    except BrokerError as error:
        if error.code is not ErrorCode.topic_authorization_failed:
            raise
        return ()


async def _describe(
    cluster: Cluster,
    topic: TopicInfo,
    sizes: Mapping[TopicPartition, Sequence[ReplicaSize]],
    missing: Sequence[MissingMember],
) -> TopicDescription:
    configs = await visible_configs(cluster, topic.name)
    led = [
        TopicPartition(topic.name, partition.index)
        for partition in topic.partitions
        if partition.leader != NO_NODE
    ]
    starts = await find_offsets(cluster, dict.fromkeys(led, EARLIEST))
    usable = [tp for tp, start in starts.items() if not isinstance(start, BrokerError)]
    ends = await find_offsets(cluster, dict.fromkeys(usable, LATEST))
    partitions = []
    for partition in topic.partitions:
        tp = TopicPartition(topic.name, partition.index)
        start = starts.get(tp)
        on_leader = [r.size_bytes for r in sizes.get(tp, []) if r.node == partition.leader]
        partitions.append(
            PartitionDescription(
                partition.index,
                _leader(partition),
                partition.leader_epoch,
                partition.replicas,
                partition.isr,
                partition.offline,
                _offset(start),
                _offset(ends.get(tp)),
                on_leader[0] if on_leader else None,
                str(start) if isinstance(start, BrokerError) else None,
            )
        )
    own = {c.name: c.value for c in configs if c.source == ConfigSource.TOPIC}
    return TopicDescription(*summary(topic), own, partitions, missing)


def _leader(partition: PartitionInfo) -> int | None:
    return None if partition.leader == NO_NODE else partition.leader


def _offset(found: FoundOffset | BrokerError | None) -> int | None:
    return found.offset if isinstance(found, FoundOffset) else None


# -- replicas --------------------------------------------------------------------------------------


async def describe_topics_replicas(
    cluster: Cluster, names: Sequence[str]
) -> list[ReplicaDescriptions]:
    """The replicas of every partition. Without names: of all topics except internal ones."""
    if names:
        await cluster.refresh(list(dict.fromkeys(names)))
    found = await describe_replicas(cluster, await _topics(cluster, names))
    return [_replicas(each) for each in found]


def _replicas(found: PartitionReplicas) -> ReplicaDescriptions:
    partition = found.partition
    leader_report = next((s for s in found.states.values() if s["isr"] is not None), None)
    isr = list(partition.isr) if leader_report is None else leader_report["isr"]
    proposed = None if leader_report is None else leader_report["isr_proposed"]
    followers = [] if leader_report is None else leader_report["followers"]
    lags_ms = {follower["node"]: follower["lag_ms"] for follower in followers}
    return ReplicaDescriptions(
        found.topic.name,
        id_text(found.topic.id),
        partition.index,
        _leader(partition),
        partition.leader_epoch,
        isr,
        proposed,
        [
            {
                **_state(node, found),
                "lag_ms": lags_ms.get(node),
                "in_sync": _in_sync(node, isr, proposed),
            }
            for node in partition.replicas
        ],
    )


def _state(node: int, found: PartitionReplicas) -> dict[str, Any]:
    state = found.states.get(NodeId(node))
    if state is not None:
        return {key: state[key] for key in _STATE_KEYS}
    problem = found.unavailable.get(NodeId(node))
    return {**dict.fromkeys(_STATE_KEYS), "node": node, "role": "unknown", "problem": problem}


def _in_sync(node: int, isr: Sequence[int], proposed: Sequence[int] | None) -> str:
    if proposed is not None and (node in isr) != (node in proposed):
        return "leaving" if node in isr else "joining"
    return "yes" if node in isr else "no"
