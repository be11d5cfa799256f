"""Commits and fetches the offsets of a consumer group without being a member of it.

For clients that store their position elsewhere and publish it for group monitoring, as a streaming
query does. A broker refuses the commit while the group has members, so it overwrites no offsets.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

from suwi.client.addresses import Address
from suwi.client.cluster import Cluster
from suwi.client.errors import error_from, is_transient
from suwi.client.retry import Retry
from suwi.client.versioned_connection import VersionedConnection
from suwi.model.errors import BrokerError, UnsupportedVersion
from suwi.model.ids import NodeId, Offset, TopicPartition
from suwi.wire.versions import ApiKey

_T = TypeVar("_T")

_BY_NAME_AT_MOST = 9  # from version 10 on topics have ids instead of names
_NO_GENERATION = -1


async def commit_offsets(
    cluster: Cluster, group: str, offsets: Mapping[TopicPartition, Offset]
) -> None:
    """Raises `UnsupportedVersion` if the cluster has no groups; a `BrokerError`, OSError."""
    fields = {
        "group_id": group,
        "generation_id_or_member_epoch": _NO_GENERATION,
        "member_id": "",
        "group_instance_id": None,
        "retention_time": -1,
        "topics": [
            {
                "name": topic,
                "partitions": [
                    {
                        "partition_index": partition.partition,
                        "committed_offset": offsets[partition],
                        "committed_leader_epoch": -1,
                        "committed_metadata": "",
                    }
                    for partition in partitions
                ],
            }
            for topic, partitions in _by_topic(offsets).items()
        ],
    }

    async def commit(link: VersionedConnection) -> None:
        answer = await link.call(ApiKey.OFFSET_COMMIT, fields, at_most=_BY_NAME_AT_MOST)
        for topic in answer.topics:
            for partition in topic.partitions:
                if partition.error_code:
                    raise error_from(partition.error_code)

    await _ask_coordinator(cluster, group, ApiKey.OFFSET_COMMIT, commit)


async def fetch_offsets(
    cluster: Cluster, group: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, Offset]:
    """The committed offsets that exist. Raises what `commit_offsets` does."""
    topics = [
        {"name": topic, "partition_indexes": [each.partition for each in found]}
        for topic, found in _by_topic(partitions).items()
    ]
    fields = {
        "group_id": group,
        "topics": topics,
        "groups": [{"group_id": group, "member_id": None, "member_epoch": -1, "topics": topics}],
        "require_stable": False,
    }

    async def fetch(link: VersionedConnection) -> dict[TopicPartition, Offset]:
        answer = await link.call(ApiKey.OFFSET_FETCH, fields, at_most=_BY_NAME_AT_MOST)
        (found,) = getattr(answer, "groups", None) or (answer,)
        if getattr(found, "error_code", 0):
            raise error_from(found.error_code)
        return {
            TopicPartition(topic.name, each.partition_index): Offset(each.committed_offset)
            for topic in found.topics
            for each in topic.partitions
            if each.committed_offset >= 0
        }

    return await _ask_coordinator(cluster, group, ApiKey.OFFSET_FETCH, fetch)


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    topics: dict[str, list[TopicPartition]] = {}
    for partition in sorted(partitions):
        topics.setdefault(partition.topic, []).append(partition)
    return topics


async def _ask_coordinator(
    cluster: Cluster, group: str, api: ApiKey, ask: Callable[[VersionedConnection], Awaitable[_T]]
) -> _T:
    retry = Retry(cluster.settings, cluster.random)
    while True:
        try:
            (await cluster.any_link()).version(api)  # raises if the brokers do not support groups
            return await ask(await _coordinator(cluster, group))
        except UnsupportedVersion:
            raise
        except (BrokerError, OSError) as error:
            if not is_transient(error):
                raise
            await retry.pause_or_raise(error)


async def _coordinator(cluster: Cluster, group: str) -> VersionedConnection:
    answer: Any = await cluster.call(
        ApiKey.FIND_COORDINATOR,
        {"key": group, "key_type": 0, "coordinator_keys": [group]},
    )
    (found,) = getattr(answer, "coordinators", None) or (answer,)
    if found.error_code:
        raise error_from(found.error_code)
    node = NodeId(found.node_id)
    if node not in cluster.brokers:
        await cluster.refresh([])
    if cluster.brokers.get(node) is None:
        # The coordinator is new, and the metadata of the other brokers does not have it yet.
        raise ConnectionError(f"broker {node} at {Address(found.host, found.port)} is unknown")
    return await cluster.link(node)
