"""`suwi cluster`."""

from typing import Annotated

import typer

from suwi.cli.options import DEFAULT_DATA, CommandConfig, Json, Target, broker_option, pairs

app = typer.Typer(
    rich_markup_mode=None,
    help="Run a cluster on this machine and break it; inspect any cluster as a whole.",
    no_args_is_help=True,
)


_Data = Annotated[str, typer.Option(metavar="DIR", help="The cluster's directory.")]
_LocalCluster = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="The directory of a local cluster. Default: suwi-cluster, if there is one, without "
        "--broker.",
    ),
]
_Broker = Annotated[
    str | None, broker_option("A broker of any cluster; several separated by commas.")
]
_Name = Annotated[str, typer.Argument(metavar="N", help="A broker's id, or zookeeper-1, or links.")]


def _target(
    context: typer.Context, data: str | None, broker: str | None, command_config: str | None
) -> Target:
    from suwi.cli.local_cluster import find_target

    source = context.get_parameter_source("broker")
    is_given = source is not None and source.name == "COMMANDLINE"
    if data is not None and is_given:
        raise typer.BadParameter("give one of --data and --broker", param_hint="--data")
    return find_target(data, broker if data is None else None, command_config)


@app.command()
def drain(
    context: typer.Context,
    node: Annotated[int, typer.Argument(metavar="N", help="The broker's id.", min=0)],
    json: Json = False,
    data: _LocalCluster = None,
    broker: _Broker = None,
    command_config: CommandConfig = None,
) -> None:
    """Move all replicas away from a broker, so that it can be switched off.

    Other brokers get them: on other racks and hosts than the remaining replicas if possible, and
    where the fewest are. Writers and readers continue. It can be interrupted and started again.
    """
    from suwi.cli.reassign import drain as run

    run(_target(context, data, broker, command_config), node, json=json)


@app.command()
def events(
    context: typer.Context,
    json: Json = False,
    data: _LocalCluster = None,
    broker: _Broker = None,
    command_config: CommandConfig = None,
) -> None:
    """Show which records elections have lost, or may have lost.

    An unclean election is shown with the minimum loss that the live brokers know. A replica that
    comes back later reports exactly which records it lost. The last 200 events are kept.
    """
    from suwi.cli.events import show

    show(_target(context, data, broker, command_config), json=json)


@app.command()
def start(
    brokers: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=30, help="How many brokers. Default: 3")
    ] = None,
    zookeepers: Annotated[
        int | None,
        typer.Option(metavar="1|3|5", help="How many ZooKeeper servers. Default: 1"),
    ] = None,
    zookeeper: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT,…/CHROOT", help="Use this ensemble instead."),
    ] = None,
    data: _Data = DEFAULT_DATA,
    port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT", min=1024, max=64_000, help="The first of 700 ports. Default: 19092"
        ),
    ] = None,
    links: Annotated[
        bool | None,
        typer.Option(
            help="Proxies between the brokers, for `isolate`, `cut` and `slow`. Default: yes"
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A key of every broker; repeatable."),
    ] = None,
) -> None:
    """Start brokers and ZooKeeper servers as processes of this machine, and wait for them.

    They run until `suwi cluster stop`. In a directory that holds a cluster, what does not run is
    started; a larger --brokers adds brokers. All listen on 127.0.0.1 only.

    \b
    suwi cluster start --brokers 3 --zookeepers 3
    """
    from suwi.cli import local_cluster

    given = local_cluster.Given(
        brokers, zookeepers, zookeeper, port, links, pairs(settings or [], "--set")
    )
    local_cluster.start(data, given)


@app.command()
def stop(data: _Data = DEFAULT_DATA) -> None:
    """Stop all processes: brokers with a controlled shutdown, then ZooKeeper. The data stays."""
    from suwi.cli import local_cluster

    local_cluster.stop(data)


@app.command()
def status(data: _Data = DEFAULT_DATA, json: Json = False) -> None:
    """Show the processes: state, port, how many partitions each broker leads, the controller."""
    from suwi.cli import local_cluster

    local_cluster.status(data, json=json)


@app.command()
def kill(name: _Name, data: _Data = DEFAULT_DATA) -> None:
    """Kill a process with SIGKILL."""
    from suwi.cli import local_cluster

    local_cluster.act(data, name, "kill", "killed")


@app.command()
def restart(name: _Name, data: _Data = DEFAULT_DATA) -> None:
    """Start a process that was killed; one that runs is stopped first."""
    from suwi.cli import local_cluster

    local_cluster.act(data, name, "restart", "serves")


@app.command()
def pause(name: _Name, data: _Data = DEFAULT_DATA) -> None:
    """Freeze a process (SIGSTOP) until `resume`."""
    from suwi.cli import local_cluster

    local_cluster.act(data, name, "pause", "paused")


@app.command()
def resume(name: _Name, data: _Data = DEFAULT_DATA) -> None:
    """Let a paused process go on."""
    from suwi.cli import local_cluster

    local_cluster.act(data, name, "resume", "resumed")


@app.command()
def isolate(
    broker: Annotated[int, typer.Argument(metavar="N", min=1, help="A broker's id.")],
    data: _Data = DEFAULT_DATA,
) -> None:
    """Cut a broker off from the other brokers and from ZooKeeper until `heal`.

    Nothing is refused and nothing is closed: packets seem to be lost. Clients still reach it.
    """
    from suwi.cli import local_cluster

    local_cluster.isolate(data, broker)


@app.command()
def cut(
    start: Annotated[str, typer.Argument(metavar="N", help="A broker's id, or zookeeper.")],
    to: Annotated[str, typer.Argument(metavar="M", help="Another one.")],
    one_way: Annotated[
        bool, typer.Option("--one-way", help="Only what N sends to M is lost.")
    ] = False,
    data: _Data = DEFAULT_DATA,
) -> None:
    """Cut the link between two brokers, or a broker and ZooKeeper, until `heal`.

    As with `isolate`, packets seem to be lost. Links that are cut already stay cut.
    """
    from suwi.cli import local_cluster

    local_cluster.cut(data, start, to, one_way=one_way)


@app.command()
def slow(
    brokers: Annotated[list[int], typer.Argument(metavar="N...", min=1, help="Brokers' ids.")],
    data: _Data = DEFAULT_DATA,
) -> None:
    """Make the links of brokers slow until `heal`: 50 kB/s with a delay of 0.1 s.

    That is less than replication under load needs. Clients reach them as fast as before.
    """
    from suwi.cli import local_cluster

    local_cluster.slow(data, brokers)


@app.command()
def heal(data: _Data = DEFAULT_DATA) -> None:
    """Restore all links."""
    from suwi.cli import local_cluster

    local_cluster.heal(data)


@app.command()
def remove(
    broker: Annotated[int, typer.Argument(metavar="N", min=1, help="A broker's id.")],
    data: _Data = DEFAULT_DATA,
) -> None:
    """Stop a broker that `drain` has emptied, and take it out of the cluster.

    It is refused while the broker has replicas. The files of the broker stay.
    """
    from suwi.cli import local_cluster

    local_cluster.remove(data, broker)


@app.command()
def roll(data: _Data = DEFAULT_DATA) -> None:
    """Restart one broker after another; each waits until all replicas are in sync."""
    from suwi.cli import local_cluster

    local_cluster.roll(data)
