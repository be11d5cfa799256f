"""`suwi groups`."""

import csv
import io
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from suwi.admin.failure import Failure
from suwi.admin.group_changes import remove_group, remove_offsets
from suwi.admin.group_descriptions import (
    COORDINATOR_MOVED,
    GroupWithLag,
    PartitionLag,
    Scope,
    committed_in,
    describe_groups,
    history_entries,
    unknown_group,
)
from suwi.admin.offset_reset import Goal, Reset, ResetPlan, apply_reset, parse_reset, plan_reset
from suwi.admin.text import count_text, duration_text, printable, time_text
from suwi.cli.output import complain, complain_of_silent, document, or_dash, say, show_each, table
from suwi.cli.session import Json, States, Yes, confirm_deletion, on_cluster, read_text
from suwi.client.cluster import Cluster
from suwi.client.groups import (
    ListedGroup,
    committed_offsets,
    describe_group,
    group_history,
    list_groups,
)
from suwi.env import SystemClock
from suwi.model.ids import Offset, PartitionIndex, TopicPartition

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, add_completion=False)

_Name = Annotated[str, typer.Argument(metavar="GROUP", help="The group's name.")]


# -- list ------------------------------------------------------------------------------------------


@app.command("list")
@on_cluster
async def list_(cluster: Cluster, state: States = None, json: Json = False) -> int:
    """List all groups, with their state and the broker that coordinates each.

    \b
    suwi groups list
    suwi groups list --state Stable --state Empty
    """
    groups, silent = await list_groups(cluster, state or [])
    if json:
        keys = ("group", *ListedGroup._fields[1:])
        document([dict(zip(keys, group, strict=True)) for group in groups])
    elif groups:
        rows = [
            (g.name, g.state, g.type or "-", g.protocol_type or "-", g.coordinator) for g in groups
        ]
        table(("Group", "State", "Type", "Protocol", "Coordinator"), rows)
    elif not silent:
        say("there are no groups" + (" in this state" if state else " yet"))
    return complain_of_silent(silent, "groups")


# -- describe --------------------------------------------------------------------------------------


@app.command()
@on_cluster
async def describe(
    cluster: Cluster,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="GROUP", help="Default: all groups.")
    ] = None,
    json: Json = False,
) -> int:
    """Show members, who reads which partition, and how far behind the group is.

    Lag is the number of records after the committed offset, LagTime the age of the first of them.

    \b
    suwi groups describe billing
    suwi groups describe billing --json
    """
    groups, silent = await describe_groups(cluster, names or [], SystemClock().now_ms())
    if json:
        document(groups)
    elif groups:
        show_each(groups, _show)
    elif not silent:
        say("there are no groups yet")
    return complain_of_silent(silent, "groups")


def _show(group: GroupWithLag) -> None:
    protocol = f"{group.protocol or 'none'} ({group.type} protocol)"
    if group.protocol_type not in ("", "consumer"):
        protocol += f", {group.protocol_type}"  # Kafka Connect, for example
    say(f"Group        {printable(group.group)}")
    say(f"State        {group.state}")
    say(f"Protocol     {printable(protocol)}")
    say(f"Coordinator  broker {group.coordinator}")
    say(f"Members      {len(group.members)}")
    say(f"Lag          {count_text(group.lag, 'record')}")
    if group.partitions:
        say()
        table(
            "Topic Partition CurrentOffset EndOffset Lag LagTime ClientId Host".split(),
            map(_lag_row, group.partitions),
            numbers="Partition CurrentOffset EndOffset Lag LagTime",
        )
    if group.members:
        say()
        table(
            "MemberId ClientId Host InstanceId Partitions".split(),
            [
                (m.member_id, m.client_id, m.host, m.instance_id or "-", len(m.partitions))
                for m in group.members
            ],
            numbers="Partitions",
        )
    for each in group.partitions:
        if each.problem:
            say(f"{each.topic}-{each.partition}: {printable(each.problem)}")
        elif each.has_lost_records:
            say(
                f"{each.topic}-{each.partition}: begins at {each.start_offset}; records from "
                f"{each.current_offset} on were deleted before they were read"
            )


def _lag_row(each: PartitionLag) -> tuple[object, ...]:
    return (
        each.topic,
        each.partition,
        or_dash(each.current_offset),
        or_dash(each.end_offset),
        or_dash(each.lag),
        "-" if each.lag_ms is None else duration_text(each.lag_ms) if each.lag_ms else "0",
        or_dash(each.client_id),
        or_dash(each.host),
    )


# -- reset -----------------------------------------------------------------------------------------


@app.command()
@on_cluster
async def reset(
    cluster: Cluster,
    name: _Name,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", "-t", metavar="TOPIC[:0,1]", help="A topic, or partitions of it; repeatable."
        ),
    ] = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="All topics that the group has offsets of.")
    ] = False,
    to_earliest: Annotated[
        bool, typer.Option("--to-earliest", help="To the first record.")
    ] = False,
    to_latest: Annotated[
        bool, typer.Option("--to-latest", help="To the end: only new records.")
    ] = False,
    to_current: Annotated[
        bool,
        typer.Option("--to-current", help="To the committed offset; to the end if there is none."),
    ] = False,
    to_offset: Annotated[int | None, typer.Option(metavar="N", min=0, help="To an offset.")] = None,
    shift_by: Annotated[
        int | None, typer.Option(metavar="N", help="By this many records; back if negative.")
    ] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="To the first record at or after a time: 2026-01-31T12:00:00.000, in UTC.",
        ),
    ] = None,
    by_duration: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="To the first record of the last 90m, 2h, or, in Kafka's form, PT1H30M.",
        ),
    ] = None,
    from_file: Annotated[
        str | None,
        typer.Option(metavar="CSV", help="To offsets in lines of topic,partition,offset."),
    ] = None,
    execute: Annotated[
        bool,
        typer.Option(
            "--execute/--dry-run", help="Do it, or only show what would change (the default)."
        ),
    ] = False,
    export: Annotated[
        bool, typer.Option("--export", help="Print lines of topic,partition,offset.")
    ] = False,
    json: Json = False,
) -> None:
    """Set where a group continues to read. Shows what would change; --execute changes it.

    The group must have no members. If a partition does not have the offset, the nearest one that it
    has is taken.

    \b
    suwi groups reset billing --all-topics --to-earliest
    suwi groups reset billing --topic orders:0,1 --shift-by -100 --execute
    suwi groups reset billing --topic orders --to-datetime 2026-01-31T12:00 --execute
    suwi groups reset billing --topic orders --by-duration 2h --export > offsets.csv
    suwi groups reset billing --from-file offsets.csv --execute
    """
    if all_topics and topic:
        raise typer.BadParameter("goes without --topic", param_hint="--all-topics")
    if not (all_topics or topic or from_file):
        raise typer.BadParameter("say what to reset: --topic TOPIC[:0,1] or --all-topics")
    wanted = _parse_reset(
        name,
        {
            "--to-earliest": to_earliest or None,
            "--to-latest": to_latest or None,
            "--to-current": to_current or None,
            "--to-offset": to_offset,
            "--shift-by": shift_by,
            "--to-datetime": to_datetime,
            "--by-duration": by_duration,
            "--from-file": from_file,
        },
    )
    plan = await plan_reset(cluster, name, [_parse_scope(text) for text in topic or []], wanted)
    for note in plan.notes:
        complain(note)
    if execute:
        await apply_reset(cluster, plan)
    if json:
        document([{**each._asdict(), "dry_run": not execute} for each in plan.changes])
    elif export:
        for change in plan.changes:
            say(f"{change.topic},{change.partition},{change.new_offset}")
    else:
        _show_plan(plan, execute=execute)


def _parse_scope(text: str) -> Scope:
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


def _parse_reset(group: str, options: Mapping[str, str | int | None]) -> Reset:
    """Exactly one of the options must be given."""
    given = [(option, value) for option, value in options.items() if value is not None]
    if len(given) != 1:
        what = "say where to" if not given else "only one can be"
        raise typer.BadParameter(f"{what}: one of {', '.join(options)}")
    ((option, value),) = given
    if option == "--from-file":
        return Reset(Goal.GIVEN, offsets=_read_offsets(group, str(value)))
    try:
        return parse_reset(option, str(value), SystemClock().now_ms())
    except Failure as failure:
        raise typer.BadParameter(str(failure), param_hint=option) from None


def _read_offsets(group: str, path: str) -> dict[TopicPartition, Offset]:
    """Lines of `topic,partition,offset`, or of `group,topic,partition,offset`: then only those of
    this group."""
    offsets = {}
    for number, row in enumerate(csv.reader(io.StringIO(read_text(path, "--from-file"))), 1):
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
            offsets[TopicPartition(topic, PartitionIndex(int(partition)))] = Offset(int(offset))
    if not offsets:
        raise typer.BadParameter(f"{path} has no offset of {group}", param_hint="--from-file")
    return offsets


def _show_plan(plan: ResetPlan, *, execute: bool) -> None:
    rows = []
    for topic, partition, before, after in plan.changes:
        by = "-" if before is None else f"{after - before:+d}" if after != before else "0"
        rows.append((topic, partition, or_dash(before), after, by))
    table(
        "Topic Partition CurrentOffset NewOffset Change".split(),
        rows,
        numbers="Partition CurrentOffset NewOffset Change",
    )
    partitions, group = count_text(len(rows), "partition"), printable(plan.group)
    if execute:
        say(f"reset {partitions} of group {group}")
        return
    creates = "" if plan.exists else f"; group {group} does not exist yet and would be created"
    say(f"nothing was changed: --execute resets {partitions}{creates}")


# -- delete ----------------------------------------------------------------------------------------


@app.command()
@on_cluster
async def delete(
    cluster: Cluster,
    names: Annotated[list[str], typer.Argument(metavar="GROUP", help="Names of groups.")],
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC[:0,1]",
            help="Only the offsets of this topic, or of partitions of it; repeatable.",
        ),
    ] = None,
    yes: Yes = False,
    if_exists: Annotated[
        bool, typer.Option("--if-exists", help="Do not fail if a group does not exist.")
    ] = False,
    json: Json = False,
) -> int:
    """Delete groups with all their offsets, or only a group's offsets of some topics.

    A group with members cannot be deleted; neither can its offsets of topics that they read.

    \b
    suwi groups delete billing
    suwi groups delete billing --topic orders:0,1 --yes
    """
    if not topic:
        return await _delete_groups(cluster, names, yes=yes, if_exists=if_exists, json=json)
    if len(names) > 1:
        raise typer.BadParameter("goes with one group", param_hint="--topic")
    scopes = [_parse_scope(text) for text in topic]
    return await _delete_offsets(cluster, names[0], scopes, yes=yes, json=json)


async def _delete_groups(
    cluster: Cluster, names: list[str], *, yes: bool, if_exists: bool, json: bool
) -> int:
    groups, silent = await list_groups(cluster)
    known, wanted = {group.name for group in groups}, []
    for name in dict.fromkeys(names):
        # The list lacks the groups of a silent broker: ask the coordinator of this one.
        if name in known or (silent and await describe_group(cluster, name) is not None):
            wanted.append(name)
        elif not if_exists:
            raise await unknown_group(cluster, name)
    if not yes and wanted:
        what = f"group {wanted[0]}" if len(wanted) == 1 else f"{len(wanted)} groups"
        confirm_deletion(f"deleting {', '.join(wanted)}", f"Delete {what} with all offsets?")
    deleted, failed = [], 0
    for name in wanted:
        try:
            await remove_group(cluster, name)
        except Failure as failure:
            complain(str(failure))
            failed = 1
            continue
        deleted.append({"group": name})
        if not json:
            say(f"deleted {printable(name)}")
    if json:
        document(deleted)
    return failed


async def _delete_offsets(
    cluster: Cluster, name: str, scopes: list[Scope], *, yes: bool, json: bool
) -> int:
    if await describe_group(cluster, name) is None:
        raise await unknown_group(cluster, name)
    committed = await committed_offsets(cluster, name)
    wanted = committed_in(committed, scopes)
    if not yes:
        what = count_text(len(wanted), "offset")
        confirm_deletion(f"deleting offsets of {name}", f"Delete {what} of group {name}?")
    deleted, failed = [], 0
    for place, refusal in (await remove_offsets(cluster, name, wanted)).items():
        if refusal is not None:
            complain(f"{place}: the offset was not deleted: {refusal}")
            failed = 1
            continue
        deleted.append({**place._asdict(), "offset": committed[place]})
        if not json:
            say(f"deleted the offset {committed[place]} of {place}")
    if json:
        document(deleted)
    return failed


# -- history ---------------------------------------------------------------------------------------


@app.command()
@on_cluster
async def history(
    cluster: Cluster,
    name: _Name,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", metavar="N", min=1, help="Only the last N.")
    ] = None,
    members: Annotated[
        bool, typer.Option("--members", help="Also show how long each member had no assignment.")
    ] = False,
    json: Json = False,
) -> None:
    """Show why the group rebalanced: what triggered it, by whom, and how long it took.

    Pause is the time from the trigger to the new assignment, StoodStill the longest time that a
    member had no assignment. The coordinator keeps the last 100 rebalances in memory: they are lost
    when it stops, or when another broker takes over.

    \b
    suwi groups history billing --limit 10
    """
    found = await group_history(cluster, name)
    if not found.exists and not found.rebalances:
        raise await unknown_group(cluster, name)
    entries = history_entries(found)
    entries = entries if limit is None else entries[-limit:]
    if json:
        document({"group": name, "coordinator": found.coordinator, "history": entries})
        return
    if not entries:
        say(f"group {printable(name)} has not rebalanced since broker {found.coordinator}")
        say("coordinates it; histories are kept in memory and lost with the process")
        return
    table(
        "Time Trigger ClientId Host Generation Members Pause StoodStill Reason".split(),
        map(_history_row, entries),
        numbers="Members Pause StoodStill",
    )
    if members:
        _show_pauses(entries)


def _history_row(entry: dict[str, Any]) -> tuple[object, ...]:
    if "to_broker" in entry:
        moved = f"to broker {entry['to_broker']}; no rebalance"
        return (time_text(entry["at_ms"]), COORDINATOR_MOVED, *"------", moved)
    pause_ms, still_ms = entry["pause_ms"], entry["stood_still_ms"].values()
    to = entry["to_generation"]
    return (
        time_text(entry["at_ms"]),
        entry["trigger"],
        entry["client_id"] or "-",
        entry["host"] or "-",
        f"{entry['from_generation']} -> {'...' if to is None else to}",
        "-" if pause_ms is None else entry["members"],
        "goes on" if pause_ms is None else duration_text(pause_ms),
        duration_text(max(still_ms)) if still_ms else "-",
        entry["reason"] or "-",
    )


def _show_pauses(entries: list[dict[str, Any]]) -> None:
    rows = [
        (time_text(entry["at_ms"]), member, duration_text(still_ms))
        for entry in entries
        for member, still_ms in entry.get("stood_still_ms", {}).items()
    ]
    if rows:
        say()
        table(("Time", "MemberId", "StoodStill"), rows, numbers="StoodStill")
