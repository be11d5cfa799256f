"""`suwi cluster`: processes on this machine and their faults; and any cluster as a whole."""

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Annotated, Any, NamedTuple

import typer

from suwi.admin import reassignment
from suwi.admin.event_text import event_text
from suwi.admin.failure import Failure
from suwi.admin.text import count_text, time_text
from suwi.cli.console_process import cluster_address, run_console
from suwi.cli.output import document, ignore, or_dash, say, say_at_once, table
from suwi.cli.session import (
    DEFAULT_BROKER,
    AllowChanges,
    CommandConfig,
    Json,
    Target,
    broker_option,
    guarded,
    make_command,
    pairs,
    run,
)
from suwi.client.cluster import Cluster
from suwi.client.cluster_status import describe_events
from suwi.client.connection import ConnectionLost
from suwi.local_cluster.cluster import ClusterError, LocalCluster
from suwi.local_cluster.layout import Layout, broker_name, read_state
from suwi.local_cluster.process import ProcessState
from suwi.local_cluster.served_brokers import HOLD_S, Faults, ServedBrokers, faults_of, served_in
from suwi.local_cluster.zookeeper import CannotRun

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, add_completion=False)

DEFAULT_DATA = "suwi-cluster"
EVENT_COLUMNS = "Time Event Partition Details"

_Data = Annotated[str, typer.Option(metavar="DIR", help="The cluster's directory.")]
_LocalCluster = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="The directory of a local cluster. Default without --broker: suwi-cluster, while it "
        "runs.",
    ),
]
_Broker = Annotated[
    str | None, broker_option("A broker of any cluster; several separated by commas.")
]
_Name = Annotated[str, typer.Argument(metavar="N", help="A broker's id, or zookeeper-1, or links.")]
_Id = Annotated[int, typer.Argument(metavar="N", min=1, help="A broker's id.")]


# -- any cluster -----------------------------------------------------------------------------------


def _on_any_cluster(work: Callable[..., Awaitable[int | None]]) -> Callable[..., None]:
    """The command of an async function on a local cluster, or on the one of --broker."""

    def run_work(
        context: typer.Context, data: str | None, broker: str | None, file: str | None, job: Any
    ) -> None:
        if data is not None and is_option_given(context, "broker"):
            raise typer.BadParameter("give one of --data and --broker", param_hint="--data")
        run(find_target(data, broker if data is None else None, file), job)

    common = {
        "context": (typer.Context, None),
        "data": (_LocalCluster, None),
        "broker": (_Broker, None),
        "command_config": (CommandConfig, None),
    }
    return make_command(work, common, run_work)


def is_option_given(context: typer.Context, name: str) -> bool:
    """Whether an option is on the command line, not only in the environment."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def find_target(data: str | None, broker: str | None, command_config: str | None) -> Target:
    """A given local cluster, a given broker, or the local cluster in the default directory while
    it runs."""
    if data is None and broker is None and not _runs(DEFAULT_DATA):
        broker = DEFAULT_BROKER
    if broker is not None:
        return Target(broker, command_config)
    found: list[str] = []

    def read(cluster: LocalCluster) -> None:
        found.append(cluster.bootstrap_servers)

    code = guarded(partial(_work, _open_cluster, DEFAULT_DATA if data is None else data, read))
    if code:
        raise typer.Exit(code)
    return Target(found[0], command_config)


def _runs(data: str) -> bool:
    """Whether a broker of the local cluster in this directory runs."""
    with contextlib.suppress(ValueError):
        state = read_state(data)
        if state is not None:
            brokers = map(broker_name, state.layout.broker_ids)
            return any(state.process_state(name) is not ProcessState.DEAD for name in brokers)
    return False


@app.command()
@_on_any_cluster
async def drain(
    cluster: Cluster,
    node: Annotated[int, typer.Argument(metavar="N", help="The broker's id.", min=0)],
    json: Json = False,
) -> None:
    """Move all replicas away from a broker, so that it can be switched off.

    They move to racks and hosts without another replica of the partition if possible, and to the
    brokers with the fewest replicas. Clients write and read meanwhile. The command can be
    interrupted and started again.
    """
    moved = await reassignment.drain(cluster, node, ignore if json else say_at_once)
    if json:
        document({"broker": node, "partitions_moved": moved})
    else:
        say(f"broker {node} has no replicas left: it can be switched off")


@app.command()
@_on_any_cluster
async def events(cluster: Cluster, json: Json = False) -> None:
    """Show which records elections have lost, or may have lost.

    An unclean election is shown with the minimum loss that the live brokers know. A replica that
    comes back later reports exactly which records it lost. The last 200 events are kept.
    """
    try:
        recorded = await describe_events(cluster)
    except ConnectionLost as error:
        raise Failure(f"{error}; only Suwi's brokers record events") from None
    if json:
        document(recorded)
    elif recorded:
        table(EVENT_COLUMNS.split(), map(event_row, recorded))
    else:
        say("no election has lost records")


def event_row(event: Mapping[str, Any]) -> tuple[object, ...]:
    kind, facts = event["kind"], event["facts"]
    return time_text(event["at_ms"]), kind, facts.get("partition", "-"), event_text(kind, facts)


# -- processes on this machine ---------------------------------------------------------------------


def _on_local(open_: Callable[[str], Any], work: Callable[..., None]) -> Callable[..., None]:
    """The command of a function on what `open_` makes of --data, its first argument."""

    def run_work(data: str, job: Callable[[Any], None]) -> None:
        raise typer.Exit(guarded(partial(_work, open_, data, job)))

    return make_command(work, {"data": (_Data, DEFAULT_DATA)}, run_work)


def _work(open_: Callable[[str], Any], data: str, work: Callable[[Any], None]) -> None:
    try:
        work(open_(data))
    except (ClusterError, CannotRun) as error:
        raise Failure(str(error)) from None


_open_cluster = partial(LocalCluster, say=say_at_once)
_on_local_cluster = partial(_on_local, _open_cluster)
_on_faults = partial(_on_local, partial(faults_of, say=say_at_once))
_on_served = partial(_on_local, served_in)


class _Given(NamedTuple):
    """The options of `start`; None if not given."""

    brokers: int | None
    zookeepers: int | None
    zookeeper: str | None
    port: int | None
    links: bool | None
    settings: dict[str, str]


@app.command()
@_on_local_cluster
def start(
    cluster: LocalCluster,
    brokers: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=30, help="How many brokers. Default: 3")
    ] = None,
    zookeepers: Annotated[
        int | None, typer.Option(metavar="1|3|5", help="How many ZooKeeper servers. Default: 1")
    ] = None,
    zookeeper: Annotated[
        str | None, typer.Option(metavar="HOST:PORT,…/CHROOT", help="Use this ensemble instead.")
    ] = None,
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
    console: Annotated[
        bool,
        typer.Option(
            "--console",
            show_default=False,
            help="Then show the cluster in a web browser, until Ctrl-C; the cluster runs on.",
        ),
    ] = False,
    allow_changes: AllowChanges = False,
    faults: Annotated[
        bool,
        typer.Option(
            "--faults",
            show_default=False,
            help="The console may kill, pause and cut off brokers, too.",
        ),
    ] = False,
) -> None:
    """Start brokers and ZooKeeper servers as processes of this machine, and wait for them.

    They run until `suwi cluster stop`. If the directory holds a cluster, its stopped processes are
    started; a larger --brokers adds brokers. All listen on 127.0.0.1 only.

    \b
    suwi cluster start --brokers 3 --zookeepers 3
    """
    for option, is_given in (("--allow-changes", allow_changes), ("--faults", faults)):
        if is_given and not console:
            raise typer.BadParameter("goes with --console", param_hint=option)
    given = _Given(brokers, zookeepers, zookeeper, port, links, pairs(settings, "--set"))
    try:
        known = read_state(cluster.directory)
    except ValueError as error:
        raise Failure(str(error)) from None
    cluster.start(_new_layout(given) if known is None else _changed(known.layout, given))
    held = cluster.held_by_faults()
    if held:
        reasons = ", ".join(f"{name} is {fault}" for name, fault in held.items())
        raise Failure(f"not all processes serve: {reasons}")
    say_at_once(f"the cluster serves at {cluster.bootstrap_servers}")
    if console:
        target, breaks = Target(cluster.bootstrap_servers, None), cluster.directory
        shown = [cluster_address(target, breaks=breaks if faults else None)]
        run_console(shown, allow_changes=allow_changes)


def _new_layout(given: _Given) -> Layout:
    if given.zookeeper and given.zookeepers:
        raise Failure("--zookeepers and --zookeeper: give one of them")
    if given.zookeepers not in (None, 1, 3, 5):
        raise Failure(f"--zookeepers {given.zookeepers}: an ensemble has 1, 3 or 5 servers")
    layout = Layout(
        given.brokers or 3,
        0 if given.zookeeper else given.zookeepers or 1,
        given.zookeeper or "",
        given.port or 19092,
        given.links is not False,
        given.settings,
    )
    try:
        layout.ensemble()
    except ValueError as error:
        raise Failure(f"--zookeeper {error}") from None
    return layout


def _changed(known: Layout, given: _Given) -> Layout:
    """The layout of an existing cluster; brokers may be added to it."""
    fixed = {
        "--zookeepers": (given.zookeepers, known.zookeepers),
        "--zookeeper": (given.zookeeper, known.zookeeper),
        "--port": (given.port, known.port),
        "--links": (given.links, known.has_links),
        "--set": (given.settings or None, known.settings),
    }
    for option, (wanted, is_) in fixed.items():
        if wanted not in (None, is_):
            raise Failure(f"{option}: the cluster was made with {is_ or 'none'}, not {wanted}")
    now = len(known.broker_ids)
    if given.brokers is not None and given.brokers < now:
        raise Failure(
            f"--brokers {given.brokers}: the cluster has {now}; `suwi cluster remove N` removes one"
        )
    return known.with_brokers(given.brokers or now)


@app.command()
@_on_local_cluster
def stop(cluster: LocalCluster) -> None:
    """Stop all processes: brokers with a controlled shutdown, then ZooKeeper. The data stays."""
    cluster.stop()
    say("stopped")


@app.command()
@_on_local_cluster
def status(cluster: LocalCluster, json: Json = False) -> None:
    """Show the processes: state, port, how many partitions each broker leads, the controller."""
    rows, view = cluster.status()
    problem = cluster.state.out_of_touch()
    behind = None if view is None or problem else view.not_in_sync
    if json:
        document(
            {
                "processes": rows,
                "partitions": None if view is None else view.partitions,
                "not_in_sync": behind,
                "problem": problem,
                "bootstrap_servers": cluster.bootstrap_servers,
            }
        )
        return
    cells = [(r.name, r.pid or "-", r.state, r.port, or_dash(r.leaders), r.role) for r in rows]
    table("Process Pid State Port Leaders Role".split(), cells, numbers="Pid Port Leaders")
    say()
    if problem:
        say(problem)
    elif view is None:
        say("no broker answers")
    else:
        sync = f"not in sync: {', '.join(behind)}" if behind else "all replicas in sync"
        say(f"{count_text(view.partitions, 'partition')}, {sync}")


def _add_fault(fault: str, done: str, help_text: str) -> None:
    """The command of a fault of one process."""

    def act(cluster: Faults, name: _Name) -> None:
        full_name = broker_name(int(name)) if name.isascii() and name.isdigit() else name
        getattr(cluster, fault)(full_name)
        say(f"{full_name} {done}")

    app.command(fault, help=help_text)(_on_faults(act))


_add_fault("kill", "killed", "Kill a process with SIGKILL.")
_add_fault("restart", "serves", "Start a process that was killed; one that runs is stopped first.")
_add_fault("pause", "paused", "Freeze a process (SIGSTOP) until `resume`.")
_add_fault("resume", "resumed", "Let a paused process go on.")


def _add_served_fault(fault: str, done: str, help_text: str) -> None:
    """The command of a fault of one broker, which processes of one machine cannot have."""

    def act(brokers: ServedBrokers, broker: _Id) -> None:
        name = broker_name(broker)
        getattr(brokers, fault.replace("-", "_"))(name)
        say(f"{name} {done}")

    app.command(fault, help=f"{help_text} {_SERVED}")(_on_served(act))


_SERVED = "Only of brokers that share one process: `suwi serve --brokers N --faults`."
_add_served_fault(
    "power-loss",
    "has lost power",
    "Take the power from a broker until `restart`: what is not synced is lost.",
)
_add_served_fault("fill-disk", "has a full disk", "Let no file of a broker grow.")
_add_served_fault("free-disk", "has room on its disk", "End `fill-disk`.")


@app.command()
@_on_faults
def isolate(cluster: Faults, broker: _Id) -> None:
    """Cut a broker off from the other brokers and from ZooKeeper until `heal`.

    Nothing is refused and nothing is closed: packets seem to be lost. Clients still reach it.
    """
    cluster.isolate(broker)
    say(f"{broker_name(broker)} is cut off; `suwi cluster heal` restores its links")


@app.command()
@_on_faults
def cut(
    cluster: Faults,
    start: Annotated[str, typer.Argument(metavar="N", help="A broker's id, or zookeeper.")],
    to: Annotated[str, typer.Argument(metavar="M", help="Another one.")],
    one_way: Annotated[
        bool, typer.Option("--one-way", help="Only what N sends to M is lost.")
    ] = False,
) -> None:
    """Cut the link between two brokers, or a broker and ZooKeeper, until `heal`.

    As with `isolate`, packets seem to be lost. Links that are cut already stay cut.
    """
    cluster.cut([(start, to)], one_way=one_way)
    arrives = f"from {start} to {to}" if one_way else f"between {start} and {to}"
    say(f"nothing arrives {arrives}; `suwi cluster heal` restores the link")


@app.command()
@_on_faults
def slow(
    cluster: Faults,
    brokers: Annotated[list[int], typer.Argument(metavar="N...", min=1, help="Brokers' ids.")],
) -> None:
    """Make the links of brokers slow until `heal`: 50 kB/s with a delay of 0.1 s.

    That is less than replication under load needs. Clients reach them as fast as before.
    """
    for broker in brokers:
        cluster.slow(broker)
        say(f"the links of {broker_name(broker)} are slow; `suwi cluster heal` restores them")


@app.command(
    help=f"Let nothing pass between the brokers for {HOLD_S:g} s, or until `heal`. {_SERVED}"
)
@_on_served
def hold(cluster: ServedBrokers) -> None:
    cluster.hold()
    say(f"replication is held, for {HOLD_S:g} s at most; `suwi cluster heal` restores the links")


@app.command()
@_on_faults
def heal(cluster: Faults) -> None:
    """Restore all links."""
    cluster.heal()
    say("all links are restored")


@app.command()
@_on_local_cluster
def remove(cluster: LocalCluster, broker: _Id) -> None:
    """Stop a broker that `drain` has emptied, and take it out of the cluster.

    It is refused while the broker has replicas. The files of the broker stay.
    """
    cluster.remove(broker)
    say(f"{broker_name(broker)} is removed; its files are still there")


@app.command()
@_on_local_cluster
def roll(cluster: LocalCluster) -> None:
    """Restart one broker after another; each waits until all replicas are in sync."""
    cluster.roll()
