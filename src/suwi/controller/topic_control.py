"""Creates, extends and deletes topics: validates requests and writes the changes.

Invariant: a decision starts only when the image has the changes of the previous one.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from suwi.controller.internal_topics import check_can_be_deleted, check_can_grow, check_configs
from suwi.controller.metadata_writer import MetadataWriter, check_fits
from suwi.env import Random
from suwi.env.slices import in_slices
from suwi.metadata.image import (
    SHARD_PARTITIONS,
    TOPICS,
    ClusterImage,
    NewTopic,
    PartitionState,
    Topic,
    encode_shards,
    encode_topic,
    put_deletion,
    shard_count,
    shard_key,
)
from suwi.metadata.metadata_follower import MetadataFollower
from suwi.metadata.placement import Site, place, sites_of
from suwi.metadata.store import ABSENT, Delete, Operation, Put
from suwi.model.config_kinds import BadConfig
from suwi.model.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from suwi.model.ids import LeaderEpoch, NodeId, TopicId
from suwi.model.topic_config import TopicConfig, parse_topic_config
from suwi.model.topic_names import check_collision, check_topic_name

log = logging.getLogger(__name__)

PARTITIONS_MAX = 100_000


@dataclass(eq=False)
class TopicControl:
    _writer: MetadataWriter
    _follower: MetadataFollower
    _random: Random
    _defaults: TopicConfig

    async def create(self, new: NewTopic, *, validate_only: bool = False) -> Topic:
        """Create a topic; returns when this broker's image has it. Raises a `BrokerError`."""
        self._check_new(new, self._follower.image)
        return await self._writer.run_exclusively(lambda: self._create(new, validate_only))

    async def _create(self, new: NewTopic, validate_only: bool) -> Topic:
        topic = await self._decide(new, self._follower.image)
        head = Put(TOPICS + topic.name, encode_topic(topic), ABSENT)
        check_fits(head)
        if validate_only:
            return topic
        # The head is written last: the topic exists only once the head does.
        await self._writer.write([*await _shard_puts(topic), head])
        log.info(
            "topic created",
            extra={"topic": topic.name, "partitions": len(topic.partitions)},
        )
        return topic

    async def adopt(self, topic: Topic) -> None:
        """Create a topic with its existing id and state; its data already exists."""
        check_topic_name(topic.name)
        shards = await _shard_puts(topic)
        head = Put(TOPICS + topic.name, encode_topic(topic), ABSENT)
        await self._writer.run_exclusively(lambda: self._writer.write([*shards, head]))

    def _check_new(self, new: NewTopic, image: ClusterImage) -> None:
        """Also before the decision: a request may name thousands that cannot be created."""
        check_topic_name(new.name)
        if new.name in image.topics:
            raise TopicAlreadyExists(f"topic {new.name!r} already exists")

    async def _decide(self, new: NewTopic, image: ClusterImage) -> Topic:
        self._check_new(new, image)
        check_collision(new.name, image.topics)
        if any(value is None for value in new.configs.values()):
            raise InvalidConfig("a topic's configuration cannot be null")
        try:
            config = parse_topic_config(new.configs, self._defaults)
        except BadConfig as error:
            raise InvalidConfig(str(error)) from None
        check_configs(new.name, new.configs, config, before=self._defaults)
        states = await _new_states(await self._replicas(new, image))
        return Topic(new.name, TopicId(self._random.uuid()), dict(new.configs), tuple(states))

    async def _replicas(self, new: NewTopic, image: ClusterImage) -> list[tuple[NodeId, ...]]:
        brokers = list(image.unfenced_brokers)
        if new.assignments:
            return await _check_assignments(new.assignments, brokers)
        if new.partitions < 1:
            raise InvalidPartitions("a topic needs at least one partition")
        if new.partitions > PARTITIONS_MAX:
            raise InvalidPartitions(f"a topic has at most {PARTITIONS_MAX} partitions")
        if new.replication_factor < 1:
            raise InvalidReplicationFactor("the replication factor must be at least 1")
        start = self._random.below(max(len(brokers), 1))
        shift = self._random.below(max(len(brokers), 1))
        sites = sites_of(image.unfenced_brokers.values())
        return await _place(
            sites, range(new.partitions), new.replication_factor, start=start, shift=shift
        )

    async def add_partitions(
        self,
        name: str,
        count: int,
        assignments: Sequence[Sequence[int]] | None = None,
        *,
        validate_only: bool = False,
    ) -> int:
        """Increase the number of a topic's partitions to `count`. Returns by how many."""
        _find(self._follower.image, name)
        return await self._writer.run_exclusively(
            lambda: self._add_partitions(name, count, assignments, validate_only)
        )

    async def _add_partitions(
        self,
        name: str,
        count: int,
        assignments: Sequence[Sequence[int]] | None,
        validate_only: bool,
    ) -> int:
        image = self._follower.image
        topic = _find(image, name)
        check_can_grow(name)
        present = len(topic.partitions)
        if count <= present:
            raise InvalidPartitions(
                f"topic {name!r} has {present} partitions; their number can only grow"
            )
        if count > PARTITIONS_MAX:
            raise InvalidPartitions(f"a topic has at most {PARTITIONS_MAX} partitions")
        states = await _new_states(
            await self._replicas_of_added(topic, count - present, assignments, image)
        )
        grown = Topic(name, topic.id, topic.configs, (*topic.partitions, *states))
        if validate_only:
            return count - present
        shards = await _shard_puts(grown, first=present // SHARD_PARTITIONS)
        await self._writer.write([*shards, Put(TOPICS + name, encode_topic(grown))])
        log.info("partitions added", extra={"topic": name, "partitions": count})
        return count - present

    async def _replicas_of_added(
        self,
        topic: Topic,
        count: int,
        assignments: Sequence[Sequence[int]] | None,
        image: ClusterImage,
    ) -> list[tuple[NodeId, ...]]:
        brokers = list(image.unfenced_brokers)
        factor = len(topic.partitions[0].target_replicas)
        if assignments is None:
            start = self._random.below(max(len(brokers), 1))
            first = len(topic.partitions)
            sites = sites_of(image.unfenced_brokers.values())
            return await _place(sites, range(first, first + count), factor, start=start)
        if len(assignments) != count:
            raise InvalidReplicaAssignment(
                f"{count} partitions are to be added, but {len(assignments)} are assigned"
            )
        chosen = await _check_assignments(dict(enumerate(assignments)), brokers)
        if len(chosen[0]) != factor:
            raise InvalidReplicaAssignment(f"the topic's replication factor is {factor}")
        return chosen

    async def delete(self, name: str | None, topic_id: UUID | None) -> Topic:
        """Delete a topic by name or id. Raises a `BrokerError`."""
        # Also before the decision: a request may name thousands that do not exist.
        _find(self._follower.image, name, topic_id)
        return await self._writer.run_exclusively(lambda: self._delete(name, topic_id))

    async def _delete(self, name: str | None, topic_id: UUID | None) -> Topic:
        image = self._follower.image
        topic = _find(image, name, topic_id)
        check_can_be_deleted(topic.name)
        shards = range(shard_count(topic))
        operations: list[Operation] = [
            *_deletion_puts(image, topic),
            Delete(TOPICS + topic.name),
        ]
        operations += [Delete(shard_key(topic.name, shard)) for shard in shards]
        await self._writer.write(operations)
        log.info("topic deleted", extra={"topic": topic.name})
        return topic


def _find(image: ClusterImage, name: str | None, topic_id: UUID | None = None) -> Topic:
    if name is not None:
        topic = image.topics.get(name)
        if topic is None:
            raise UnknownTopicOrPartition(f"topic {name!r} does not exist")
    else:
        topic = image.topics_by_id.get(topic_id) if topic_id else None
        if topic is None:
            raise UnknownTopicId(f"no topic has the id {topic_id}")
    return topic


async def _place(
    sites: Sequence[Site],
    indexes: range,
    replication_factor: int,
    *,
    start: int,
    shift: int = 0,
) -> list[tuple[NodeId, ...]]:
    """As `place`; yields to the event loop after each shard."""
    placed: list[tuple[NodeId, ...]] = []
    async for first in in_slices(indexes[::SHARD_PARTITIONS], 1):
        count = min(SHARD_PARTITIONS, indexes.stop - first)
        placed += place(
            sites, count, replication_factor, first_partition=first, start=start, shift=shift
        )
    return placed


async def _new_states(placed: Sequence[tuple[NodeId, ...]]) -> list[PartitionState]:
    return [
        PartitionState(replicas[0], LeaderEpoch(0), 0, replicas, replicas)
        async for replicas in in_slices(placed, SHARD_PARTITIONS)
    ]


async def _shard_puts(topic: Topic, first: int = 0) -> list[Put]:
    """Entries for a topic's partition states from shard `first` on; yields to the event loop after
    each shard."""
    puts: list[Put] = []
    async for shard in in_slices(range(first, shard_count(topic)), 1):
        puts += [Put(key, value) for key, value in encode_shards(topic, only=[shard]).items()]
    return puts


def _deletion_puts(image: ClusterImage, topic: Topic) -> list[Put]:
    """Entries that make brokers that are offline now delete the topic's data when they return."""
    offline = {node for state in topic.partitions for node in state.replicas} - set(
        image.unfenced_brokers
    )
    return [put_deletion(node, image.deletions.get(node, {}), topic.id) for node in sorted(offline)]


async def _check_assignments(
    assignments: Mapping[int, Sequence[int]], brokers: Sequence[NodeId]
) -> list[tuple[NodeId, ...]]:
    if sorted(assignments) != list(range(len(assignments))):
        raise InvalidReplicaAssignment("partitions must be numbered from 0 without gaps")
    sizes = {len(replicas) for replicas in assignments.values()}
    if len(sizes) != 1 or 0 in sizes:
        raise InvalidReplicaAssignment("every partition needs the same number of replicas, not 0")
    async for index, replicas in in_slices(assignments.items(), SHARD_PARTITIONS):
        if len(set(replicas)) < len(replicas):
            raise InvalidReplicaAssignment(f"partition {index} names a broker twice")
        not_live = [broker for broker in replicas if broker not in brokers]
        if not_live:
            raise InvalidReplicaAssignment(f"no live broker has the id {not_live[0]}")
    return [
        tuple(NodeId(broker) for broker in assignments[index]) for index in range(len(assignments))
    ]
