"""One consumer group: its members, its lag in records and in time, and why it rebalanced."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from suwi.admin.group_descriptions import (
    GroupWithLag,
    PartitionLag,
    describe_groups,
    history_entries,
)
from suwi.client.errors import reason
from suwi.client.groups import group_history
from suwi.console.clusters import ShownCluster
from suwi.console.page import Part, Query, cut
from suwi.model.errors import BrokerError

_REBALANCES_MAX = 50
_NAMED_MAX = 20
_UNREAD_TOPICS_MAX = 5
_UNREAD_PARTITIONS_MAX = 100  # an address has an end


class Rebalance(NamedTuple):
    """Or a move of its coordinator, of which only the first three are known."""

    at_ms: int
    trigger: str
    to_broker: int | None
    """Where the coordinator has moved; None: it is a rebalance."""
    reason: str | None
    client_id: str | None
    host: str | None
    from_generation: int | None
    to_generation: int | None
    members: int | None
    pause_ms: int | None
    """None: it goes on."""
    stood_still_ms: int | None
    """The longest time that a member had no assignment."""


class MemberRow(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: Sequence[str]
    """The first of them."""
    partition_count: int


class Unread(NamedTuple):
    """Where reading what the group has not read of a topic begins."""

    topic: str
    at: str
    """As in the address of its records: `0:17,1:4`."""


class Group(NamedTuple):
    group: str
    state: str
    type: str
    protocol: str
    coordinator: int
    members_count: int
    members_part: Part
    members: Sequence[MemberRow]
    part: Part
    partitions: Sequence[PartitionLag]
    topics: Sequence[str]
    unread: Sequence[Unread]
    """Of the first topics."""
    lag: int | None
    """None if no partition's is known."""
    lag_ms: int | None
    """The age of the oldest record that it has not read; None if it is not known."""
    at_ms: int
    rebalances: Sequence[Rebalance]
    """The newest first."""
    no_history: str | None
    """Why the rebalances are not known."""
    command: str
    history_command: str


async def read_group(shown: ShownCluster, query: Query) -> Group:
    name, at_ms = query.text("group"), shown.clock.now_ms()
    (found,) = (await describe_groups(shown.client, [name], at_ms)).groups
    rebalances, no_history = await _history(shown, name)
    ages = [partition.lag_ms for partition in found.partitions if partition.lag_ms is not None]
    members_part, members = cut(
        found.members, query, lambda m: f"{m.client_id} {m.host} {m.instance_id or ''}", "member_"
    )
    part, partitions = cut(found.partitions, query, lambda each: f"{each.topic}-{each.partition}")
    return Group(
        found.group,
        found.state,
        found.type,
        found.protocol,
        found.coordinator,
        len(found.members),
        members_part,
        [
            MemberRow(
                *each[:4], [str(tp) for tp in each.partitions[:_NAMED_MAX]], len(each.partitions)
            )
            for each in members
        ],
        part,
        partitions,
        list(dict.fromkeys(each.topic for each in found.partitions)),
        _unread(found),
        found.lag if any(each.lag is not None for each in found.partitions) else None,
        max(ages, default=None),
        at_ms,
        rebalances,
        no_history,
        shown.command("groups describe", name),
        shown.command("groups history", name),
    )


def _unread(found: GroupWithLag) -> list[Unread]:
    places: dict[str, list[str]] = {}
    for each in found.partitions:
        if each.lag and each.current_offset is not None:
            at = max(each.current_offset, each.start_offset or 0)
            places.setdefault(each.topic, []).append(f"{each.partition}:{at}")
    return [
        Unread(topic, ",".join(found[:_UNREAD_PARTITIONS_MAX]))
        for topic, found in list(places.items())[:_UNREAD_TOPICS_MAX]
    ]


async def _history(shown: ShownCluster, name: str) -> tuple[list[Rebalance], str | None]:
    try:
        history = await group_history(shown.client, name)
    except (BrokerError, OSError) as error:
        return [], reason(error)
    entries = history_entries(history)[-_REBALANCES_MAX:]
    return [_rebalance(entry) for entry in reversed(entries)], None


def _rebalance(entry: dict[str, Any]) -> Rebalance:
    *known, _ = (entry.get(field) for field in Rebalance._fields)
    longest_ms = max(entry.get("stood_still_ms", {}).values(), default=None)
    return Rebalance._make((*known, longest_ms))
