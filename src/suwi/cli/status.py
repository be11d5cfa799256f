"""Implementation of `suwi status`: the whole cluster at a glance, with an exit code for scripts.

`problems` decides what makes a cluster degraded; `sections` is the output for people.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple, TypeAlias

from suwi.cli import events
from suwi.cli.options import Target
from suwi.cli.output import (
    NAMED_MAX,
    count_text,
    document,
    drawn_table,
    flush,
    is_terminal,
    json_line,
    names_text,
    printable,
    say,
    size_text,
    stop_when_output_closes,
    table,
    time_text,
)
from suwi.cli.session import INTERRUPTED, run
from suwi.client.cluster import Cluster
from suwi.client.cluster_status import (
    ALIVE,
    BrokerProblem,
    BrokerStatus,
    ClusterStatus,
    DiskStatus,
    ElectionStatus,
    read_status,
)
from suwi.client.errors import reason
from suwi.client.settings import ClientSettings
from suwi.client.zookeeper_servers import ServerStatus
from suwi.env import SystemClock
from suwi.model.errors import BrokerError

HEALTHY, DEGRADED, UNREACHABLE = 0, 1, 2
_HEALTH = ("healthy", "degraded", "unreachable")
_PERIOD_S = 2.0
_COLUMNS = "Broker State Controller Address Rack Leaders Replicas OutOfSync Used Free Version"
_NUMBERS = "Broker Leaders Replicas OutOfSync Used Free"

Table: TypeAlias = tuple[str, list[tuple[object, ...]], str]
"""Columns, rows, and the columns that are numbers."""


class Wanted(NamedTuple):
    lag_min: int | None
    """From which lag on a group is behind; None: groups are not read."""
    timeout_s: float
    brokers: int | None = None
    """How many brokers should be alive."""
    node: int | None = None
    """Only this broker's health counts."""


def show(target: Target, wanted: Wanted, *, watch: bool, json: bool) -> None:
    async def work(cluster: Cluster) -> int:
        if watch and is_terminal() and not json:
            await _redraw(cluster, wanted)
        elif watch:
            async with stop_when_output_closes():
                await _repeat(cluster, wanted, json=json)
        status = await read(cluster, wanted)
        found = problems(status, wanted)
        if json:
            document(_fields(status, found))
        else:
            _print(sections(status, found, wanted))
        return DEGRADED if found else HEALTHY

    settings = client_settings(wanted.timeout_s)
    interrupted = HEALTHY if watch else INTERRUPTED
    run(target, work, interrupted=interrupted, unreachable=UNREACHABLE, settings=settings)


def client_settings(timeout_s: float) -> ClientSettings:
    return ClientSettings(
        connect_timeout_s=timeout_s, request_timeout_s=timeout_s, retry_timeout_s=timeout_s
    )


async def read(cluster: Cluster, wanted: Wanted) -> ClusterStatus:
    return await read_status(
        cluster,
        SystemClock(),
        lag_min=wanted.lag_min,
        timeout_s=wanted.timeout_s,
        with_ensemble=wanted.node is None,
    )


def _fields(status: ClusterStatus, found: Sequence[str]) -> dict[str, Any]:
    health = _HEALTH[DEGRADED if found else HEALTHY]
    return {"health": health, "problems": list(found), **asdict(status)}


# -- what is wrong ---------------------------------------------------------------------------------


def problems(status: ClusterStatus, wanted: Wanted) -> list[str]:
    """Why the cluster, or the wanted broker, is degraded; empty if it is healthy."""
    if wanted.node is not None:
        own = [broker for broker in status.brokers if broker.node == wanted.node]
        if not own:
            return [f"broker {wanted.node} is not registered"]
        return list(_broker_problems(own[0])) + list(_out_of_sync(own[0]))
    found = [] if status.controller is not None else ["there is no controller"]
    for broker in status.brokers:
        found += _broker_problems(broker)
    alive = sum(broker.state == ALIVE for broker in status.brokers)
    if wanted.brokers is not None and alive < wanted.brokers:
        found.append(f"{alive} of {wanted.brokers} brokers are alive")
    for partitions, what in (
        (status.offline, "without a leader"),
        (status.under_min_isr, "under min.insync.replicas"),
        (status.under_replicated, "under-replicated"),
    ):
        if partitions:
            found.append(
                f"{count_text(len(partitions), 'partition')} {what}: {names_text(partitions)}"
            )
    return found


def _broker_problems(broker: BrokerStatus) -> Iterator[str]:
    if broker.state != ALIVE:
        because = "" if broker.problem is None else f": {broker.problem}"
        yield f"broker {broker.node} is {broker.state}{because}"
    if broker.is_store_connected is False:
        yield f"broker {broker.node} is not connected to {broker.store}"
    told = {problem.place for problem in broker.problems}
    for disk in broker.disks:
        if disk.is_offline and disk.directory not in told:
            yield f"broker {broker.node}: {disk.directory} is offline"
    for problem in broker.problems:
        yield problem_text(broker, problem)
    if broker.problems_count > len(broker.problems):
        yield f"broker {broker.node}: {broker.problems_count - len(broker.problems)} more problems"


def problem_text(broker: BrokerStatus, problem: BrokerProblem) -> str:
    kind = problem.kind.replace("-", " ")
    return f"broker {broker.node}: {problem.place}: {kind}: {problem.reason}"


def _out_of_sync(broker: BrokerStatus) -> Iterator[str]:
    if broker.out_of_sync:
        replicas = count_text(broker.out_of_sync, "replica")
        yield f"broker {broker.node}: {replicas} not in sync"


# -- output ----------------------------------------------------------------------------------------


def sections(status: ClusterStatus, found: Sequence[str], wanted: Wanted) -> Iterator[str | Table]:
    """Lines and tables, in their order."""
    stores = sorted({broker.store for broker in status.brokers if broker.store is not None})
    controller = "none" if status.controller is None else f"broker {status.controller}"
    judged = "" if wanted.node is None else f"broker {wanted.node} is "
    yield f"Cluster     {status.cluster_id or 'unknown'}: {judged}{_HEALTH[bool(found)]}"
    yield f"Controller  {controller}"
    yield f"Metadata    {', '.join(stores) or 'unknown'}"
    yield f"Partitions  {status.partitions} of {count_text(status.topics, 'topic')}"
    if wanted.lag_min is not None:
        yield f"Groups      {status.groups}"
    yield ""
    yield _COLUMNS, [_row(broker) for broker in status.brokers], _NUMBERS
    if status.ensemble:
        yield ""
        yield "ZooKeeper State Version", [_server_row(server) for server in status.ensemble], ""
    if found:
        yield from ("", "Problems")
        yield from (f"  {text}" for text in found)
    if status.groups_behind:
        rows: list[tuple[object, ...]] = [tuple(asdict(g).values()) for g in status.groups_behind]
        yield from ("", f"Groups {wanted.lag_min} or more records behind: {len(rows)}")
        yield "Group State Lag", rows[:NAMED_MAX], "Lag"
    elections = sorted((e for b in status.brokers for e in b.elections), key=lambda e: e.at_ms)
    if elections:
        yield from ("", "Last elections")
        yield (
            "Time Partitions Cause",
            [_election_row(e) for e in elections[-NAMED_MAX:]],
            "Partitions",
        )
    if status.events:
        yield from ("", f"Events: {len(status.events)}; `suwi cluster events` shows all")
        yield " ".join(events.COLUMNS), list(map(events.row, status.events[-NAMED_MAX:])), ""
    if status.unknown:
        yield from ("", "Not known")
        yield from (f"  {text}" for text in status.unknown)


def _row(broker: BrokerStatus) -> tuple[object, ...]:
    used, free = _space(broker.disks)
    return (
        broker.node,
        broker.state,
        "yes" if broker.is_controller else "",
        broker.address or "-",
        broker.rack or "-",
        broker.leaders,
        broker.replicas,
        broker.out_of_sync,
        used,
        free,
        broker.version or "-",
    )


def _server_row(server: ServerStatus) -> tuple[object, ...]:
    return server.address, server.state, server.version or "-"


def _election_row(election: ElectionStatus) -> tuple[object, ...]:
    return time_text(election.at_ms), election.partitions, election.cause


def _space(disks: Sequence[DiskStatus]) -> tuple[str, str]:
    """Of the fullest of its volumes."""
    volumes = [
        (d.free_bytes, d.total_bytes) for d in disks if d.total_bytes and d.free_bytes is not None
    ]
    if not volumes:
        return "-", "-"
    free_bytes, total_bytes = min(volumes, key=lambda volume: volume[0] / volume[1])
    return f"{100 - 100 * free_bytes / total_bytes:.0f} %", size_text(free_bytes)


def _print(parts: Iterator[str | Table]) -> None:
    for part in parts:
        if isinstance(part, str):
            say(printable(part))
        else:
            columns, rows, numbers = part
            table(columns.split(), rows, numbers=numbers)


# -- watching --------------------------------------------------------------------------------------


async def _repeat(cluster: Cluster, wanted: Wanted, *, json: bool) -> None:
    """Print the status every few seconds, for a file or another program."""
    while True:
        try:
            status = await read(cluster, wanted)
        except (BrokerError, OSError) as error:
            if json:
                json_line({"health": _HEALTH[UNREACHABLE], "problems": [reason(error)]})
            else:
                say(f"{_HEALTH[UNREACHABLE]}: {printable(reason(error))}")
        else:
            found = problems(status, wanted)
            if json:
                json_line(_fields(status, found))
            else:
                _print(sections(status, found, wanted))
                say()
        flush()
        await asyncio.sleep(_PERIOD_S)


async def _redraw(cluster: Cluster, wanted: Wanted) -> None:
    """Update one view on the terminal; a cluster that is unreachable may come back."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False, markup=False)
    with Live(console=console, auto_refresh=False, vertical_overflow="visible") as live:
        while True:
            parts: list[str | Table]
            try:
                status = await read(cluster, wanted)
                parts = list(sections(status, problems(status, wanted), wanted))
            except (BrokerError, OSError) as error:
                parts = [f"{_HEALTH[UNREACHABLE]}: {reason(error)}"]
            drawn: list[Any] = [
                Text(printable(part))
                if isinstance(part, str)
                else drawn_table(part[0].split(), part[1], numbers=part[2])
                for part in [*parts, "", "Ctrl-C to stop"]
            ]
            live.update(Group(*drawn), refresh=True)
            await asyncio.sleep(_PERIOD_S)
