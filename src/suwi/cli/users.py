"""`suwi users`."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import typer

from suwi.admin.failure import Failure
from suwi.admin.text import printable
from suwi.cli.output import document, say, table
from suwi.cli.session import Json, is_input_a_terminal, on_cluster, prompting, read_text
from suwi.client.cluster import Cluster
from suwi.client.users import Users
from suwi.model.config_kinds import did_you_mean
from suwi.security.scram import ITERATIONS_MAX, ITERATIONS_MIN, MECHANISMS

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, add_completion=False)

_ITERATIONS = 8192
_FROM_STDIN = "-"


class Mechanism(StrEnum):
    SHA_256 = "SCRAM-SHA-256"
    SHA_512 = "SCRAM-SHA-512"


_Name = Annotated[str, typer.Argument(metavar="USER", help="The user's name.")]
_Mechanisms = Annotated[
    list[Mechanism] | None,
    typer.Option("--mechanism", "-m", help="Only this mechanism; repeatable. Default: both."),
]


@app.command()
@on_cluster
async def add(
    cluster: Cluster,
    name: _Name,
    password_file: Annotated[
        str | None,
        typer.Option(
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
            min=ITERATIONS_MIN,
            max=ITERATIONS_MAX,
            help="Hash iterations: more makes guessing and authentication slower.",
        ),
    ] = _ITERATIONS,
) -> None:
    """Add a user, or give it a new password.

    \b
    suwi users add alice
    suwi users add alice --password-file /run/secrets/alice

    Only a salted hash of the password is sent and stored. An eavesdropper could still guess the
    password from it: use TLS if the broker is on another machine.
    """
    password = _password(name, password_file)
    mechanisms: Sequence[Mechanism] = mechanism or list(Mechanism)
    users = Users(cluster)
    existing = await users.describe([name])
    await users.set(name, password, [MECHANISMS[each] for each in mechanisms], iterations)
    what = "changed the password of" if existing else "added"
    say(f"{what} {printable(name)}: {', '.join(mechanisms)}")


@app.command(name="list")
@on_cluster
async def list_(cluster: Cluster, json: Json = False) -> None:
    """List the users and their SASL mechanisms."""
    users = await Users(cluster).describe()
    if json:
        document([{"user": user.name, "mechanisms": user.iterations} for user in users])
    elif not users:
        say("no users yet; `suwi users add NAME` adds one")
    else:
        rows = [(user.name, *each) for user in users for each in user.iterations.items()]
        table(("user", "mechanism", "iterations"), rows, numbers="iterations")


@app.command()
@on_cluster
async def remove(cluster: Cluster, name: _Name, mechanism: _Mechanisms = None) -> None:
    """Remove a user. Its open connections stay until they must re-authenticate."""
    users = Users(cluster)
    found = await users.describe([name])
    if not found:
        known = [user.name for user in await users.describe()]
        raise Failure(f"user {name!r} does not exist{did_you_mean(name, known)}")
    chosen: Sequence[str] = mechanism or list(found[0].iterations)
    await users.remove(name, [MECHANISMS[each] for each in chosen])
    say(f"removed {printable(name)}: {', '.join(chosen)}")


def _password(name: str, path: str | None) -> str:
    if path is not None:
        text = read_text(path, "--password-file", from_stdin=path == _FROM_STDIN)
        password = text.split("\n")[0].removesuffix("\r")
    elif is_input_a_terminal():
        with prompting():
            password = typer.prompt(
                f"Password of {printable(name)}", hide_input=True, confirmation_prompt=True
            )
    else:
        raise typer.BadParameter(
            "there is no terminal to ask for the password", param_hint="--password-file"
        )
    if not password:
        raise typer.BadParameter("the password is empty", param_hint="--password-file")
    return password
