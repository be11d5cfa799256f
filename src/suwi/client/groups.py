"""Administration of consumer groups: list, describe, delete them, and read their history.

`list_groups` asks all brokers, since each knows the groups it coordinates; the others ask the
group's coordinator, again where it has moved. Committed offsets are `group_offsets.py`'s.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from suwi.client.cluster import Cluster
from suwi.client.connection import ConnectionLost
from suwi.client.coordinator import Coordinator, asking
from suwi.client.errors import check, error_from
from suwi.client.group_offsets import CommittedOffset, fetch_committed
from suwi.client.routing import ask_all_brokers, each_partition, request_topics
from suwi.client.versioned_connection import VersionedConnection
from suwi.model.errors import BrokerError, UnsupportedVersion
from suwi.model.ids import NodeId, Offset, PartitionIndex, TopicPartition
from suwi.wire.consumer_protocol import decode_assignment
from suwi.wire.errors import MalformedMessage
from suwi.wire.versions import ApiKey

_ANSWER_S = 5.0
_CONSUMER = "consumer"
_DEAD = "Dead"


class ListedGroup(NamedTuple):
    name: str
    state: str
    type: str
    """`classic` or `consumer`; empty if the broker is too old to report it."""
    protocol_type: str
    coordinator: NodeId


class GroupList(NamedTuple):
    groups: list[ListedGroup]
    silent: dict[NodeId, str]
    """The brokers that did not respond, with the reason."""


@dataclass(frozen=True, slots=True)
class GroupMember:
    id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]
    """Empty also if the members use another protocol than consumers, as Kafka Connect does."""


@dataclass(frozen=True, slots=True)
class GroupDescription:
    name: str
    state: str
    type: str
    protocol_type: str
    protocol: str
    """How partitions are assigned; empty if there are no members."""
    members: tuple[GroupMember, ...]
    coordinator: NodeId


class GroupHistory(NamedTuple):
    exists: bool
    rebalances: list[dict[str, Any]]
    """The oldest first; the fields of `handlers/describe_group_history.py`."""
    moves: list[dict[str, Any]]
    coordinator: NodeId


class NoHistory(BrokerError):
    """The broker does not serve the history of groups."""


# -- reading ---------------------------------------------------------------------------------------


async def list_groups(
    cluster: Cluster,
    states: Sequence[str] = (),
    *,
    timeout_s: float = _ANSWER_S,
    silent: Mapping[NodeId, str] = {},
) -> GroupList:
    """All groups by name. If a broker does not respond, only its own groups are missing.
    `silent`: brokers that have not responded before, with the reasons; they are not asked."""

    async def ask(link: VersionedConnection, node: NodeId) -> list[ListedGroup]:
        fields = {"states_filter": list(states), "types_filter": []}
        answer = await link.call(ApiKey.LIST_GROUPS, fields)
        check(answer)
        return [
            ListedGroup(
                group.group_id,
                getattr(group, "group_state", ""),
                getattr(group, "group_type", ""),
                group.protocol_type,
                node,
            )
            for group in answer.groups
        ]

    answers, reasons = await ask_all_brokers(cluster, ask, timeout_s=timeout_s, silent=silent)
    groups = {group.name: group for answer in answers.values() for group in answer}
    return GroupList([groups[name] for name in sorted(groups)], reasons)


async def describe_group(cluster: Cluster, group: str) -> GroupDescription | None:
    """None if there is no such group. Raises a `BrokerError`, OSError."""

    async def ask(coordinator: Coordinator) -> GroupDescription | None:
        found = await describe_classic_group(coordinator)
        return await _describe_consumer(coordinator) if found is None else found

    return await asking(cluster, group, ask)


async def describe_classic_group(coordinator: Coordinator) -> GroupDescription | None:
    """None if there is no such group, or if it is one of the consumer protocol."""
    fields = {"groups": [coordinator.key], "include_authorized_operations": False}
    (found,) = (await coordinator.call(ApiKey.DESCRIBE_GROUPS, fields)).groups
    if found.error_code == ErrorCode.group_id_not_found or found.group_state == _DEAD:
        return None
    coordinator.check(found)
    is_consumer = found.protocol_type == _CONSUMER
    members = tuple(
        GroupMember(
            member.member_id,
            getattr(member, "group_instance_id", None),
            member.client_id,
            member.client_host,
            _assigned(member.member_assignment) if is_consumer else (),
        )
        for member in found.members
    )
    return GroupDescription(
        coordinator.key,
        found.group_state,
        "classic",
        found.protocol_type,
        found.protocol_data,
        members,
        coordinator.node,
    )


async def _describe_consumer(coordinator: Coordinator) -> GroupDescription | None:
    """A group of the consumer protocol (KIP-848)."""
    fields = {"group_ids": [coordinator.key], "include_authorized_operations": False}
    try:
        (found,) = (await coordinator.call(ApiKey.CONSUMER_GROUP_DESCRIBE, fields)).groups
    except UnsupportedVersion:
        return None
    if found.error_code == ErrorCode.group_id_not_found:
        return None
    coordinator.check(found)
    members = tuple(
        GroupMember(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            tuple(
                TopicPartition(topic.topic_name, PartitionIndex(partition))
                for topic in member.assignment.topic_partitions
                for partition in topic.partitions
            ),
        )
        for member in found.members
    )
    return GroupDescription(
        coordinator.key,
        found.group_state,
        _CONSUMER,
        _CONSUMER,
        found.assignor_name,
        members,
        coordinator.node,
    )


def _assigned(data: bytes) -> tuple[TopicPartition, ...]:
    """Empty if the bytes, which are a client's, cannot be decoded."""
    try:
        return decode_assignment(data).partitions
    except MalformedMessage:
        return ()


async def committed_offsets(cluster: Cluster, group: str) -> dict[TopicPartition, Offset]:
    """All offsets that a group has committed. Raises a `BrokerError`, OSError."""
    found = await committed_with_metadata(cluster, group)
    return {partition: committed.offset for partition, committed in found.items()}


async def committed_with_metadata(
    cluster: Cluster, group: str, *, stable_only: bool = False
) -> dict[TopicPartition, CommittedOffset]:
    """`stable_only`: waits while an open transaction may still change one."""

    async def ask(coordinator: Coordinator) -> dict[TopicPartition, CommittedOffset]:
        return await fetch_committed(coordinator, None, stable_only=stable_only)

    return await asking(cluster, group, ask)


async def group_history(cluster: Cluster, group: str) -> GroupHistory:
    """Raises `NoHistory` if the coordinator closes the connection; a `BrokerError`, OSError."""

    async def ask(coordinator: Coordinator) -> GroupHistory:
        link = await coordinator.link(ApiKey.DESCRIBE_GROUPS)
        fields = {"group": group}
        try:
            found = await link.call_json(ApiKey.DESCRIBE_GROUP_HISTORY, fields, timeout_s=_ANSWER_S)
        except ConnectionLost as error:
            raise NoHistory(f"{error}; only Suwi's brokers keep the history of groups") from None
        if found["error"]:
            raise coordinator.refused(found["error"])
        return GroupHistory(found["exists"], found["rebalances"], found["moves"], coordinator.node)

    return await asking(cluster, group, ask)


# -- changing --------------------------------------------------------------------------------------


async def delete_group(cluster: Cluster, group: str) -> None:
    """Raises a `BrokerError`, for example if the group has members; OSError."""

    may_be_done = False

    async def ask(coordinator: Coordinator) -> None:
        nonlocal may_be_done
        await coordinator.link(ApiKey.DELETE_GROUPS)
        try:
            answer = await coordinator.call(ApiKey.DELETE_GROUPS, {"groups_names": [group]})
        except OSError:
            may_be_done = True
            raise
        (result,) = answer.results
        if not (may_be_done and result.error_code == ErrorCode.group_id_not_found):
            coordinator.check(result)

    await asking(cluster, group, ask)


async def delete_offsets(
    cluster: Cluster, group: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, BrokerError | None]:
    """The error of each partition, if any. Raises the error of the whole request, OSError."""
    asked: dict[TopicPartition, dict[str, Any]] = {each: {} for each in sorted(partitions)}
    fields = {"group_id": group, "topics": request_topics(asked)}

    async def ask(coordinator: Coordinator) -> dict[TopicPartition, BrokerError | None]:
        answer = await coordinator.call(ApiKey.OFFSET_DELETE, fields)
        coordinator.check(answer)
        return {
            partition: error_from(done.error_code) if done.error_code else None
            for partition, done in each_partition(answer.topics)
        }

    return await asking(cluster, group, ask)
