"""`suwi topics`."""

from typing import Annotated

import typer

from suwi.cli.options import DEFAULT_BROKER, Broker, CommandConfig, Json, Target, pairs

app = typer.Typer(
    rich_markup_mode=None,
    help="Create, list, describe, change and delete topics.",
    no_args_is_help=True,
)

_Names = Annotated[list[str], typer.Argument(metavar="TOPIC", help="Names of topics.")]
_DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Ask whether it would work, and change nothing.")
]


@app.command()
def create(
    names: _Names,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", metavar="N", min=1, help="Default: the broker's."),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            "--replication-factor", "-r", metavar="N", min=1, help="Default: the broker's."
        ),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", metavar="KEY=VALUE", help="A setting; repeatable."),
    ] = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Leave a topic that exists as it is.")
    ] = False,
    dry_run: _DryRun = False,
    json: Json = False,
    broker: Broker = DEFAULT_BROKER,
    command_config: CommandConfig = None,
) -> None:
    """Create topics.

    \b
    suwi topics create orders --partitions 3 --config retention.ms=86400000
    """
    configs = pairs(config or [], "--config")
    from suwi.cli import topics

    topics.create(
        Target(broker, command_config),
        topics.NewTopics(names, partitions, replication_factor, configs, if_not_exists, dry_run),
        json=json,
    )


@app.command("list")
def list_(
    internal: Annotated[
        bool, typer.Option("--internal", help="Also the cluster's own topics.")
    ] = False,
    json: Json = False,
    broker: Broker = DEFAULT_BROKER,
    command_config: CommandConfig = None,
) -> None:
    """List all topics."""
    from suwi.cli import topics

    topics.list_all(Target(broker, command_config), internal=internal, json=json)


@app.command()
def describe(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC", help="Default: all topics.")
    ] = None,
    replicas: Annotated[
        bool, typer.Option("--replicas", help="Show what each replica holds, and its lag.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="With --replicas: go on, until Ctrl-C.")
    ] = False,
    json: Json = False,
    broker: Broker = DEFAULT_BROKER,
    command_config: CommandConfig = None,
) -> None:
    """Show settings, leaders, replicas and offsets.

    Of all topics but internal ones, if none is named.
    """
    target = Target(broker, command_config)
    if replicas:
        from suwi.cli.replicas import describe as describe_replicas

        describe_replicas(target, names or [], follow=follow, json=json)
    if follow:
        raise typer.BadParameter("goes with --replicas", param_hint="--follow")
    from suwi.cli import topics

    topics.describe(target, names or [], json=json)


@app.command()
def alter(
    name: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")],
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", metavar="N", min=1, help="How many it shall have."),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", metavar="KEY=VALUE", help="Set a key; repeatable."),
    ] = None,
    unset: Annotated[
        list[str] | None,
        typer.Option("--unset", metavar="KEY", help="Let a key have its default; repeatable."),
    ] = None,
    dry_run: _DryRun = False,
    json: Json = False,
    broker: Broker = DEFAULT_BROKER,
    command_config: CommandConfig = None,
) -> None:
    """Add partitions to a topic, or change its settings."""
    values: dict[str, str | None] = {**pairs(config or [], "--config")}
    for key in unset or []:
        if key in values:
            raise typer.BadParameter(f"{key} is both set and unset", param_hint="--unset")
        values[key] = None
    if partitions is None and not values:
        raise typer.BadParameter("say what to change: --partitions, --config or --unset")
    from suwi.cli import topics

    topics.alter(
        Target(broker, command_config), name, partitions, values, dry_run=dry_run, json=json
    )


@app.command()
def delete(
    names: _Names,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    if_exists: Annotated[
        bool, typer.Option("--if-exists", help="A topic that is not there is no failure.")
    ] = False,
    json: Json = False,
    broker: Broker = DEFAULT_BROKER,
    command_config: CommandConfig = None,
) -> None:
    """Delete topics with all their records."""
    from suwi.cli import topics

    topics.delete(
        Target(broker, command_config), names, is_sure=yes, if_exists=if_exists, json=json
    )
