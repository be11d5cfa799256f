"""`suwi topics`."""

from typing import Annotated

import typer

from suwi.cli.options import DEFAULT_BROKER, Broker, CommandConfig, Json, Target, Yes, pairs

app = typer.Typer(
    rich_markup_mode=None,
    help="Create, list, describe, change and delete topics.",
    no_args_is_help=True,
)

_Names = Annotated[list[str], typer.Argument(metavar="TOPIC", help="Names of topics.")]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Validate only; change nothing.")]


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
        bool, typer.Option("--if-not-exists", help="Do not fail if the topic exists.")
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
    internal: Annotated[bool, typer.Option("--internal", help="Include internal topics.")] = False,
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
        bool, typer.Option("--replicas", help="Show the state and the lag of each replica.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="With --replicas: update until Ctrl-C.")
    ] = False,
    json: Json = False,
    broker: Broker = DEFAULT_BROKER,
    command_config: CommandConfig = None,
) -> None:
    """Show settings, leaders, replicas and offsets.

    Without a name: of all topics except internal ones.
    """
    target = Target(broker, command_config)
    if replicas:
        from suwi.cli.replicas import describe as describe_replicas

        describe_replicas(target, names or [], follow=follow, json=json)
    if follow:
        raise typer.BadParameter("requires --replicas", param_hint="--follow")
    from suwi.cli import topics

    topics.describe(target, names or [], json=json)


@app.command()
def alter(
    name: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")],
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions", "-p", metavar="N", min=1, help="The new number of partitions."
        ),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            "--replication-factor",
            "-r",
            metavar="N",
            min=1,
            help="The new number of replicas of each partition.",
        ),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", metavar="KEY=VALUE", help="Set a key; repeatable."),
    ] = None,
    unset: Annotated[
        list[str] | None,
        typer.Option("--unset", metavar="KEY", help="Reset a key to its default; repeatable."),
    ] = None,
    dry_run: _DryRun = False,
    json: Json = False,
    broker: Broker = DEFAULT_BROKER,
    command_config: CommandConfig = None,
) -> None:
    """Add partitions to a topic, or change its settings or its number of replicas."""
    values: dict[str, str | None] = {**pairs(config or [], "--config")}
    for key in unset or []:
        if key in values:
            raise typer.BadParameter(f"{key} is both set and unset", param_hint="--unset")
        values[key] = None
    if partitions is None and replication_factor is None and not values:
        raise typer.BadParameter(
            "give a change: --partitions, --replication-factor, --config or --unset"
        )
    from suwi.cli import topics

    topics.alter(
        Target(broker, command_config),
        name,
        topics.Changes(partitions, replication_factor, values),
        dry_run=dry_run,
        json=json,
    )


@app.command()
def delete(
    names: _Names,
    yes: Yes = False,
    if_exists: Annotated[
        bool, typer.Option("--if-exists", help="Do not fail if a topic does not exist.")
    ] = False,
    json: Json = False,
    broker: Broker = DEFAULT_BROKER,
    command_config: CommandConfig = None,
) -> None:
    """Delete topics with all their records."""
    from suwi.cli import topics

    topics.delete(
        Target(broker, command_config), names, is_confirmed=yes, if_exists=if_exists, json=json
    )
