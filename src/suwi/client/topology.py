"""Brokers, topics, partitions and leaders from Metadata responses."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from suwi.client.addresses import Address
from suwi.model.errors import UnknownTopicOrPartition
from suwi.model.ids import (
    NO_EPOCH,
    NO_NODE,
    NO_TOPIC_ID,
    LeaderEpoch,
    NodeId,
    PartitionIndex,
    TopicId,
)


class BrokerInfo(NamedTuple):
    id: NodeId
    address: Address
    rack: str | None


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    index: PartitionIndex
    leader: NodeId = NO_NODE
    """NO_NODE if there is none."""
    leader_epoch: LeaderEpoch = NO_EPOCH
    replicas: tuple[NodeId, ...] = ()
    isr: tuple[NodeId, ...] = ()
    offline: tuple[NodeId, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicInfo:
    name: str
    id: TopicId
    """NO_TOPIC_ID if the broker is too old to have topic ids."""
    is_internal: bool
    partitions: tuple[PartitionInfo, ...]
    """In order of their index."""

    def partition(self, index: int) -> PartitionInfo:
        """Raises `UnknownTopicOrPartition`."""
        if not 0 <= index < len(self.partitions):
            last = len(self.partitions) - 1
            raise UnknownTopicOrPartition(
                f"topic {self.name!r} has no partition {index}: "
                + (f"its partitions are 0 to {last}" if last else "it has partition 0 only")
            )
        return self.partitions[index]


def broker_info(entity: Any) -> BrokerInfo:
    return BrokerInfo(
        NodeId(entity.node_id), Address(entity.host, entity.port), getattr(entity, "rack", None)
    )


def topic_info(entity: Any) -> TopicInfo:
    return TopicInfo(
        entity.name,
        getattr(entity, "topic_id", None) or NO_TOPIC_ID,
        getattr(entity, "is_internal", False),
        tuple(sorted(map(_partition_info, entity.partitions), key=lambda p: p.index)),
    )


def _partition_info(entity: Any) -> PartitionInfo:
    return PartitionInfo(
        PartitionIndex(entity.partition_index),
        NodeId(entity.leader_id),
        LeaderEpoch(getattr(entity, "leader_epoch", NO_EPOCH)),
        tuple(NodeId(node) for node in entity.replica_nodes),
        tuple(NodeId(node) for node in entity.isr_nodes),
        tuple(NodeId(node) for node in getattr(entity, "offline_replicas", ())),
    )


def with_newest_leaders(topic: TopicInfo, before: TopicInfo | None) -> TopicInfo:
    """A broker with stale metadata may return the leader of an older epoch: keep the newer one."""
    if before is None or before.id != topic.id:
        return topic
    known = {partition.index: partition for partition in before.partitions}
    partitions = tuple(
        known[p.index]
        if p.index in known and known[p.index].leader_epoch > p.leader_epoch >= 0
        else p
        for p in topic.partitions
    )
    return TopicInfo(topic.name, topic.id, topic.is_internal, partitions)
