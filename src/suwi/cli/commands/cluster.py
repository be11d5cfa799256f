"""`suwi cluster`."""

import typer

from suwi.cli.options import DEFAULT_BROKER, Broker, CommandConfig, Json, Target

app = typer.Typer(
    rich_markup_mode=None,
    help="Look at the cluster as a whole.",
    no_args_is_help=True,
)


@app.callback()
def _cluster() -> None:
    """Look at the cluster as a whole."""


@app.command()
def events(
    json: Json = False,
    broker: Broker = DEFAULT_BROKER,
    command_config: CommandConfig = None,
) -> None:
    """Show what elections have cost: which records are lost, or may be.

    An unclean election is told with what it costs at least, as far as anyone alive knows. A replica
    that comes back later tells exactly what it had to give up. The last 200 events are kept.
    """
    from suwi.cli.events import show

    show(Target(broker, command_config), json=json)
