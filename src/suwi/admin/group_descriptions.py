"""Consumer groups: their members, who reads which partition, and how far each is behind."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from suwi.admin.failure import Failure
from suwi.admin.topic_descriptions import existing_topic
from suwi.client.cluster import Cluster
from suwi.client.group_lag import Lag, find_lags
from suwi.client.groups import (
    GroupDescription,
    GroupHistory,
    GroupMember,
    committed_offsets,
    describe_group,
    list_groups,
)
from suwi.model.config_kinds import did_you_mean
from suwi.model.ids import NodeId, Offset, PartitionIndex, TopicPartition


class MemberDescription(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: Sequence[TopicPartition]


class PartitionLag(NamedTuple):
    """How far a group is behind in one partition; None is not known."""

    topic: str
    partition: int
    current_offset: Offset | None
    start_offset: Offset | None
    end_offset: Offset | None
    lag: int | None
    """In records."""
    lag_ms: int | None
    """The age of the first unread record."""
    member_id: str | None
    client_id: str | None
    host: str | None
    instance_id: str | None
    problem: str | None

    @property
    def has_lost_records(self) -> bool:
        """Whether records were deleted before the group read them."""
        offset, start = self.current_offset, self.start_offset
        return offset is not None and start is not None and offset < start


class GroupWithLag(NamedTuple):
    group: str
    state: str
    type: str
    protocol_type: str
    protocol: str
    coordinator: NodeId
    members: Sequence[MemberDescription]
    partitions: Sequence[PartitionLag]
    lag: int


class GroupsWithLag(NamedTuple):
    groups: list[GroupWithLag]
    silent: Mapping[NodeId, str]
    """The brokers whose groups are not known, and why."""


async def describe_groups(cluster: Cluster, names: Sequence[str], now_ms: int) -> GroupsWithLag:
    """Without names: all groups. Raises `Failure` if a named group does not exist."""
    wanted, silent = list(dict.fromkeys(names)), dict[NodeId, str]()
    if not wanted:
        listed, silent = await list_groups(cluster)
        wanted = [group.name for group in listed]
    described = []
    for name in wanted:
        group = await describe_group(cluster, name)
        if group is not None:
            described.append(await _with_lag(cluster, group, now_ms))
        elif names:
            raise await unknown_group(cluster, name)
    return GroupsWithLag(described, silent)


async def unknown_group(cluster: Cluster, name: str) -> Failure:
    names = [group.name for group in (await list_groups(cluster)).groups]
    return Failure(f"group {name!r} does not exist{did_you_mean(name, names)}")


async def _with_lag(cluster: Cluster, group: GroupDescription, now_ms: int) -> GroupWithLag:
    committed = await committed_offsets(cluster, group.name)
    owners = {partition: m for m in group.members for partition in m.partitions}
    wanted: dict[TopicPartition, Offset | None] = {
        partition: committed.get(partition) for partition in sorted({*committed, *owners})
    }
    lags = await find_lags(cluster, wanted)
    members = [
        MemberDescription(m.id, m.instance_id, m.client_id, m.host, m.partitions)
        for m in group.members
    ]
    partitions = [_partition(tp, lag, owners.get(tp), now_ms) for tp, lag in lags.items()]
    about = group.name, group.state, group.type, group.protocol_type, group.protocol
    behind = sum(lag.records or 0 for lag in lags.values())
    return GroupWithLag(*about, group.coordinator, members, partitions, behind)


def _partition(
    partition: TopicPartition, lag: Lag, owner: GroupMember | None, now_ms: int
) -> PartitionLag:
    age_ms = None
    if lag.records == 0:
        age_ms = 0
    elif lag.first_unread_ms is not None:
        age_ms = max(0, now_ms - lag.first_unread_ms)
    who: tuple[str | None, str | None, str | None, str | None] = None, None, None, None
    if owner is not None:
        who = owner.id, owner.client_id, owner.host, owner.instance_id
    offsets = lag.committed, lag.start, lag.end
    return PartitionLag(*partition, *offsets, lag.records, age_ms, *who, lag.problem)


COORDINATOR_MOVED = "coordinator moved"


def history_entries(history: GroupHistory) -> list[dict[str, Any]]:
    """Rebalances and moves of the coordinator, the oldest first."""
    entries = [{"at_ms": rebalance["began_ms"], **rebalance} for rebalance in history.rebalances]
    entries += [
        {"at_ms": move["at_ms"], "trigger": COORDINATOR_MOVED, "to_broker": history.coordinator}
        for move in history.moves
    ]
    return sorted(entries, key=lambda entry: int(entry["at_ms"]))


# -- parts of what a group reads -------------------------------------------------------------------


class Scope(NamedTuple):
    """A topic, or some partitions of it."""

    topic: str
    partitions: tuple[int, ...] | None
    """None: all of them."""


async def partitions_in(cluster: Cluster, scopes: Iterable[Scope]) -> list[TopicPartition]:
    """The partitions of the scopes, which must exist."""
    chosen: dict[TopicPartition, None] = {}
    for name, numbers in scopes:
        topic = await existing_topic(cluster, name)
        wanted = range(len(topic.partitions)) if numbers is None else numbers
        for number in wanted:
            chosen[TopicPartition(name, topic.partition(number).index)] = None
    return list(chosen)


def committed_in(
    committed: Mapping[TopicPartition, Offset], scopes: Iterable[Scope]
) -> list[TopicPartition]:
    """The partitions of the scopes that the group has offsets of."""
    chosen: dict[TopicPartition, None] = {}
    for topic, partitions in scopes:
        if partitions is None:
            found = [place for place in committed if place.topic == topic]
        else:
            asked = (TopicPartition(topic, PartitionIndex(p)) for p in partitions)
            found = [place for place in asked if place in committed]
        if not found:
            raise Failure(f"the group has no offset of {topic}")
        chosen |= dict.fromkeys(found)
    return list(chosen)
