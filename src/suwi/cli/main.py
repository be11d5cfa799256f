"""The `suwi` command. It imports the module of a subcommand only when that is called."""

import gc
import importlib
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from suwi import __version__

COMMANDS = {
    "serve": "Start one or more brokers.",
    "produce": "Write records, one per line of stdin.",
    "consume": "Print records until Ctrl-C.",
    "explain": "Say what an offset is or was.",
    "dump": "Show the files of a broker, and any damage in them.",
    "status": "Show the health of the cluster: brokers, partitions, groups, events, disks.",
    "doctor": "Check a configuration, a data directory or a running cluster, and say what to do.",
    "console": "Show clusters and their records in a web browser.",
    "topics": "Create, list, describe, change and delete topics.",
    "groups": "List, describe, reset and delete consumer groups, and see why they rebalanced.",
    "transactions": "List and describe transactions, and end those that hang.",
    "perf": "Measure how fast records are written and read, and how long one takes to arrive.",
    "cluster": "Run a cluster on this machine and break it; inspect any cluster as a whole.",
    "configs": "Show and change settings of topics, brokers and consumer groups.",
    "users": "Add, list and remove SCRAM users.",
    "acls": "Add, list, remove and check access rules.",
    "quotas": "Limit what users, client ids and addresses use per second.",
    "repair": "Repair the files of a stopped broker.",
    "lab": "Play how records are lost or duplicated, step by step, on a simulated cluster.",
    "pipeline": "Run Spark pipelines from topics to tables and topics, from a pipeline.yaml.",
}
"""By name, with the text of `suwi --help`. Each is in the module of its name, which has a function
of this name or, for a family of commands, an `app`."""


class _Commands(TyperGroup):
    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return _load(cmd_name) if cmd_name in COMMANDS else None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _load(name: str) -> Any:
    gc.disable()  # imported modules stay: exclude them from garbage collection
    module = importlib.import_module(f"suwi.cli.{name}")
    gc.freeze()
    gc.enable()
    family = getattr(module, "app", None)
    if family is None:
        family = typer.Typer(rich_markup_mode=None, add_completion=False)
        family.command(name)(getattr(module, name))
    else:
        family.info.help = COMMANDS[name]
    return typer.main.get_command(family)


app = typer.Typer(
    cls=_Commands,
    help="Suwi, a Kafka-compatible event log.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"suwi {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    if sys.platform not in ("linux", "darwin"):
        typer.echo("suwi runs on Linux and macOS only", err=True)
        raise typer.Exit(2)


for _name in COMMANDS:
    app.command(_name)(_print_version)  # In its place, `get_command` gives the real one.
