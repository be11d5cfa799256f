"""Implementation of `suwi cluster start`, `stop`, `status` and the faults."""

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import typer

from suwi.cli.options import DEFAULT_BROKER, DEFAULT_DATA, Target
from suwi.cli.output import Failure, count_text, document, flush, say, table
from suwi.cli.session import guarded
from suwi.local_cluster.cluster import ClusterError, LocalCluster
from suwi.local_cluster.layout import Layout, broker_name, read_state
from suwi.local_cluster.process import ProcessState
from suwi.local_cluster.zookeeper import CannotRun

_COLUMNS = ("Process", "Pid", "State", "Port", "Leaders", "Role")


class Given(NamedTuple):
    """The options of `start`; None if not given."""

    brokers: int | None
    zookeepers: int | None
    zookeeper: str | None
    port: int | None
    links: bool | None
    settings: dict[str, str]


def start(data: str, given: Given) -> None:
    def work(cluster: LocalCluster) -> None:
        try:
            known = read_state(cluster.directory)
        except ValueError as error:
            raise Failure(str(error)) from None
        cluster.start(_new_layout(given) if known is None else _changed(known.layout, given))
        held = cluster.held_by_faults()
        if held:
            faults = ", ".join(f"{name} is {fault}" for name, fault in held.items())
            raise Failure(f"not all processes serve: {faults}")
        say(f"the cluster serves at {cluster.bootstrap_servers}")

    _run(data, work)


def _new_layout(given: Given) -> Layout:
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


def _changed(known: Layout, given: Given) -> Layout:
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

    code = guarded(partial(_work, DEFAULT_DATA if data is None else data, read))
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


def stop(data: str) -> None:
    def work(cluster: LocalCluster) -> None:
        cluster.stop()
        say("stopped")

    _run(data, work)


def status(data: str, *, json: bool) -> None:
    def work(cluster: LocalCluster) -> None:
        rows, view = cluster.status()
        problem = cluster.state.out_of_touch()
        behind = None if view is None or problem else view.not_in_sync
        if json:
            document(
                {
                    "processes": [row._asdict() for row in rows],
                    "partitions": None if view is None else view.partitions,
                    "not_in_sync": behind,
                    "problem": problem,
                    "bootstrap_servers": cluster.bootstrap_servers,
                }
            )
            return
        cells = [
            (r.name, r.pid or "-", r.state, r.port, "-" if r.leaders is None else r.leaders, r.role)
            for r in rows
        ]
        table(_COLUMNS, cells, numbers="Pid Port Leaders")
        say()
        if problem:
            say(problem)
        elif view is None:
            say("no broker answers")
        else:
            say(
                f"{count_text(view.partitions, 'partition')}, "
                + (f"not in sync: {', '.join(behind)}" if behind else "all replicas in sync")
            )

    _run(data, work)


def act(data: str, name: str, method: str, done: str) -> None:
    """One of the methods that take the name of a process."""
    full_name = broker_name(int(name)) if name.isascii() and name.isdigit() else name

    def work(cluster: LocalCluster) -> None:
        getattr(cluster, method)(full_name)
        say(f"{full_name} {done}")

    _run(data, work)


def isolate(data: str, broker: int) -> None:
    def work(cluster: LocalCluster) -> None:
        cluster.isolate(broker)
        say(f"{broker_name(broker)} is cut off; `suwi cluster heal` restores its links")

    _run(data, work)


def cut(data: str, start: str, to: str, *, one_way: bool) -> None:
    def work(cluster: LocalCluster) -> None:
        cluster.cut([(start, to)], one_way=one_way)
        arrives = f"from {start} to {to}" if one_way else f"between {start} and {to}"
        say(f"nothing arrives {arrives}; `suwi cluster heal` restores the link")

    _run(data, work)


def slow(data: str, brokers: Sequence[int]) -> None:
    def work(cluster: LocalCluster) -> None:
        for broker in brokers:
            cluster.slow(broker)
            say(f"the links of {broker_name(broker)} are slow; `suwi cluster heal` restores them")

    _run(data, work)


def heal(data: str) -> None:
    def work(cluster: LocalCluster) -> None:
        cluster.heal()
        say("all links are restored")

    _run(data, work)


def roll(data: str) -> None:
    _run(data, LocalCluster.roll)


def remove(data: str, broker: int) -> None:
    def work(cluster: LocalCluster) -> None:
        cluster.remove(broker)
        say(f"{broker_name(broker)} is removed; its files are still there")

    _run(data, work)


def _run(data: str, work: Callable[[LocalCluster], None]) -> None:
    raise typer.Exit(guarded(partial(_work, data, work)))


def _work(data: str, work: Callable[[LocalCluster], None]) -> None:
    def tell(text: str) -> None:
        say(text)
        flush()  # it may take a while until the next line

    try:
        work(LocalCluster(data, tell))
    except (ClusterError, CannotRun) as error:
        raise Failure(str(error)) from None
