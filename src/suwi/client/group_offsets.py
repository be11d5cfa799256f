"""Commits and fetches the offsets of a consumer group, as a member or without being one.

`commit_offsets` and `fetch_offsets` are for clients that are no members and store their position
elsewhere, as a streaming query does. A broker refuses such a commit while the group has members, so
it overwrites no offsets. `commit_once`, `fetch_once` and `fetch_committed` send one request.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from suwi.client.cluster import Cluster
from suwi.client.coordinator import Coordinator, asking
from suwi.client.routing import each_partition, request_topics
from suwi.model.ids import Offset, TopicPartition, by_topic
from suwi.wire.consumer_protocol import NO_GENERATION
from suwi.wire.versions import ApiKey

_BY_NAME_AT_MOST = 9  # from version 10 on topics have ids instead of names


class Membership(NamedTuple):
    """The member that commits."""

    member_id: str = ""
    generation: int = NO_GENERATION
    instance_id: str | None = None


class CommittedOffset(NamedTuple):
    offset: Offset
    metadata: str


NO_MEMBER = Membership()
NO_METADATA: Mapping[TopicPartition, str] = {}


async def commit_offsets(
    cluster: Cluster, group: str, offsets: Mapping[TopicPartition, Offset]
) -> None:
    """Raises `UnsupportedVersion` if the cluster has no groups; a `BrokerError`, OSError."""
    await asking(cluster, group, lambda coordinator: commit_once(coordinator, offsets))


async def fetch_offsets(
    cluster: Cluster, group: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, Offset]:
    """The committed offsets that exist. Raises what `commit_offsets` does."""
    wanted = list(partitions)
    return await asking(cluster, group, lambda coordinator: fetch_once(coordinator, wanted))


async def commit_once(
    coordinator: Coordinator,
    offsets: Mapping[TopicPartition, Offset],
    member: Membership = NO_MEMBER,
) -> None:
    """Raises the error of the first partition that has one. After OSError it is unknown whether
    they are committed."""
    fields = {
        "group_id": coordinator.key,
        "generation_id_or_member_epoch": member.generation,
        "member_id": member.member_id,
        "group_instance_id": member.instance_id,
        "retention_time": -1,
        "topics": offset_topics(offsets),
    }
    answer = await coordinator.call(ApiKey.OFFSET_COMMIT, fields, at_most=_BY_NAME_AT_MOST)
    for _, committed in each_partition(answer.topics):
        coordinator.check(committed)


async def fetch_once(
    coordinator: Coordinator, partitions: Iterable[TopicPartition], *, stable_only: bool = False
) -> dict[TopicPartition, Offset]:
    """The committed offsets that exist. Raises what `fetch_committed` does."""
    found = await fetch_committed(coordinator, partitions, stable_only=stable_only)
    return {partition: committed.offset for partition, committed in found.items()}


async def fetch_committed(
    coordinator: Coordinator, partitions: Iterable[TopicPartition] | None, *, stable_only: bool
) -> dict[TopicPartition, CommittedOffset]:
    """The committed offsets that exist, of all partitions if `partitions` is None. `stable_only`:
    raises a retriable error if an open transaction may still change one."""
    topics = None
    if partitions is not None:
        by_name = by_topic(sorted(partitions)).items()
        topics = [{"name": name, "partition_indexes": indexes} for name, indexes in by_name]
    group = coordinator.key
    fields = {
        "group_id": group,
        "topics": topics,
        "groups": [{"group_id": group, "member_id": None, "member_epoch": -1, "topics": topics}],
        "require_stable": stable_only,
    }
    answer = await coordinator.call(ApiKey.OFFSET_FETCH, fields, at_most=_BY_NAME_AT_MOST)
    (found,) = getattr(answer, "groups", None) or (answer,)
    if getattr(found, "error_code", 0):
        raise coordinator.refused(found.error_code)
    offsets: dict[TopicPartition, CommittedOffset] = {}
    for partition, one in each_partition(found.topics):
        coordinator.check(one)
        if one.committed_offset >= 0:
            offsets[partition] = CommittedOffset(Offset(one.committed_offset), one.metadata or "")
    return offsets


def offset_topics(
    offsets: Mapping[TopicPartition, Offset], metadata: Mapping[TopicPartition, str] = NO_METADATA
) -> list[dict[str, Any]]:
    """The topics of OffsetCommit and TxnOffsetCommit."""
    return request_topics(
        {
            partition: {
                "committed_offset": offsets[partition],
                "committed_leader_epoch": -1,
                "committed_metadata": metadata.get(partition, ""),
            }
            for partition in sorted(offsets)
        }
    )
