"""Administration: topics, partitions, replicas, configuration, brokers, records and disks.

Each call is sent once, without retries, and raises the error of its response. If the connection is
lost during a change, the caller must find out whether the change was made.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from suwi.client.cluster import Cluster, Place
from suwi.client.errors import check, error_from
from suwi.client.routing import ask_leaders, each_partition, request_topics
from suwi.client.versioned_connection import VersionedConnection
from suwi.model.config_kinds import ConfigSource as ConfigSource  # of a `ConfigEntry`
from suwi.model.errors import BrokerError, UnknownTopicOrPartition
from suwi.model.ids import (
    NO_NODE,
    NO_TOPIC_ID,
    NodeId,
    Offset,
    PartitionIndex,
    TopicId,
    TopicPartition,
)
from suwi.wire.versions import ApiKey

_TIMEOUT_MS = 30_000
_DEFAULT = -1
_ONE_BROKER_S = 5.0
_TOPICS_PER_REQUEST = 500
_BY_ID_FROM = 6  # DeleteTopics


class ResourceType(IntEnum):
    TOPIC = 2
    BROKER = 4
    GROUP = 32


class Resource(NamedTuple):
    """A configurable resource: a topic or a consumer group by name, a broker by id, all brokers by
    an empty name."""

    type: ResourceType
    name: str


class ConfigSynonym(NamedTuple):
    """One of the sources of a value."""

    name: str
    value: str | None
    source: int


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    name: str
    value: str | None
    """None if it is sensitive or not set."""
    source: int
    is_read_only: bool
    is_sensitive: bool
    synonyms: tuple[ConfigSynonym, ...]
    """Every source that has a value, the effective one first."""
    doc: str | None


class CreatedTopic(NamedTuple):
    name: str
    id: TopicId
    partition_count: int
    """-1 if the broker does not report it; the same for the replication factor."""
    replication_factor: int


class Reassignment(NamedTuple):
    replicas: tuple[NodeId, ...]
    """All of them: the target's, then those that are being removed."""
    adding_replicas: tuple[NodeId, ...]
    removing_replicas: tuple[NodeId, ...]


class ReplicaSize(NamedTuple):
    node: NodeId
    log_dir: str
    size_bytes: int
    offset_lag: int


class DirectoryReplica(NamedTuple):
    topic: str
    partition: int
    size_bytes: int
    offset_lag: int
    """How many offsets it is behind the high watermark."""
    is_future: bool
    """It is being moved to this directory."""


class LogDirectory(NamedTuple):
    path: str
    is_offline: bool
    total_bytes: int | None
    """None: the broker does not report it; the same for the free bytes."""
    free_bytes: int | None
    replicas: list[DirectoryReplica]


class ClusterDescription(NamedTuple):
    """What Metadata does not tell: it also lists fenced brokers, and names a broker for requests to
    the controller even while there is none."""

    controller: NodeId | None
    unfenced: frozenset[NodeId]


class Admin:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    # -- topics ----------------------------------------------------------------------------------

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = _DEFAULT,
        replication_factor: int = _DEFAULT,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> CreatedTopic:
        topic = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": replication_factor,
            "assignments": [],
            "configs": [{"name": key, "value": value} for key, value in (configs or {}).items()],
        }
        answer = await self._cluster.call_controller(
            ApiKey.CREATE_TOPICS,
            {"topics": [topic], "timeout": _TIMEOUT_MS, "validate_only": validate_only},
        )
        (created,) = answer.topics
        _check(created)
        self._cluster.mark_stale(name)
        return CreatedTopic(
            name,
            getattr(created, "topic_id", None) or NO_TOPIC_ID,
            getattr(created, "num_partitions", -1),
            getattr(created, "replication_factor", -1),
        )

    async def delete_topic(self, name: str) -> None:
        link = await self._cluster.any_link()
        fields: dict[str, Any] = {"timeout": _TIMEOUT_MS}
        if link.version(ApiKey.DELETE_TOPICS) >= _BY_ID_FROM:
            fields["topics"] = [{"name": name, "topic_id": NO_TOPIC_ID}]
        else:
            fields["topic_names"] = [name]
        answer = await self._cluster.call_controller(ApiKey.DELETE_TOPICS, fields)
        (deleted,) = answer.responses
        _check(deleted)
        self._cluster.mark_stale(name)

    async def add_partitions(self, name: str, count: int, *, validate_only: bool = False) -> None:
        """Increase the number of partitions of the topic to `count`."""
        topic = {"name": name, "count": count, "assignments": None}
        answer = await self._cluster.call_controller(
            ApiKey.CREATE_PARTITIONS,
            {"topics": [topic], "timeout": _TIMEOUT_MS, "validate_only": validate_only},
        )
        (result,) = answer.results
        _check(result)
        self._cluster.mark_stale(name)

    # -- replicas --------------------------------------------------------------------------------

    async def reassign(
        self, targets: Mapping[TopicPartition, Sequence[int] | None]
    ) -> dict[TopicPartition, BrokerError | None]:
        """Move partitions to other brokers, or cancel that (None). Returns the result of each."""
        topics = request_topics({tp: {"replicas": replicas} for tp, replicas in targets.items()})
        answer = await self._cluster.call_controller(
            ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            {"timeout": _TIMEOUT_MS, "allow_replication_factor_change": True, "topics": topics},
        )
        _check(answer)
        for partition in targets:
            self._cluster.mark_stale(partition.topic)
        return {
            partition: error_from(done.error_code, done.error_message) if done.error_code else None
            for partition, done in each_partition(answer.responses)
        }

    async def reassignments(self) -> dict[TopicPartition, Reassignment]:
        """The reassignments that are in progress."""
        answer = await self._cluster.call_controller(
            ApiKey.LIST_PARTITION_REASSIGNMENTS, {"timeout": _TIMEOUT_MS, "topics": None}
        )
        _check(answer)
        return {
            partition: Reassignment(found.replicas, found.adding_replicas, found.removing_replicas)
            for partition, found in each_partition(answer.topics)
        }

    async def elect_preferred_leaders(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, BrokerError | None]:
        """Returns the result of each; one that leads already is no error."""
        topics: dict[str, list[int]] = {}
        for topic, index in partitions:
            topics.setdefault(topic, []).append(index)
        asked = [{"topic": topic, "partitions": found} for topic, found in topics.items()]
        answer = await self._cluster.call_controller(
            ApiKey.ELECT_LEADERS,
            {"election_type": 0, "topic_partitions": asked, "timeout": _TIMEOUT_MS},
        )
        if getattr(answer, "error_code", 0):
            _check(answer)
        results: dict[TopicPartition, BrokerError | None] = {}
        for topic in answer.replica_election_results:
            for done in topic.partition_result:
                place = TopicPartition(topic.topic, PartitionIndex(done.partition_id))
                is_error = done.error_code not in (0, ErrorCode.election_not_needed)
                error = error_from(done.error_code, done.error_message) if is_error else None
                results[place] = error
            self._cluster.mark_stale(topic.topic)
        return results

    # -- configuration ---------------------------------------------------------------------------

    async def describe_configs(
        self, resource: Resource, *, keys: Sequence[str] | None = None, docs: bool = False
    ) -> list[ConfigEntry]:
        """The effective settings; of all keys if `keys` is None."""
        link = await self._link_for(resource)
        asked = {**_named(resource), "configuration_keys": keys}
        answer = await link.call(
            ApiKey.DESCRIBE_CONFIGS,
            {"resources": [asked], "include_synonyms": True, "include_documentation": docs},
        )
        (result,) = answer.results
        _check(result)
        return [_config_entry(config) for config in result.configs]

    async def topic_settings(self, names: Sequence[str], key: str) -> dict[str, str]:
        """The effective value of one key for each topic that still exists."""
        values: dict[str, str] = {}
        for first in range(0, len(names), _TOPICS_PER_REQUEST):
            asked = [
                {**_named(Resource(ResourceType.TOPIC, name)), "configuration_keys": [key]}
                for name in names[first : first + _TOPICS_PER_REQUEST]
            ]
            answer = await self._cluster.call(
                ApiKey.DESCRIBE_CONFIGS,
                {"resources": asked, "include_synonyms": False, "include_documentation": False},
            )
            for result in answer.results:
                for config in result.configs:
                    if not result.error_code and config.value is not None:
                        values[result.resource_name] = config.value
        return values

    async def alter_configs(
        self,
        resource: Resource,
        values: Mapping[str, str | None],
        *,
        validate_only: bool = False,
    ) -> None:
        """Set keys, or unset those whose value is None; other keys are not changed."""
        link = await self._link_for(resource)
        configs = [
            {"name": key, "config_operation": int(value is None), "value": value}
            for key, value in values.items()
        ]
        asked = {**_named(resource), "configs": configs}
        answer = await link.call(
            ApiKey.INCREMENTAL_ALTER_CONFIGS, {"resources": [asked], "validate_only": validate_only}
        )
        (result,) = answer.responses
        _check(result)

    async def _link_for(self, resource: Resource) -> VersionedConnection:
        """Requests about one broker's configuration must go to that broker."""
        if resource.type is not ResourceType.BROKER or not resource.name:
            return await self._cluster.any_link()
        if not self._cluster.brokers:
            await self._cluster.refresh([])
        node = NodeId(int(resource.name))
        if node not in self._cluster.brokers:
            live = ", ".join(str(n) for n in sorted(self._cluster.brokers))
            raise UnknownBroker(f"there is no broker {node}; live brokers: {live}")
        return await self._cluster.link(node)

    # -- brokers, records and disks --------------------------------------------------------------

    async def describe_cluster(self) -> ClusterDescription:
        answer = await self._cluster.call(
            ApiKey.DESCRIBE_CLUSTER,
            {
                "include_cluster_authorized_operations": False,
                "include_fenced_brokers": False,
                "endpoint_type": 1,
            },
        )
        _check(answer)
        return ClusterDescription(
            None if answer.controller_id == NO_NODE else NodeId(answer.controller_id),
            frozenset(NodeId(broker.broker_id) for broker in answer.brokers),
        )

    async def unregister_broker(self, node: NodeId) -> None:
        """Delete what the metadata has of a broker that will not return."""
        answer = await self._cluster.call_controller(ApiKey.UNREGISTER_BROKER, {"broker_id": node})
        _check(answer)

    async def delete_records(
        self, before: Mapping[TopicPartition, Offset]
    ) -> dict[TopicPartition, Offset | BrokerError]:
        """Delete records below an offset (-1: the high watermark). Returns the low watermarks."""

        async def ask(
            link: VersionedConnection, places: dict[TopicPartition, Place]
        ) -> dict[TopicPartition, Offset | BrokerError]:
            topics = request_topics({tp: {"offset": before[tp]} for tp in places})
            fields = {"topics": topics, "timeout": _TIMEOUT_MS}
            answer = await link.call(ApiKey.DELETE_RECORDS, fields)
            return {
                partition: (
                    error_from(done.error_code) if done.error_code else Offset(done.low_watermark)
                )
                for partition, done in each_partition(answer.topics)
            }

        return await ask_leaders(self._cluster, before, ask)

    async def replica_sizes(
        self, topics: Mapping[str, Sequence[int]]
    ) -> dict[TopicPartition, list[ReplicaSize]]:
        """The size of each replica of these partitions, on the brokers that respond."""
        if not self._cluster.brokers:
            await self._cluster.refresh([])
        asked = [{"topic": name, "partitions": list(found)} for name, found in topics.items()]
        nodes = list(self._cluster.brokers)
        answers = await asyncio.gather(*(self._log_dirs(node, asked) for node in nodes))
        sizes: dict[TopicPartition, list[ReplicaSize]] = {}
        for node, directories in zip(nodes, answers, strict=True):
            for directory in directories:
                for partition, found in each_partition(directory.topics):
                    size = ReplicaSize(
                        node, directory.log_dir, found.partition_size, found.offset_lag
                    )
                    sizes.setdefault(partition, []).append(size)
        return sizes

    async def log_directories(self, node: NodeId) -> list[LogDirectory]:
        """The log directories of one broker, with all replicas in them."""
        async with asyncio.timeout(_ONE_BROKER_S):
            link = await self._cluster.link(node)
            answer = await link.call(ApiKey.DESCRIBE_LOG_DIRS, {"topics": None})
        return [
            LogDirectory(
                directory.log_dir,
                bool(directory.error_code),
                bytes_or_none(directory, "total_bytes"),
                bytes_or_none(directory, "usable_bytes"),
                [
                    DirectoryReplica(
                        *tp, found.partition_size, found.offset_lag, found.is_future_key
                    )
                    for tp, found in each_partition(directory.topics)
                ],
            )
            for directory in answer.results
        ]

    async def _log_dirs(self, node: NodeId, topics: Sequence[Mapping[str, Any]]) -> Sequence[Any]:
        """A broker's data directories; none if it does not respond."""
        try:
            async with asyncio.timeout(_ONE_BROKER_S):
                link = await self._cluster.link(node)
                answer = await link.call(ApiKey.DESCRIBE_LOG_DIRS, {"topics": topics})
        except (BrokerError, OSError):
            return ()
        return tuple(answer.results)


class UnknownBroker(BrokerError):
    """No live broker has this id."""


def _check(answer: Any) -> None:
    has_message = getattr(answer, "error_message", None) is not None
    if answer.error_code == UnknownTopicOrPartition.code and not has_message:
        name = getattr(answer, "name", "")
        raise UnknownTopicOrPartition(f"topic {name!r} does not exist")
    check(answer)


def bytes_or_none(directory: Any, name: str) -> int | None:
    """A size of DescribeLogDirs, if the broker reports it."""
    size_bytes: int = getattr(directory, name, -1)
    return None if size_bytes < 0 else size_bytes


def _named(resource: Resource) -> dict[str, Any]:
    return {"resource_type": resource.type, "resource_name": resource.name}


def _config_entry(config: Any) -> ConfigEntry:
    return ConfigEntry(
        config.name,
        config.value,
        config.config_source,
        config.read_only,
        config.is_sensitive,
        tuple(ConfigSynonym(s.name, s.value, s.source) for s in config.synonyms),
        getattr(config, "documentation", None),
    )
