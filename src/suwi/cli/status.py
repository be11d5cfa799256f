"""`suwi status`: the whole cluster at a glance, with an exit code for scripts."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from suwi.admin.cluster_health import HealthCriteria, access_differences, problems, read_health
from suwi.admin.text import NAMED_MAX, count_text, size_text, time_text
from suwi.cli.cluster import EVENT_COLUMNS, event_row, find_target
from suwi.cli.output import (
    Part,
    document,
    flush,
    is_terminal,
    json_line,
    redraw,
    say,
    show_parts,
    stop_when_output_closes,
)
from suwi.cli.session import INTERRUPTED, CommandConfig, Json, broker_option, run
from suwi.client.cluster import Cluster
from suwi.client.cluster_status import BrokerStatus, ClusterStatus, DiskStatus
from suwi.client.errors import reason
from suwi.client.settings import ClientSettings
from suwi.env import SystemClock
from suwi.model.errors import BrokerError

HEALTHY, DEGRADED, UNREACHABLE = 0, 1, 2
_HEALTH = ("healthy", "degraded", "unreachable")
_PERIOD_S = 2.0
_COLUMNS = "Broker State Controller Address Rack Leaders Replicas OutOfSync Used Free Version"
_NUMBERS = "Broker Leaders Replicas OutOfSync Used Free"

DEFAULT_TARGET = "Default: the local cluster in suwi-cluster while it runs, else 127.0.0.1:9092."
Timeout = Annotated[
    float, typer.Option(metavar="S", min=0.1, help="How long a broker may take to respond.")
]


def status(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Update until Ctrl-C.")] = False,
    lag: Annotated[
        int, typer.Option(metavar="N", min=0, help="Show groups this many records behind.")
    ] = 1000,
    brokers: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Degraded unless this many brokers are alive."),
    ] = None,
    node: Annotated[
        int | None, typer.Option(metavar="ID", min=0, help="Only this broker's health counts.")
    ] = None,
    timeout: Timeout = 5.0,
    json: Json = False,
    broker: Annotated[
        str | None,
        broker_option(f"A broker of the cluster; several separated by commas. {DEFAULT_TARGET}"),
    ] = None,
    command_config: CommandConfig = None,
) -> None:
    """Show the health of the cluster: brokers, partitions, groups, events, disks.

    Exit code 0: healthy. 1: degraded, that is, a broker is not alive, a broker reports a problem
    (a full disk, damaged records, an offline data directory …), a broker is not connected to
    ZooKeeper, there is no controller, or a partition is under-replicated or offline. 2: no broker
    responds. Groups that are behind, past events and brokers that differ in their settings of
    access rules are shown and do not count.
    """
    # The health of one broker is asked for often, by probes: without the groups.
    criteria = HealthCriteria(lag if node is None else None, timeout, brokers, node)

    async def work(cluster: Cluster) -> int:
        if watch:
            await _watch(cluster, criteria, json=json)
        found = await read_health(cluster, SystemClock(), criteria)
        degraded = problems(found, criteria)
        if json:
            document(_fields(found, degraded))
        else:
            show_parts(sections(found, degraded, criteria))
        return DEGRADED if degraded else HEALTHY

    run(
        find_target(None, broker, command_config),
        work,
        interrupted=HEALTHY if watch else INTERRUPTED,
        unreachable=UNREACHABLE,
        settings=client_settings(timeout),
    )


def client_settings(timeout_s: float) -> ClientSettings:
    return ClientSettings(
        connect_timeout_s=timeout_s, request_timeout_s=timeout_s, retry_timeout_s=timeout_s
    )


def _fields(status: ClusterStatus, found: Sequence[str]) -> dict[str, Any]:
    return {"health": _HEALTH[bool(found)], "problems": list(found), **asdict(status)}


async def _watch(cluster: Cluster, criteria: HealthCriteria, *, json: bool) -> None:
    """Show the status every few seconds. A cluster that is unreachable may come back."""

    async def read() -> tuple[dict[str, Any], list[Part]]:
        try:
            status = await read_health(cluster, SystemClock(), criteria)
        except (BrokerError, OSError) as error:
            why, health = reason(error), _HEALTH[UNREACHABLE]
            return {"health": health, "problems": [why]}, [f"{health}: {why}"]
        found = problems(status, criteria)
        return _fields(status, found), list(sections(status, found, criteria))

    async def read_parts() -> list[Part]:
        return (await read())[1]

    if is_terminal() and not json:
        await redraw(read_parts, _PERIOD_S)
    async with stop_when_output_closes():
        while True:
            fields, parts = await read()
            if json:
                json_line(fields)
            else:
                show_parts(parts)
                say()
            flush()
            await asyncio.sleep(_PERIOD_S)


# -- output ----------------------------------------------------------------------------------------


def sections(
    status: ClusterStatus, found: Sequence[str], criteria: HealthCriteria
) -> Iterator[Part]:
    """Lines and tables, in their order."""
    rows: list[tuple[object, ...]]
    stores = sorted({broker.store for broker in status.brokers if broker.store is not None})
    controller = "none" if status.controller is None else f"broker {status.controller}"
    judged = "" if criteria.node is None else f"broker {criteria.node} is "
    yield f"Cluster     {status.cluster_id or 'unknown'}: {judged}{_HEALTH[bool(found)]}"
    yield f"Controller  {controller}"
    yield f"Metadata    {', '.join(stores) or 'unknown'}"
    yield f"Partitions  {status.partitions} of {count_text(status.topics, 'topic')}"
    if criteria.lag_min is not None:
        yield f"Groups      {status.groups}"
    yield ""
    yield _COLUMNS, [_row(broker) for broker in status.brokers], _NUMBERS
    if status.ensemble:
        yield ""
        rows = [(server.address, server.state, server.version or "-") for server in status.ensemble]
        yield "ZooKeeper State Version", rows, ""
    if found:
        yield from ("", "Problems")
        yield from (f"  {text}" for text in found)
    if differences := list(access_differences(status)):
        yield from ("", "Access rules")
        yield from (f"  {text}" for text in differences)
    if status.groups_behind:
        rows = [(each.group, each.state, each.lag) for each in status.groups_behind]
        yield from ("", f"Groups {criteria.lag_min} or more records behind: {len(rows)}")
        yield "Group State Lag", rows[:NAMED_MAX], "Lag"
    elections = sorted((e for b in status.brokers for e in b.elections), key=lambda e: e.at_ms)
    if elections:
        yield from ("", "Last elections")
        rows = [(time_text(e.at_ms), e.partitions, e.cause) for e in elections[-NAMED_MAX:]]
        yield "Time Partitions Cause", rows, "Partitions"
    if status.events:
        yield from ("", f"Events: {len(status.events)}; `suwi cluster events` shows all")
        yield EVENT_COLUMNS, list(map(event_row, status.events[-NAMED_MAX:])), ""
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


def _space(disks: Sequence[DiskStatus]) -> tuple[str, str]:
    """Used and free space of the fullest volume."""
    volumes = [
        (d.free_bytes, d.total_bytes) for d in disks if d.total_bytes and d.free_bytes is not None
    ]
    if not volumes:
        return "-", "-"
    free_bytes, total_bytes = min(volumes, key=lambda volume: volume[0] / volume[1])
    return f"{100 - 100 * free_bytes / total_bytes:.0f} %", size_text(free_bytes)
