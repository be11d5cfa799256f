"""Implementation of `suwi users`."""

import sys
from collections.abc import Sequence
from typing import NamedTuple

import typer

from suwi.cli.options import Target
from suwi.cli.output import Failure, document, printable, say, table
from suwi.cli.session import is_input_a_terminal, run
from suwi.client.cluster import Cluster
from suwi.client.users import Users
from suwi.env import local_env
from suwi.model.config_kinds import did_you_mean
from suwi.security.scram import MECHANISMS

_FROM_STDIN = "-"


class NewUser(NamedTuple):
    name: str
    mechanisms: Sequence[str]
    iterations: int
    password_file: str | None


def add(target: Target, new: NewUser) -> None:
    password = _password(new)

    async def work(cluster: Cluster) -> None:
        users = Users(cluster)
        existing = await users.describe([new.name])
        mechanisms = [MECHANISMS[name] for name in new.mechanisms]
        await users.set(new.name, password, mechanisms, new.iterations)
        what = "changed the password of" if existing else "added"
        say(f"{what} {printable(new.name)}: {', '.join(new.mechanisms)}")

    run(target, work)


def list_users(target: Target, *, json: bool) -> None:
    async def work(cluster: Cluster) -> None:
        users = await Users(cluster).describe()
        if json:
            document([{"user": user.name, "mechanisms": user.iterations} for user in users])
        elif not users:
            say("no users yet; `suwi users add NAME` adds one")
        else:
            rows = [
                (user.name, mechanism, iterations)
                for user in users
                for mechanism, iterations in user.iterations.items()
            ]
            table(("user", "mechanism", "iterations"), rows, numbers="iterations")

    run(target, work)


def remove(target: Target, name: str, mechanisms: Sequence[str]) -> None:
    async def work(cluster: Cluster) -> None:
        users = Users(cluster)
        found = await users.describe([name])
        if not found:
            known = [user.name for user in await users.describe()]
            raise Failure(f"user {name!r} does not exist{did_you_mean(name, known)}")
        chosen = mechanisms or list(found[0].iterations)
        await users.remove(name, [MECHANISMS[mechanism] for mechanism in chosen])
        say(f"removed {printable(name)}: {', '.join(chosen)}")

    run(target, work)


def _password(new: NewUser) -> str:
    if new.password_file is not None:
        password = _read_password(new.password_file)
    elif is_input_a_terminal():
        password = typer.prompt(
            f"Password of {printable(new.name)}", hide_input=True, confirmation_prompt=True
        )
    else:
        raise typer.BadParameter(
            "there is no terminal to ask for the password", param_hint="--password-file"
        )
    if not password:
        raise typer.BadParameter("the password is empty", param_hint="--password-file")
    return password


def _read_password(path: str) -> str:
    try:
        if path == _FROM_STDIN and sys.stdin is None:
            raise OSError("stdin is closed")
        if path == _FROM_STDIN:
            data = sys.stdin.buffer.read()
        else:
            data = local_env().disk.read_bytes(path)
        return data.decode().split("\n")[0].removesuffix("\r")
    except OSError as error:
        problem = error.strerror or str(error)
    except UnicodeDecodeError:
        problem = "not a text file in UTF-8"
    raise typer.BadParameter(f"{path}: {problem}", param_hint="--password-file")
