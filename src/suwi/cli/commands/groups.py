"""`suwi groups`."""

from typing import Annotated

import typer

from suwi.cli.options import DEFAULT_BROKER, Broker, CommandConfig, Json, States, Target, Yes

app = typer.Typer(
    rich_markup_mode=None,
    help="List, describe, reset and delete consumer groups, and see why they rebalanced.",
    no_args_is_help=True,
)

_Name = Annotated[str, typer.Argument(metavar="GROUP", help="The group's name.")]


@app.command("list")
def list_(
    state: States = None,
    json: Json = False,
    broker: Broker = DEFAULT_BROKER,
    command_config: CommandConfig = None,
) -> None:
    """List all groups, with their state and the broker that coordinates each.

    \b
    suwi groups list
    suwi groups list --state Stable --state Empty
    """
    from suwi.cli import groups

    groups.list_all(Target(broker, command_config), state or [], json=json)


@app.command()
def describe(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="GROUP", help="Default: all groups.")
    ] = None,
    json: Json = False,
    broker: Broker = DEFAULT_BROKER,
    command_config: CommandConfig = None,
) -> None:
    """Show members, who reads which partition, and how far behind the group is.

    Lag is what was written and not committed as read, in records; LagTime is how old the first
    unread record is.

    \b
    suwi groups describe billing
    suwi groups describe billing --json
    """
    from suwi.cli import groups

    groups.describe(Target(broker, command_config), names or [], json=json)


@app.command()
def reset(
    name: _Name,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC[:0,1]",
            help="A topic, or partitions of it; repeatable.",
        ),
    ] = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="All topics that the group has offsets of.")
    ] = False,
    to_earliest: Annotated[
        bool, typer.Option("--to-earliest", help="To the first record there is.")
    ] = False,
    to_latest: Annotated[
        bool, typer.Option("--to-latest", help="To the end: only new records.")
    ] = False,
    to_current: Annotated[
        bool,
        typer.Option("--to-current", help="To the committed offset; to the end if there is none."),
    ] = False,
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", metavar="N", min=0, help="To an offset.")
    ] = None,
    shift_by: Annotated[
        int | None,
        typer.Option("--shift-by", metavar="N", help="By so many records, back if negative."),
    ] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option(
            "--to-datetime",
            metavar="TIME",
            help="To the first record at or after a time: 2026-01-31T12:00:00.000, in UTC.",
        ),
    ] = None,
    by_duration: Annotated[
        str | None,
        typer.Option(
            "--by-duration",
            metavar="TIME",
            help="To the first record since so long ago: 90m, 2h, or Kafka's PT1H30M.",
        ),
    ] = None,
    from_file: Annotated[
        str | None,
        typer.Option(
            "--from-file", metavar="CSV", help="To offsets in lines of topic,partition,offset."
        ),
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
    broker: Broker = DEFAULT_BROKER,
    command_config: CommandConfig = None,
) -> None:
    """Let a group go on elsewhere. Shows what would change; --execute does it.

    The group must have no members. An offset that a partition does not have becomes the nearest
    that it has.

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
    from suwi.cli.group_reset import Goal, parse_reset
    from suwi.cli.group_reset import reset as run
    from suwi.cli.groups import parse_scope

    goal = parse_reset(
        name,
        {
            Goal.EARLIEST: to_earliest,
            Goal.LATEST: to_latest,
            Goal.CURRENT: to_current,
            Goal.OFFSET: to_offset,
            Goal.SHIFT: shift_by,
            Goal.DATETIME: to_datetime,
            Goal.DURATION: by_duration,
            Goal.FILE: from_file,
        },
    )
    run(
        Target(broker, command_config),
        name,
        [parse_scope(text) for text in topic or []],
        goal,
        execute=execute,
        export=export,
        json=json,
    )


@app.command()
def delete(
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
        bool, typer.Option("--if-exists", help="A group that is not there is no failure.")
    ] = False,
    json: Json = False,
    broker: Broker = DEFAULT_BROKER,
    command_config: CommandConfig = None,
) -> None:
    """Delete groups with all their offsets, or only a group's offsets of some topics.

    A group that has members cannot be deleted, nor its offsets of topics that they read.

    \b
    suwi groups delete billing
    suwi groups delete billing --topic orders:0,1 --yes
    """
    from suwi.cli import groups

    target = Target(broker, command_config)
    if not topic:
        groups.delete(target, names, is_sure=yes, if_exists=if_exists, json=json)
    if len(names) > 1:
        raise typer.BadParameter("goes with one group", param_hint="--topic")
    scopes = [groups.parse_scope(text) for text in topic or []]
    groups.delete_topics_offsets(target, names[0], scopes, is_sure=yes, json=json)


@app.command()
def history(
    name: _Name,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", metavar="N", min=1, help="Only the last N.")
    ] = None,
    members: Annotated[
        bool, typer.Option("--members", help="Also how long each member stood still.")
    ] = False,
    json: Json = False,
    broker: Broker = DEFAULT_BROKER,
    command_config: CommandConfig = None,
) -> None:
    """Show why the group rebalanced: what triggered it, by whom, and how long it took.

    Pause is from the trigger until the assignment was there, StoodStill how long the member that
    waited longest had none. The coordinator keeps the last 100 in its memory: they are lost when it
    stops, or when another broker takes over.

    \b
    suwi groups history billing --limit 10
    """
    from suwi.cli.group_history import show

    show(Target(broker, command_config), name, limit=limit, members=members, json=json)
