"""Ids, offsets and epochs, each with its own type."""

from collections.abc import Iterable
from typing import NamedTuple, NewType
from uuid import UUID

NodeId = NewType("NodeId", int)
PartitionIndex = NewType("PartitionIndex", int)
Offset = NewType("Offset", int)
LeaderEpoch = NewType("LeaderEpoch", int)
ProducerId = NewType("ProducerId", int)
ProducerEpoch = NewType("ProducerEpoch", int)
TopicId = NewType("TopicId", UUID)

NO_NODE = NodeId(-1)
NO_OFFSET = Offset(-1)
NO_EPOCH = LeaderEpoch(-1)
NO_PRODUCER_ID = ProducerId(-1)
NO_PRODUCER_EPOCH = ProducerEpoch(-1)
NO_SEQUENCE = -1
NO_TIMESTAMP = -1
NO_TOPIC_ID = TopicId(UUID(int=0))


class TopicPartition(NamedTuple):
    topic: str
    partition: PartitionIndex

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[PartitionIndex]]:
    topics: dict[str, list[PartitionIndex]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return topics
