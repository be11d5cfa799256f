"""`suwi users`."""

from enum import StrEnum
from typing import Annotated

import typer

from suwi.cli.options import DEFAULT_BROKER, Broker, CommandConfig, Json, Target

app = typer.Typer(
    rich_markup_mode=None,
    help="Add, list and remove SCRAM users.",
    no_args_is_help=True,
)

# The values of `security.scram`, which `--help` must not import.
_ITERATIONS_MIN, _ITERATIONS_MAX = 4096, 16384
_ITERATIONS = 8192


class Mechanism(StrEnum):
    SHA_256 = "SCRAM-SHA-256"
    SHA_512 = "SCRAM-SHA-512"


_Name = Annotated[str, typer.Argument(metavar="USER", help="The user's name.")]
_Mechanisms = Annotated[
    list[Mechanism] | None,
    typer.Option("--mechanism", "-m", help="Only this mechanism; repeatable. Default: both."),
]


@app.command()
def add(
    name: _Name,
    password_file: Annotated[
        str | None,
        typer.Option(
            "--password-file",
            metavar="FILE",
            help="Read the password from the first line of a file; `-`: from standard input. "
            "Default: ask for it.",
        ),
    ] = None,
    mechanism: _Mechanisms = None,
    iterations: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=_ITERATIONS_MIN,
            max=_ITERATIONS_MAX,
            help="Hash iterations: more makes guessing and authentication slower.",
        ),
    ] = _ITERATIONS,
    broker: Broker = DEFAULT_BROKER,
    command_config: CommandConfig = None,
) -> None:
    """Add a user, or give it a new password.

    \b
    suwi users add alice
    suwi users add alice --password-file /run/secrets/alice

    Only a salted hash of the password is sent and stored. An eavesdropper could still guess the
    password from it: use TLS if the broker is on another machine.
    """
    from suwi.cli import users

    users.add(
        Target(broker, command_config),
        users.NewUser(name, [*(mechanism or Mechanism)], iterations, password_file),
    )


@app.command(name="list")
def list_(
    json: Json = False,
    broker: Broker = DEFAULT_BROKER,
    command_config: CommandConfig = None,
) -> None:
    """List the users and their SASL mechanisms."""
    from suwi.cli import users

    users.list_users(Target(broker, command_config), json=json)


@app.command()
def remove(
    name: _Name,
    mechanism: _Mechanisms = None,
    broker: Broker = DEFAULT_BROKER,
    command_config: CommandConfig = None,
) -> None:
    """Remove a user. Its open connections stay until they must re-authenticate."""
    from suwi.cli import users

    users.remove(Target(broker, command_config), name, mechanism or [])
