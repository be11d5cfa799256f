"""The work of `suwi groups reset`: where a group goes on reading.

What would change is shown first; only `--execute` commits it. A group that has members is left
alone: they would commit their own offsets over the new ones.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

import typer

from suwi.cli.groups import Scope, partitions_in
from suwi.cli.options import Target
from suwi.cli.output import Failure, complain, count_text, document, printable, say, table
from suwi.cli.session import run
from suwi.cli.times import parse_duration_ms, parse_time_ms
from suwi.client.cluster import Cluster
from suwi.client.group_offsets import commit_offsets
from suwi.client.groups import GroupDescription, committed_offsets, describe_group
from suwi.client.offsets import EARLIEST, LATEST, FoundOffset, list_offsets
from suwi.env import SystemClock, local_env
from suwi.model.errors import BrokerError
from suwi.model.ids import NO_OFFSET, Offset, PartitionIndex, TopicPartition

_NAMED_MEMBERS_MAX = 3


class Goal(Enum):
    EARLIEST = "--to-earliest"
    LATEST = "--to-latest"
    CURRENT = "--to-current"
    OFFSET = "--to-offset"
    SHIFT = "--shift-by"
    DATETIME = "--to-datetime"
    DURATION = "--by-duration"
    FILE = "--from-file"


class Reset(NamedTuple):
    """Where to: the goal with its number, time in milliseconds, or offsets."""

    goal: Goal
    number: int = 0
    offsets: Mapping[TopicPartition, Offset] = {}


class _Change(NamedTuple):
    before: Offset | None
    after: Offset


# -- what was asked for ----------------------------------------------------------------------------


def parse_reset(group: str, asked: Mapping[Goal, str | int | bool | None]) -> Reset:
    """Exactly one of the goals has a value."""
    given = [goal for goal, value in asked.items() if value is not None and value is not False]
    if len(given) != 1:
        names = ", ".join(goal.value for goal in Goal)
        what = "say where to" if not given else "only one can be"
        raise typer.BadParameter(f"{what}: one of {names}")
    (goal,) = given
    value = asked[goal]
    match goal:
        case Goal.OFFSET | Goal.SHIFT:
            return Reset(goal, int(value or 0))
        case Goal.DATETIME:
            time_ms = parse_time_ms(str(value))
            if time_ms is None:
                raise typer.BadParameter(
                    f"{value!r}: give it as 2026-01-31T12:00:00.000, in UTC, or with +02:00",
                    param_hint="--to-datetime",
                )
            return Reset(goal, time_ms)
        case Goal.DURATION:
            duration_ms = parse_duration_ms(str(value))
            if duration_ms is None:
                raise typer.BadParameter(
                    f"{value!r}: give it as 90m, 2h, 1d, or in Kafka's form: P1DT2H30M",
                    param_hint="--by-duration",
                )
            return Reset(goal, max(0, SystemClock().now_ms() - duration_ms))
        case Goal.FILE:
            return Reset(goal, offsets=_read_file(group, str(value)))
    return Reset(goal)


def _read_file(group: str, path: str) -> dict[TopicPartition, Offset]:
    """Lines `topic,partition,offset`, or with the group before them: then only this one's."""
    try:
        text = local_env().disk.read_bytes(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", None) or "not a text file in UTF-8"
        raise typer.BadParameter(f"{path}: {problem}", param_hint="--from-file") from None
    offsets = {}
    for number, row in enumerate(csv.reader(io.StringIO(text)), 1):
        if not row:
            continue
        try:
            *named, topic, partition, offset = (word.strip() for word in row)
            if len(named) > 1 or int(partition) < 0 or int(offset) < 0:
                raise ValueError
        except ValueError:
            raise typer.BadParameter(
                f"{path}, line {number}: {','.join(row)!r}: give it as topic,partition,offset",
                param_hint="--from-file",
            ) from None
        if named in ([], [group]):
            place = TopicPartition(topic, PartitionIndex(int(partition)))
            offsets[place] = Offset(int(offset))
    if not offsets:
        raise typer.BadParameter(f"{path} has no offset of {group}", param_hint="--from-file")
    return offsets


# -- doing it --------------------------------------------------------------------------------------


def reset(
    target: Target,
    group: str,
    scopes: Sequence[Scope],
    goal: Reset,
    *,
    execute: bool,
    export: bool,
    json: bool,
) -> None:
    """Without scopes: all topics that the group has offsets of, or those of the file."""

    async def work(cluster: Cluster) -> None:
        described = await describe_group(cluster, group)
        _refuse_members(group, described)
        current = await committed_offsets(cluster, group)
        changes = await _plan(cluster, scopes, goal, current)
        if not changes:
            raise Failure(f"group {group!r} has no offsets; name what to set with --topic")
        if execute:
            try:
                await commit_offsets(cluster, group, {p: c.after for p, c in changes.items()})
            except BrokerError as error:
                _refuse_members(group, await describe_group(cluster, group))
                raise error
        _show(
            group, changes, exists=described is not None, execute=execute, export=export, json=json
        )

    run(target, work)


def _refuse_members(group: str, described: GroupDescription | None) -> None:
    if described is None or not described.members:
        return
    members = described.members
    names = [f"{member.client_id} at {member.host}" for member in members[:_NAMED_MEMBERS_MAX]]
    more = len(members) - len(names)
    named = ", ".join(names) + (f" and {more} more" if more else "")
    raise Failure(
        f"group {group!r} has {count_text(len(members), 'member')} ({printable(named)}), which "
        "would commit over it: stop them first, or wait for their session time-out"
    )


async def _plan(
    cluster: Cluster,
    scopes: Sequence[Scope],
    goal: Reset,
    current: Mapping[TopicPartition, Offset],
) -> dict[TopicPartition, _Change]:
    wanted = await partitions_in(cluster, scopes)
    if goal.goal is Goal.FILE:
        wanted = [place for place in wanted or goal.offsets if place in goal.offsets]
    elif not scopes:
        wanted = list(current)
    wanted.sort()
    starts = await list_offsets(cluster, dict.fromkeys(wanted, EARLIEST))
    ends = await list_offsets(cluster, dict.fromkeys(wanted, LATEST))
    times: Mapping[TopicPartition, FoundOffset] = {}
    if goal.goal in (Goal.DATETIME, Goal.DURATION):
        times = await list_offsets(cluster, dict.fromkeys(wanted, goal.number))
    changes = {}
    for place in wanted:
        start, end = starts[place].offset, ends[place].offset
        at_time = times[place].offset if place in times else None
        after = _goal_of(place, goal, current.get(place), start, end, at_time)
        bounded = Offset(min(max(after, start), end))
        if bounded != after:
            complain(f"{place} has offsets {start} to {end}: {bounded} is taken instead of {after}")
        changes[place] = _Change(current.get(place), bounded)
    return changes


def _goal_of(
    place: TopicPartition,
    goal: Reset,
    current: Offset | None,
    start: Offset,
    end: Offset,
    at_time: Offset | None,
) -> Offset:
    match goal.goal:
        case Goal.EARLIEST:
            return start
        case Goal.LATEST:
            return end
        case Goal.CURRENT:
            return end if current is None else current
        case Goal.OFFSET:
            return Offset(goal.number)
        case Goal.SHIFT:
            if current is None:
                raise Failure(f"{place} has no committed offset to shift")
            return Offset(current + goal.number)
        case Goal.DATETIME | Goal.DURATION:
            assert at_time is not None
            return end if at_time == NO_OFFSET else at_time
        case Goal.FILE:
            return goal.offsets[place]


def _show(
    group: str,
    changes: Mapping[TopicPartition, _Change],
    *,
    exists: bool,
    execute: bool,
    export: bool,
    json: bool,
) -> None:
    if json:
        document([_fields(place, change, execute) for place, change in changes.items()])
        return
    if export:
        for place, change in changes.items():
            say(f"{place.topic},{place.partition},{change.after}")
        return
    table(
        "Topic Partition CurrentOffset NewOffset Change".split(),
        [
            (
                place.topic,
                place.partition,
                "-" if change.before is None else change.before,
                change.after,
                "-" if change.before is None else _signed(change.after - change.before),
            )
            for place, change in changes.items()
        ],
        numbers="Partition CurrentOffset NewOffset Change",
    )
    partitions = count_text(len(changes), "partition")
    if execute:
        say(f"reset {partitions} of group {printable(group)}")
        return
    makes = "" if exists else f"; group {printable(group)} does not exist yet and would be made"
    say(f"nothing was changed: --execute resets {partitions}{makes}")


def _signed(number: int) -> str:
    return f"{number:+d}" if number else "0"


def _fields(place: TopicPartition, change: _Change, execute: bool) -> dict[str, Any]:
    return {
        "topic": place.topic,
        "partition": place.partition,
        "current_offset": change.before,
        "new_offset": change.after,
        "dry_run": not execute,
    }
