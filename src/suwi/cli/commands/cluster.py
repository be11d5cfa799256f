"""`suwi cluster`."""

from typing import Annotated

import typer

from suwi.cli.options import DEFAULT_BROKER, Broker, CommandConfig, Json, Target

app = typer.Typer(
    rich_markup_mode=None,
    help="Inspect the cluster as a whole.",
    no_args_is_help=True,
)


@app.callback()
def _cluster() -> None:
    """Inspect the cluster as a whole."""


@app.command()
def drain(
    node: Annotated[int, typer.Argument(metavar="N", help="The broker's id.", min=0)],
    json: Json = False,
    broker: Broker = DEFAULT_BROKER,
    command_config: CommandConfig = None,
) -> None:
    """Move all replicas away from a broker, so that it can be switched off.

    Other brokers get them: on other racks and hosts than the remaining replicas if possible, and
    where the fewest are. Writers and readers continue. It can be interrupted and started again.
    """
    from suwi.cli.reassign import drain as run

    run(Target(broker, command_config), node, json=json)


@app.command()
def events(
    json: Json = False,
    broker: Broker = DEFAULT_BROKER,
    command_config: CommandConfig = None,
) -> None:
    """Show which records elections have lost, or may have lost.

    An unclean election is shown with the minimum loss that the live brokers know. A replica that
    comes back later reports exactly which records it lost. The last 200 events are kept.
    """
    from suwi.cli.events import show

    show(Target(broker, command_config), json=json)
