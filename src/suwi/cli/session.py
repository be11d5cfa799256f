"""A command's talk with a cluster: from `--broker` to an exit code.

`run` connects, does the work and turns what goes wrong into one line on stderr.
"""

import asyncio
import difflib
import os
import sys
from collections.abc import Awaitable, Callable

import typer

from suwi.cli.output import Failure, OutputClosed, complain, flush
from suwi.client.addresses import Address, parse_addresses
from suwi.client.cluster import Cluster
from suwi.client.connection import ConnectionLost
from suwi.client.errors import Unreachable, reason
from suwi.client.topology import TopicInfo
from suwi.env import SystemRandom
from suwi.model.errors import BrokerError, UnknownTopicOrPartition

_OK, _FAILED, _INTERRUPTED = 0, 1, 130

Work = Callable[[Cluster], Awaitable[int | None]]


def run(broker: str, work: Work, *, interrupted: int = _INTERRUPTED) -> None:
    """Do the work and exit; `interrupted` is the exit code after Ctrl-C."""
    try:
        addresses = parse_addresses(broker)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--broker") from None
    raise typer.Exit(guarded(lambda: asyncio.run(_work(addresses, work)), interrupted))


def guarded(job: Callable[[], int | None], interrupted: int = _INTERRUPTED) -> int:
    """The exit code of a job; what is wrong is told on stderr."""
    try:
        code = job() or _OK
        flush()
        return code
    except KeyboardInterrupt:
        return interrupted
    except OutputClosed:
        # Python would try to write the rest when it ends, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # noqa: TID251
        return _OK
    except Failure as failure:
        complain(str(failure))
    except Unreachable as error:
        complain(_unreachable(error))
    except ConnectionLost as error:
        complain(f"lost the connection to the broker: {error}")
    except OSError as error:
        about = f"{error.filename}: " if error.filename else ""
        complain(about + reason(error))
    except BrokerError as error:
        complain(error.message or error.code.name.replace("_", " "))
    return _FAILED


async def _work(addresses: list[Address], work: Work) -> int | None:
    async with Cluster(addresses, random=SystemRandom()) as cluster:
        return await work(cluster)


def _unreachable(error: Unreachable) -> str:
    tried = "; ".join(f"no broker at {address}: {reason(why)}" for address, why in error.tried)
    return f"{tried}. Start one with `suwi serve`, or name another with --broker HOST:PORT"


async def existing_topic(cluster: Cluster, name: str) -> TopicInfo:
    """The topic; where there is none of that name, the failure names what may be meant."""
    try:
        return await cluster.topic(name)
    except UnknownTopicOrPartition:
        names = [topic.name for topic in await cluster.topics()]
        raise Failure(unknown_topic(name, names)) from None


def unknown_topic(name: str, names: list[str], *, can_create: bool = True) -> str:
    similar = difflib.get_close_matches(name, names, n=1)
    if similar:
        return f"topic {name!r} does not exist; did you mean {similar[0]!r}?"
    hint = f"; `suwi topics create {name}` makes it" if can_create else ""
    return f"topic {name!r} does not exist{hint}"
