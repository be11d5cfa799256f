"""`suwi produce` and `suwi consume`."""

from enum import StrEnum
from typing import Annotated

import typer

from suwi.cli.options import DEFAULT_BROKER, Broker, CommandConfig, Target, pairs

_Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]


class Codec(StrEnum):
    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Acks(StrEnum):
    ALL = "all"
    ONE = "1"
    NONE = "0"


def produce(
    topic: _Topic,
    file: Annotated[
        str | None,
        typer.Option("--file", "-f", metavar="FILE", help="Read lines from a file, not stdin."),
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", "-k", metavar="TEXT", help="Text between key and value."),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header", "-H", metavar="NAME=VALUE", help="Header of every record; repeatable."
        ),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option("--partition", "-p", metavar="N", min=0, help="Default: by the key."),
    ] = None,
    compression: Annotated[
        Codec, typer.Option("--compression", "-z", help="Compression of the batches.")
    ] = Codec.NONE,
    acks: Annotated[
        Acks,
        typer.Option(
            "--acks", help="Required acknowledgements: all in-sync replicas, the leader, none."
        ),
    ] = Acks.ALL,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout", min=0.1, metavar="SECONDS", help="Time limit to deliver a record."
        ),
    ] = 30,
    json: Annotated[
        bool,
        typer.Option("--json", help="Lines are JSON, as `suwi consume --json` prints them."),
    ] = False,
    broker: Broker = DEFAULT_BROKER,
    command_config: CommandConfig = None,
) -> None:
    """Write records, one per line of stdin.

    \b
    echo apple | suwi produce fruit
    suwi produce fruit --file fruit.txt --key-separator '\\t'

    \b
    With --json a line looks like this; all fields but the value are optional:
    {"key": "k", "value": "v", "headers": {"h": "1"}, "partition": 0, "timestamp": 0}
    """
    if json and key_separator is not None:
        raise typer.BadParameter("JSON lines have their own keys", param_hint="--key-separator")
    if key_separator == "":
        raise typer.BadParameter("it is empty", param_hint="--key-separator")
    headers = pairs(header or [], "--header")
    from suwi.cli import produce as work

    work.produce(
        Target(broker, command_config),
        topic,
        work.LineForm(key_separator, headers, partition, is_json=json),
        path=file,
        codec=compression.value,
        acks={"all": -1, "1": 1, "0": 0}[acks.value],
        timeout_s=timeout,
    )


def consume(
    topic: _Topic,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            metavar="NAME",
            help="Read as a member of a consumer group, from where it left off, and commit.",
        ),
    ] = None,
    instance_id: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="With --group: be a static member (group.instance.id), which a restart keeps.",
        ),
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", metavar="N", min=0, help="Default: all; repeatable."),
    ] = None,
    offset: Annotated[
        str | None,
        typer.Option(
            "--offset",
            "-o",
            metavar="N",
            help="Where to start: an offset, -N for the last N, earliest or latest.",
        ),
    ] = None,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Start with the oldest record.")
    ] = False,
    from_time: Annotated[
        str | None,
        typer.Option(
            "--from-time",
            "-t",
            metavar="TIME",
            help="Start at a time: 2026-01-31T12:00 (UTC), milliseconds, or 10m ago as 10m.",
        ),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option("--count", "-n", metavar="N", min=1, help="Stop after N records."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", help="Wait for new records, or stop at the end.")
    ] = True,
    committed: Annotated[
        bool, typer.Option("--committed", help="Skip aborted and open transactions.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per record.")] = False,
    keys: Annotated[bool, typer.Option("--keys", "-k", help="Print keys.")] = False,
    headers: Annotated[bool, typer.Option("--headers", help="Print headers.")] = False,
    timestamps: Annotated[bool, typer.Option("--timestamps", help="Print times.")] = False,
    offsets: Annotated[
        bool, typer.Option("--offsets", help="Print partitions and offsets.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print all of that.")] = False,
    broker: Broker = DEFAULT_BROKER,
    command_config: CommandConfig = None,
) -> None:
    """Print records until Ctrl-C.

    By default only new records are printed.

    \b
    suwi consume fruit --from-beginning --no-follow --keys
    suwi consume fruit --partition 0 --offset 42 -n 1 --json
    suwi consume fruit --group juicers --from-beginning
    """
    given = [o for o in (offset, from_time, "earliest" if from_beginning else None) if o]
    if len(given) > 1:
        raise typer.BadParameter("give one of --offset, --from-time and --from-beginning")
    if group is not None and (partition or offset or from_time):
        raise typer.BadParameter(
            "a group assigns the partitions and knows the offsets; use --from-beginning at most, "
            "or `suwi groups reset`",
            param_hint="--group",
        )
    from suwi.cli import consume as work

    form = work.RecordForm(
        is_json=json,
        offsets=offsets or verbose,
        timestamps=timestamps or verbose,
        headers=headers or verbose,
        keys=keys or verbose,
    )
    target = Target(broker, command_config)
    if group is not None:
        from suwi.cli.group_consume import consume_in_group

        consume_in_group(
            target,
            topic,
            group,
            form,
            instance_id=instance_id,
            from_beginning=from_beginning,
            count=count,
            follow=follow,
            committed=committed,
        )
        return
    if instance_id is not None:
        raise typer.BadParameter("requires --group", param_hint="--instance-id")
    start = work.parse_start("earliest" if from_beginning else offset, from_time)
    work.consume(
        target,
        topic,
        start,
        form,
        partitions=partition or [],
        count=count,
        follow=follow,
        committed=committed,
    )
