"""`suwi status` and `suwi doctor`."""

from typing import Annotated

import typer

from suwi.cli.options import (
    CommandConfig,
    Json,
    broker_option,
)

_DEFAULT = "Default: the local cluster in suwi-cluster while it runs, else 127.0.0.1:9092."

Timeout = Annotated[
    float,
    typer.Option(metavar="S", min=0.1, help="How long a broker may take to respond."),
]


def status(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Update until Ctrl-C.")] = False,
    lag: Annotated[
        int, typer.Option(metavar="N", min=0, help="Show groups this many records behind.")
    ] = 1000,
    brokers: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Degraded unless so many brokers are alive."),
    ] = None,
    node: Annotated[
        int | None,
        typer.Option(metavar="ID", min=0, help="Only this broker's health counts."),
    ] = None,
    timeout: Timeout = 5.0,
    json: Json = False,
    broker: Annotated[
        str | None,
        broker_option(f"A broker of the cluster; several separated by commas. {_DEFAULT}"),
    ] = None,
    command_config: CommandConfig = None,
) -> None:
    """Show the health of the cluster: brokers, partitions, groups, events, disks.

    Exit code 0: healthy. 1: degraded, that is, a broker is not alive, a data directory is offline,
    a broker is not connected to ZooKeeper, there is no controller, or a partition is
    under-replicated or offline. 2: no broker responds. Groups that are behind and past events
    are shown and do not count.
    """
    from suwi.cli.local_cluster import find_target
    from suwi.cli.status import Wanted, show

    # The health of one broker is asked for often, by probes: without the groups.
    wanted = Wanted(lag if node is None else None, timeout, brokers, node)
    show(find_target(None, broker, command_config), wanted, watch=watch, json=json)


def doctor(
    context: typer.Context,
    config: Annotated[
        str | None, typer.Option(metavar="FILE", help="Check a server.properties.")
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(metavar="DIR", help="Check a broker's data directory; repeatable."),
    ] = None,
    timeout: Timeout = 5.0,
    json: Json = False,
    broker: Annotated[
        str | None, broker_option(f"Check the running cluster of this broker. {_DEFAULT}")
    ] = None,
    command_config: CommandConfig = None,
) -> None:
    """Check a configuration, a data directory or a running cluster, and say what to do.

    Without --config and --data, a running cluster is checked; with them, only if --broker names it.
    Nothing is changed.

    Exit code 0: nothing was found. 1: something was found. 2: no broker responds.
    """
    from suwi.cli.doctor.command import check
    from suwi.cli.local_cluster import find_target

    source = context.get_parameter_source("broker")
    is_given = source is not None and source.name == "COMMANDLINE"
    target = None
    if is_given or not (config or data):
        target = find_target(None, broker, command_config)
    check(target, config, data or [], timeout_s=timeout, json=json)
