"""Resets the offsets of a group: `plan_reset` says what would change, `apply_reset` commits it.

A group that has members is refused: they would commit their own offsets over the new ones.
"""

import re
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from suwi.admin.failure import Failure
from suwi.admin.group_descriptions import Scope, partitions_in
from suwi.admin.text import count_text, names_text, parse_duration_ms, parse_time_ms, printable
from suwi.client.cluster import Cluster
from suwi.client.group_offsets import commit_offsets
from suwi.client.groups import GroupDescription, committed_offsets, describe_group
from suwi.client.offsets import EARLIEST, LATEST, FoundOffset, list_offsets
from suwi.model.errors import BrokerError
from suwi.model.ids import NO_OFFSET, Offset, PartitionIndex, TopicPartition

_NAMED_MEMBERS_MAX = 3


class Goal(Enum):
    EARLIEST = "earliest"
    LATEST = "latest"
    CURRENT = "current"
    """The committed offset, or else the end."""
    OFFSET = "offset"
    SHIFT = "shift"
    """By a number of records, back if it is negative."""
    TIME = "time"
    """The first record at or after a time, or else the end."""
    GIVEN = "given"
    """An offset for each partition."""


class Reset(NamedTuple):
    goal: Goal
    number: int = 0
    """The offset, the number of records, or the time in milliseconds."""
    offsets: Mapping[TopicPartition, Offset] = {}


def parse_reset(option: str, value: str, now_ms: int) -> Reset:
    """An option of `suwi groups reset`, such as --to-offset, and its value. Raises `Failure`."""
    match option:
        case "--to-offset" | "--shift-by":
            if not re.fullmatch(r"-?[0-9]{1,18}", value) or (
                option == "--to-offset" and "-" in value
            ):
                raise Failure(f"{value!r} is not a number")
            return Reset(Goal.OFFSET if option == "--to-offset" else Goal.SHIFT, int(value))
        case "--to-datetime":
            time_ms = parse_time_ms(value)
            if time_ms is None:
                raise Failure(
                    f"{value!r}: give it as 2026-01-31T12:00:00.000, in UTC, or with +02:00"
                )
            return Reset(Goal.TIME, time_ms)
        case "--by-duration":
            duration_ms = parse_duration_ms(value)
            if duration_ms is None:
                raise Failure(f"{value!r}: give it as 90m, 2h, 1d, or in Kafka's form: P1DT2H30M")
            return Reset(Goal.TIME, max(0, now_ms - duration_ms))
    return Reset(Goal(option.removeprefix("--to-")))


class OffsetChange(NamedTuple):
    topic: str
    partition: int
    current_offset: Offset | None
    new_offset: Offset


class ResetPlan(NamedTuple):
    group: str
    exists: bool
    """Whether the group exists; the reset creates it otherwise."""
    changes: Sequence[OffsetChange]
    notes: Sequence[str]
    """Where a wanted offset does not exist and the nearest one is taken."""


async def plan_reset(
    cluster: Cluster, group: str, scopes: Sequence[Scope], reset: Reset
) -> ResetPlan:
    """Without scopes: all topics that the group has offsets of, or the given offsets."""
    described = await describe_group(cluster, group)
    _refuse_members(group, described)
    current = await committed_offsets(cluster, group)
    wanted = await partitions_in(cluster, scopes)
    if reset.goal is Goal.GIVEN:
        wanted = [place for place in wanted or reset.offsets if place in reset.offsets]
    elif not scopes:
        wanted = list(current)
    wanted.sort()
    starts = await list_offsets(cluster, dict.fromkeys(wanted, EARLIEST))
    ends = await list_offsets(cluster, dict.fromkeys(wanted, LATEST))
    times: Mapping[TopicPartition, FoundOffset] = {}
    if reset.goal is Goal.TIME:
        times = await list_offsets(cluster, dict.fromkeys(wanted, reset.number))
    changes, notes = [], []
    for place in wanted:
        start, end = starts[place].offset, ends[place].offset
        at_time = times[place].offset if place in times else None
        after = _offset_after(place, reset, current.get(place), start, end, at_time)
        bounded = Offset(min(max(after, start), end))
        if bounded != after:
            notes.append(
                f"{place} has offsets {start} to {end}: {bounded} is taken instead of {after}"
            )
        changes.append(OffsetChange(*place, current.get(place), bounded))
    if not changes:
        raise Failure(f"group {group!r} has no offsets; name what to set with --topic")
    return ResetPlan(group, described is not None, changes, notes)


async def apply_reset(cluster: Cluster, plan: ResetPlan) -> None:
    offsets = {
        TopicPartition(c.topic, PartitionIndex(c.partition)): c.new_offset for c in plan.changes
    }
    try:
        await commit_offsets(cluster, plan.group, offsets)
    except BrokerError as error:
        _refuse_members(plan.group, await describe_group(cluster, plan.group))
        raise error


def _refuse_members(group: str, described: GroupDescription | None) -> None:
    if described is None or not described.members:
        return
    members = [f"{member.client_id} at {member.host}" for member in described.members]
    named = names_text(members, _NAMED_MEMBERS_MAX)
    raise Failure(
        f"group {group!r} has {count_text(len(members), 'member')} ({printable(named)}), which "
        "would commit over it: stop them first, or wait for their session time-out"
    )


def _offset_after(
    place: TopicPartition,
    reset: Reset,
    current: Offset | None,
    start: Offset,
    end: Offset,
    at_time: Offset | None,
) -> Offset:
    match reset.goal:
        case Goal.EARLIEST:
            return start
        case Goal.LATEST:
            return end
        case Goal.CURRENT:
            return end if current is None else current
        case Goal.OFFSET:
            return Offset(reset.number)
        case Goal.SHIFT:
            if current is None:
                raise Failure(f"{place} has no committed offset to shift")
            return Offset(current + reset.number)
        case Goal.TIME:
            assert at_time is not None
            return end if at_time == NO_OFFSET else at_time
        case Goal.GIVEN:
            return reset.offsets[place]
