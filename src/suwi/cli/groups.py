"""The work of `suwi groups list`, `describe` and `delete`."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import typer
from kio.schema.errors import ErrorCode

from suwi.cli.options import Target
from suwi.cli.output import (
    Failure,
    complain,
    count_text,
    document,
    duration_text,
    printable,
    say,
    show_each,
    table,
)
from suwi.cli.session import confirm_deletion, existing_topic, run
from suwi.client.cluster import Cluster
from suwi.client.group_lag import Lag, find_lags
from suwi.client.groups import (
    GroupDescription,
    GroupMember,
    ListedGroup,
    committed_offsets,
    delete_group,
    delete_offsets,
    describe_group,
    list_groups,
)
from suwi.env import SystemClock
from suwi.model.config_kinds import did_you_mean
from suwi.model.errors import BrokerError
from suwi.model.ids import NodeId, Offset, PartitionIndex, TopicPartition

_REFUSALS = {
    ErrorCode.non_empty_group: "it has members; stop them first",
    ErrorCode.group_subscribed_to_topic: "its members are subscribed to the topic",
    ErrorCode.group_id_not_found: "there is no such group",
}


class Scope(NamedTuple):
    """Part of what a group reads: a topic, or some partitions of it."""

    topic: str
    partitions: tuple[int, ...] | None
    """None: all of them."""


def parse_scope(text: str) -> Scope:
    """`orders`, or `orders:0,1`."""
    topic, colon, numbers = text.partition(":")
    if topic and not colon:
        return Scope(topic, None)
    words = numbers.split(",")
    if topic and all(word.isascii() and word.isdigit() for word in words):
        return Scope(topic, tuple(dict.fromkeys(map(int, words))))
    raise typer.BadParameter(
        f"{text!r}: give a topic, or partitions of it: orders:0,1", param_hint="--topic"
    )


# -- list ------------------------------------------------------------------------------------------


def list_all(target: Target, states: Sequence[str], *, json: bool) -> None:
    async def work(cluster: Cluster) -> int:
        groups, silent = await list_groups(cluster, states)
        if json:
            document([_listed(group) for group in groups])
        elif groups:
            rows = [
                (g.name, g.state, g.type or "-", g.protocol_type or "-", g.coordinator)
                for g in groups
            ]
            table(("Group", "State", "Type", "Protocol", "Coordinator"), rows)
        elif not silent:
            say("there are no groups" + (" in this state" if states else " yet"))
        return _report_silent(silent)

    run(target, work)


def _report_silent(silent: Mapping[NodeId, str]) -> int:
    """The exit code: groups of a broker that does not respond are not known."""
    for node, why in silent.items():
        complain(f"broker {node} has not told of its groups: {why}")
    return int(bool(silent))


def _listed(group: ListedGroup) -> dict[str, Any]:
    return {
        "group": group.name,
        "state": group.state,
        "type": group.type,
        "protocol_type": group.protocol_type,
        "coordinator": group.coordinator,
    }


async def unknown_group(cluster: Cluster, name: str) -> Failure:
    names = [group.name for group in (await list_groups(cluster)).groups]
    return Failure(f"group {name!r} does not exist{did_you_mean(name, names)}")


# -- describe --------------------------------------------------------------------------------------


def describe(target: Target, names: Sequence[str], *, json: bool) -> None:
    async def work(cluster: Cluster) -> int:
        wanted = list(dict.fromkeys(names))
        silent: dict[NodeId, str] = {}
        if not wanted:
            groups, silent = await list_groups(cluster)
            wanted = [group.name for group in groups]
        described = []
        for name in wanted:
            group = await describe_group(cluster, name)
            if group is not None:
                described.append(await _described(cluster, group))
            elif names:
                raise await unknown_group(cluster, name)
        if json:
            document(described)
        elif described:
            show_each(described, _show)
        elif not silent:
            say("there are no groups yet")
        return _report_silent(silent)

    run(target, work)


async def _described(cluster: Cluster, group: GroupDescription) -> dict[str, Any]:
    committed = await committed_offsets(cluster, group.name)
    owners = {partition: m for m in group.members for partition in m.partitions}
    wanted: dict[TopicPartition, Offset | None] = {
        partition: committed.get(partition) for partition in sorted({*committed, *owners})
    }
    lags = await find_lags(cluster, wanted)
    now_ms = SystemClock().now_ms()
    return {
        "group": group.name,
        "state": group.state,
        "type": group.type,
        "protocol_type": group.protocol_type,
        "protocol": group.protocol,
        "coordinator": group.coordinator,
        "members": [_member_fields(member) for member in group.members],
        "partitions": [
            _partition_fields(partition, lag, owners.get(partition), now_ms)
            for partition, lag in lags.items()
        ],
        "lag": sum(lag.records or 0 for lag in lags.values()),
    }


def _member_fields(member: GroupMember) -> dict[str, Any]:
    return {
        "member_id": member.id,
        "instance_id": member.instance_id,
        "client_id": member.client_id,
        "host": member.host,
        "partitions": [{"topic": p.topic, "partition": p.partition} for p in member.partitions],
    }


def _partition_fields(
    partition: TopicPartition, lag: Lag, owner: GroupMember | None, now_ms: int
) -> dict[str, Any]:
    age_ms = None
    if lag.records == 0:
        age_ms = 0
    elif lag.first_unread_ms is not None:
        age_ms = max(0, now_ms - lag.first_unread_ms)
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "current_offset": lag.committed,
        "start_offset": lag.start,
        "end_offset": lag.end,
        "lag": lag.records,
        "lag_ms": age_ms,
        "member_id": owner.id if owner else None,
        "client_id": owner.client_id if owner else None,
        "host": owner.host if owner else None,
        "instance_id": owner.instance_id if owner else None,
        "problem": lag.problem,
    }


def _show(group: dict[str, Any]) -> None:
    protocol = f"{group['protocol'] or 'none'} ({group['type']} protocol)"
    if group["protocol_type"] not in ("", "consumer"):
        protocol += f", {group['protocol_type']}"  # Kafka Connect, for example
    say(f"Group        {printable(group['group'])}")
    say(f"State        {group['state']}")
    say(f"Protocol     {printable(protocol)}")
    say(f"Coordinator  broker {group['coordinator']}")
    say(f"Members      {len(group['members'])}")
    say(f"Lag          {count_text(group['lag'], 'record')}")
    if group["partitions"]:
        say()
        table(
            "Topic Partition CurrentOffset EndOffset Lag LagTime ClientId Host".split(),
            [_row(partition) for partition in group["partitions"]],
            numbers="Partition CurrentOffset EndOffset Lag LagTime",
        )
    if group["members"]:
        say()
        table(
            "MemberId ClientId Host InstanceId Partitions".split(),
            [
                (
                    member["member_id"],
                    member["client_id"],
                    member["host"],
                    member["instance_id"] or "-",
                    len(member["partitions"]),
                )
                for member in group["members"]
            ],
            numbers="Partitions",
        )
    for partition in group["partitions"]:
        if partition["problem"]:
            place = f"{partition['topic']}-{partition['partition']}"
            say(f"{place}: {printable(partition['problem'])}")
        elif _has_lost(partition):
            say(
                f"{partition['topic']}-{partition['partition']}: begins at "
                f"{partition['start_offset']}; records from {partition['current_offset']} on were "
                "deleted before they were read"
            )


def _has_lost(partition: Mapping[str, Any]) -> bool:
    offset, start = partition["current_offset"], partition["start_offset"]
    return offset is not None and start is not None and offset < start


def _row(partition: Mapping[str, Any]) -> tuple[object, ...]:
    lag_ms = partition["lag_ms"]
    return (
        partition["topic"],
        partition["partition"],
        _or_dash(partition["current_offset"]),
        _or_dash(partition["end_offset"]),
        _or_dash(partition["lag"]),
        "-" if lag_ms is None else duration_text(lag_ms) if lag_ms else "0",
        _or_dash(partition["client_id"]),
        _or_dash(partition["host"]),
    )


def _or_dash(value: object) -> object:
    return "-" if value is None else value


# -- delete ----------------------------------------------------------------------------------------


def delete(
    target: Target, names: Sequence[str], *, is_sure: bool, if_exists: bool, json: bool
) -> None:
    async def work(cluster: Cluster) -> int:
        groups, silent = await list_groups(cluster)
        known, wanted = {group.name for group in groups}, []
        for name in dict.fromkeys(names):
            # The list lacks the groups of a silent broker: ask the coordinator of this one.
            if name in known or (silent and await describe_group(cluster, name) is not None):
                wanted.append(name)
            elif not if_exists:
                raise await unknown_group(cluster, name)
        if not is_sure and wanted:
            what = f"group {wanted[0]}" if len(wanted) == 1 else f"{len(wanted)} groups"
            confirm_deletion(f"deleting {', '.join(wanted)}", f"Delete {what} with all offsets?")
        deleted, failed = [], 0
        for name in wanted:
            try:
                await delete_group(cluster, name)
            except BrokerError as error:
                complain(f"group {name!r} was not deleted: {refusal(error)}")
                failed = 1
                continue
            deleted.append({"group": name})
            if not json:
                say(f"deleted {printable(name)}")
        if json:
            document(deleted)
        return failed

    run(target, work)


def delete_topics_offsets(
    target: Target, name: str, scopes: Sequence[Scope], *, is_sure: bool, json: bool
) -> None:
    async def work(cluster: Cluster) -> int:
        if await describe_group(cluster, name) is None:
            raise await unknown_group(cluster, name)
        committed = await committed_offsets(cluster, name)
        wanted = _chosen(committed, scopes)
        if not is_sure:
            what = count_text(len(wanted), "offset")
            confirm_deletion(f"deleting offsets of {name}", f"Delete {what} of group {name}?")
        results = await delete_offsets(cluster, name, wanted)
        failed = 0
        for partition, error in results.items():
            if error is not None:
                complain(f"{partition}: the offset was not deleted: {refusal(error)}")
                failed = 1
            elif not json:
                say(f"deleted the offset {committed[partition]} of {partition}")
        if json:
            document(
                [
                    {"topic": p.topic, "partition": p.partition, "offset": committed[p]}
                    for p, error in results.items()
                    if error is None
                ]
            )
        return failed

    run(target, work)


def _chosen(
    committed: Mapping[TopicPartition, Offset], scopes: Sequence[Scope]
) -> list[TopicPartition]:
    """What the group has offsets for."""
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


async def partitions_in(cluster: Cluster, scopes: Iterable[Scope]) -> list[TopicPartition]:
    """All partitions meant, which must exist."""
    chosen: dict[TopicPartition, None] = {}
    for name, numbers in scopes:
        topic = await existing_topic(cluster, name)
        wanted = range(len(topic.partitions)) if numbers is None else numbers
        for number in wanted:
            chosen[TopicPartition(name, topic.partition(number).index)] = None
    return list(chosen)


def refusal(error: BrokerError) -> str:
    return _REFUSALS.get(error.code) or error.message or error.code.name.replace("_", " ")
