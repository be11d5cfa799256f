"""Creating and deleting topics: decided here, written to the store, seen by all in the image.

One decision at a time: the next one starts when the image shows the last.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from suwi.controller.placement import place
from suwi.controller.topic_names import check_collision, check_topic_name
from suwi.env import Random
from suwi.metadata.follower import MetadataFollower
from suwi.metadata.image import (
    TOPICS,
    ClusterImage,
    PartitionState,
    Topic,
    encode_shards,
    encode_topic,
    shard_key,
)
from suwi.metadata.store import (
    ABSENT,
    WRITE_BYTES_MAX,
    Applied,
    Conflict,
    Delete,
    MetadataStore,
    Operation,
    Put,
    Unknown,
    values_of,
    write_bytes,
)
from suwi.model.config_kinds import BadConfig
from suwi.model.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    NotController,
    RequestTimedOut,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from suwi.model.ids import LeaderEpoch, NodeId, TopicId
from suwi.model.topic_config import TopicConfig, parse_topic_config

log = logging.getLogger(__name__)

PARTITIONS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class NewTopic:
    name: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str] = field(default_factory=dict)
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """Replicas of each partition where the client chose them; else empty."""


class TopicAdmin:
    def __init__(
        self,
        store: MetadataStore,
        follower: MetadataFollower,
        random: Random,
        defaults: TopicConfig,
        controller_epoch: int,
    ) -> None:
        self._store = store
        self._follower = follower
        self._random = random
        self._defaults = defaults
        self._controller_epoch = controller_epoch
        self._one_at_a_time = asyncio.Lock()

    async def create(self, new: NewTopic, *, validate_only: bool = False) -> Topic:
        """Create a topic; returns when this broker's image shows it. Raises a `BrokerError`."""
        async with self._one_at_a_time:
            topic = self._decide(new, self._follower.image)
            head = Put(TOPICS + topic.name, encode_topic(topic), ABSENT)
            if write_bytes([head]) > WRITE_BYTES_MAX:
                raise InvalidConfig("the topic's configuration is larger than the store takes")
            if validate_only:
                return topic
            shards = [Put(key, value) for key, value in encode_shards(topic).items()]
            # The head comes last: until it is there, the topic is not.
            for operations in _split([*shards, head]):
                await self._write(operations)
            log.info(
                "topic created",
                extra={"topic": topic.name, "partitions": len(topic.partitions)},
            )
            return topic

    def _decide(self, new: NewTopic, image: ClusterImage) -> Topic:
        check_topic_name(new.name)
        if new.name in image.topics:
            raise TopicAlreadyExists(f"topic {new.name!r} exists already")
        check_collision(new.name, image.topics)
        if any(value is None for value in new.configs.values()):
            raise InvalidConfig("a topic's configuration cannot be null")
        try:
            parse_topic_config(new.configs, self._defaults)
        except BadConfig as error:
            raise InvalidConfig(str(error)) from None
        states = [
            PartitionState(replicas[0], LeaderEpoch(0), 0, replicas, replicas)
            for replicas in self._replicas(new, image)
        ]
        return Topic(new.name, TopicId(self._random.uuid()), dict(new.configs), tuple(states))

    def _replicas(self, new: NewTopic, image: ClusterImage) -> list[tuple[NodeId, ...]]:
        brokers = list(image.brokers)
        if new.assignments:
            return _check_assignments(new.assignments, brokers)
        if new.partitions < 1:
            raise InvalidPartitions("a topic needs at least one partition")
        if new.partitions > PARTITIONS_MAX:
            raise InvalidPartitions(f"a topic has at most {PARTITIONS_MAX} partitions")
        if new.replication_factor < 1:
            raise InvalidReplicationFactor("the replication factor must be at least 1")
        start = self._random.below(max(len(brokers), 1))
        shift = self._random.below(max(len(brokers), 1))
        return place(brokers, new.partitions, new.replication_factor, start=start, shift=shift)

    async def delete(self, name: str | None, topic_id: UUID | None) -> Topic:
        """Delete a topic by name or id. Raises a `BrokerError`."""
        async with self._one_at_a_time:
            image = self._follower.image
            if name is not None:
                topic = image.topics.get(name)
                if topic is None:
                    raise UnknownTopicOrPartition(f"topic {name!r} does not exist")
            else:
                topic = image.topics_by_id.get(topic_id) if topic_id else None
                if topic is None:
                    raise UnknownTopicId(f"no topic has the id {topic_id}")
            shards = range(len(encode_shards(topic)))
            operations: list[Operation] = [Delete(TOPICS + topic.name)]
            operations += [Delete(shard_key(topic.name, shard)) for shard in shards]
            await self._write(operations)
            log.info("topic deleted", extra={"topic": topic.name})
            return topic

    async def _write(self, operations: Sequence[Operation]) -> None:
        result = await self._store.write(operations, controller_epoch=self._controller_epoch)
        match result:
            case Applied(sequence=sequence):
                await self._follower.reached(sequence)
            case Conflict():
                raise NotController("the metadata changed under the controller")
            case Unknown():
                await self._find_out(operations)

    async def _find_out(self, operations: Sequence[Operation]) -> None:
        """The answer of a write was lost: it was made exactly if its values are there."""
        await self._store.sync()
        snapshot = await self._store.read_all()
        for key, value in values_of(operations).items():
            entry = snapshot.entries.get(key)
            if (entry.value if entry else None) != value:
                raise RequestTimedOut("the metadata store did not answer; nothing was changed")
        await self._follower.reached(snapshot.sequence)


def _check_assignments(
    assignments: Mapping[int, Sequence[int]], brokers: Sequence[NodeId]
) -> list[tuple[NodeId, ...]]:
    if sorted(assignments) != list(range(len(assignments))):
        raise InvalidReplicaAssignment("partitions must be numbered from 0 without gaps")
    sizes = {len(replicas) for replicas in assignments.values()}
    if len(sizes) != 1 or 0 in sizes:
        raise InvalidReplicaAssignment("every partition needs the same number of replicas, not 0")
    for index, replicas in assignments.items():
        if len(set(replicas)) < len(replicas):
            raise InvalidReplicaAssignment(f"partition {index} names a broker twice")
        strangers = [broker for broker in replicas if broker not in brokers]
        if strangers:
            raise InvalidReplicaAssignment(f"no live broker has the id {strangers[0]}")
    return [
        tuple(NodeId(broker) for broker in assignments[index]) for index in range(len(assignments))
    ]


def _split(operations: Sequence[Operation]) -> list[list[Operation]]:
    """In order, into writes that a store takes."""
    writes: list[list[Operation]] = [[]]
    for operation in operations:
        if writes[-1] and write_bytes([*writes[-1], operation]) > WRITE_BYTES_MAX:
            writes.append([])
        writes[-1].append(operation)
    return writes
