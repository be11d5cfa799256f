"""Runs a command against a cluster: from `--broker` to an exit code.

`run` connects, does the work and reports errors as one line on stderr.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable

import typer

from suwi.cli.options import Target
from suwi.cli.output import Failure, OutputClosed, OutputFailed, complain, flush
from suwi.cli.unreachable import Access, ClosedAtFirstRequest, explain
from suwi.client.addresses import Address, parse_addresses
from suwi.client.cluster import Cluster, TopicInfo
from suwi.client.connection import ConnectionLost
from suwi.client.errors import Unreachable, reason
from suwi.client.settings import ClientSettings
from suwi.client.versioned_connection import Connect
from suwi.env import local_env
from suwi.model.config_kinds import BadConfig, did_you_mean
from suwi.model.errors import BrokerError, UnknownTopicOrPartition

_OK, _FAILED, INTERRUPTED = 0, 1, 130

Work = Callable[[Cluster], Awaitable[int | None]]


def run(
    target: Target,
    work: Work,
    *,
    interrupted: int = INTERRUPTED,
    unreachable: int = _FAILED,
    settings: ClientSettings | None = None,
) -> None:
    """Do the work and exit; `interrupted` is the exit code after Ctrl-C, `unreachable` the one if
    no broker responds."""
    try:
        addresses = parse_addresses(target.broker)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--broker") from None
    connect, access = None, Access()
    if target.command_config is not None:
        connect, access = _connector(target.command_config)

    def job() -> int | None:
        try:
            return asyncio.run(_work(addresses, connect, settings, work))
        except Unreachable as error:
            complain(explain(error, access))
            return unreachable

    raise typer.Exit(guarded(job, interrupted))


def _connector(path: str) -> tuple[Connect, Access]:
    """A `Connect` with the settings of a client.properties."""
    from suwi.cli.properties import parse_properties
    from suwi.client.security import connect_securely, read_client_security

    env = local_env()
    try:
        properties = parse_properties(env.disk.read_bytes(path).decode())
        security = read_client_security(properties, env.disk, env.random)
    except OSError as error:
        problem = error.strerror or str(error)
    except UnicodeDecodeError:
        problem = "not a text file in UTF-8"
    except BadConfig as error:
        problem = str(error)
    else:
        protocol = properties.get("security.protocol", "PLAINTEXT").upper()
        has_certificate = any(key.startswith("ssl.keystore.") for key in properties)
        connect = connect_securely(security, ClientSettings().client_id)
        return connect, Access(path, protocol, has_certificate)
    raise typer.BadParameter(f"{path}: {problem}", param_hint="--command-config")


def guarded(job: Callable[[], int | None], interrupted: int = INTERRUPTED) -> int:
    """Run a job, report errors on stderr, and return the exit code."""
    try:
        code = job() or _OK
        flush()
        return code
    except KeyboardInterrupt:
        return interrupted
    except OutputClosed:
        _drop_output()
        return _OK
    except OutputFailed as failure:
        _drop_output()
        complain(str(failure))
    except Failure as failure:
        complain(str(failure))
    except Unreachable as error:
        complain(explain(error, Access()))
    except ConnectionLost as error:
        complain(f"lost the connection to the broker: {error}")
    except OSError as error:
        about = f"{error.filename}: " if error.filename else ""
        complain(about + reason(error))
    except BrokerError as error:
        complain(error.message or error.code.name.replace("_", " "))
    return _FAILED


def _drop_output() -> None:
    """Otherwise Python would try to flush the rest at exit, and print an error."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # noqa: TID251


async def _work(
    addresses: list[Address], connect: Connect | None, settings: ClientSettings | None, work: Work
) -> int | None:
    random = local_env().random
    async with Cluster(addresses, random=random, settings=settings, connect=connect) as cluster:
        try:
            return await work(cluster)
        except ConnectionLost:
            if cluster.brokers:
                raise
            raise Unreachable([(addresses[0], ClosedAtFirstRequest())]) from None


async def existing_topic(cluster: Cluster, name: str) -> TopicInfo:
    """The topic; if it does not exist, the failure suggests a similar name."""
    try:
        return await cluster.topic(name)
    except UnknownTopicOrPartition:
        names = [topic.name for topic in await cluster.topics()]
        raise Failure(unknown_topic(name, names)) from None


def unknown_topic(name: str, names: list[str], *, can_create: bool = True) -> str:
    hint = did_you_mean(name, names)
    if not hint and can_create:
        hint = f"; `suwi topics create {name}` creates it"
    return f"topic {name!r} does not exist{hint}"


def is_input_a_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()  # None: it is closed


def confirm_deletion(what: str, question: str) -> None:
    """Raises `Failure` unless the user agrees."""
    if not is_input_a_terminal():
        raise Failure(f"{what} needs --yes without a terminal")
    # The handler of asyncio would let the prompt go on at the first Ctrl-C.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        is_confirmed = typer.confirm(question, err=True)
    finally:
        signal.signal(signal.SIGINT, handler)
    if not is_confirmed:
        raise Failure("nothing was deleted")
