"""`suwi configs`."""

from enum import StrEnum
from typing import Annotated

import typer

from suwi.cli.options import DEFAULT_BROKER, Broker, CommandConfig, Json, Target, pairs

app = typer.Typer(
    rich_markup_mode=None,
    help="Show and change settings of topics, brokers and consumer groups.",
    no_args_is_help=True,
)


class Kind(StrEnum):
    TOPIC = "topic"
    BROKER = "broker"
    GROUP = "group"


_Kind = Annotated[Kind, typer.Argument(metavar="topic|broker|group", help="The kind of resource.")]
_Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="A topic's or a group's name, a broker's id, or `all` brokers."
    ),
]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Validate only; change nothing.")]


@app.command()
def describe(
    kind: _Kind,
    name: _Name,
    keys: Annotated[
        list[str] | None, typer.Argument(metavar="KEY", help="Only these keys, in detail.")
    ] = None,
    all_: Annotated[
        bool, typer.Option("--all", "-a", help="Show every key, including defaults.")
    ] = False,
    json: Json = False,
    broker: Broker = DEFAULT_BROKER,
    command_config: CommandConfig = None,
) -> None:
    """Show settings and their sources.

    \b
    suwi configs describe topic orders --all
    """
    from suwi.cli import configs

    resource = configs.resource(kind.value, name)
    configs.describe(
        Target(broker, command_config), resource, keys or [], everything=all_, json=json
    )


@app.command("set")
def set_(
    kind: _Kind,
    name: _Name,
    settings: Annotated[list[str], typer.Argument(metavar="KEY=VALUE", help="New values.")],
    dry_run: _DryRun = False,
    json: Json = False,
    broker: Broker = DEFAULT_BROKER,
    command_config: CommandConfig = None,
) -> None:
    """Set keys. The change takes effect at once, without a restart.

    \b
    suwi configs set topic orders retention.ms=86400000
    """
    values: dict[str, str | None] = {**pairs(settings, "KEY=VALUE")}
    from suwi.cli import configs

    configs.alter(
        Target(broker, command_config),
        configs.resource(kind.value, name),
        values,
        dry_run=dry_run,
        json=json,
    )


@app.command()
def unset(
    kind: _Kind,
    name: _Name,
    keys: Annotated[list[str], typer.Argument(metavar="KEY", help="Names of keys.")],
    dry_run: _DryRun = False,
    json: Json = False,
    broker: Broker = DEFAULT_BROKER,
    command_config: CommandConfig = None,
) -> None:
    """Reset keys to their defaults.

    \b
    suwi configs unset topic orders retention.ms
    """
    from suwi.cli import configs

    configs.alter(
        Target(broker, command_config),
        configs.resource(kind.value, name),
        dict.fromkeys(keys),
        dry_run=dry_run,
        json=json,
    )
