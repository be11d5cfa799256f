"""Starts, stops and breaks the processes of a local cluster.

Every method reads `cluster.json` anew and may be called from several processes; changes hold a
lock. The processes run on when the caller ends.
Invariant: a process is in `cluster.json` before the lock is released that was held at its start.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import suwi
from suwi.env import AlreadyLocked, LocalDisk, Lock, local_env
from suwi.local_cluster import zookeeper
from suwi.local_cluster.layout import (
    FOLLOWED,
    LINKS,
    ZOOKEEPER,
    ClusterState,
    Cut,
    Layout,
    broker_name,
    broker_settings,
    is_free,
    needed_ports,
    read_state,
    version_of_state,
    write_state,
    zookeeper_name,
)
from suwi.local_cluster.process import ProcessId, ProcessState, spawn
from suwi.local_cluster.view import View, unregister, views
from suwi.model.errors import InvalidRequest

START_S = 120.0
STOP_S = 60.0
IN_SYNC_S = 120.0
_LOCK_S = 30.0
_PAUSE_S = 0.05
_SHOWN_BYTES = 2_000
_USER, _SECRET_BYTES = "digest:suwi:", 16

Say = Callable[[str], None]


class ClusterError(Exception):
    """What went wrong, for the user."""


class Status(NamedTuple):
    name: str
    pid: int | None
    state: str
    """`running`, `paused`, `isolated` or `dead`."""
    port: int
    """The first one, of the links."""
    role: str
    leaders: int | None


class LocalCluster:
    serve = ("-c", "from suwi.cli.main import app; app()", "serve", "--config")
    """What the interpreter runs for a broker, before the path of its configuration."""

    def __init__(self, directory: str, say: Say = lambda _: None) -> None:
        self.directory = os.path.abspath(directory)
        self._say = say
        self._disk = LocalDisk()

    # -- what there is ---------------------------------------------------------------------------

    @property
    def state(self) -> ClusterState:
        try:
            found = read_state(self.directory)
        except ValueError as error:
            raise ClusterError(str(error)) from None
        if found is None:
            raise ClusterError(
                f"there is no cluster in {self.directory}: `suwi cluster start` makes one"
            )
        return found

    @property
    def layout(self) -> Layout:
        return self.state.layout

    @property
    def bootstrap_servers(self) -> str:
        layout = self.layout
        return ",".join(map(str, map(layout.client_address, layout.broker_ids)))

    def process_state(self, name: str) -> ProcessState:
        return self.state.process_state(name)

    def data_directory(self, broker: int) -> str:
        return os.path.join(self.directory, broker_name(broker), "data")

    @property
    def _credential(self) -> str:
        """The file with which brokers log in to an ensemble of the cluster's own."""
        return os.path.join(self.directory, "zookeeper.auth")

    def log_path(self, name: str) -> str:
        if name == LINKS:
            return os.path.join(self.directory, "links.log")
        return os.path.join(self.directory, name, f"{name.partition('-')[0]}.log")

    def views(self) -> dict[int, View | None]:
        """What the brokers say that run and are not cut off."""
        state = self.state
        cut_off = set(state.cut_off())
        return views(
            {
                broker: state.layout.client_address(broker)
                for broker in state.layout.broker_ids
                if broker not in cut_off
                and self.process_state(broker_name(broker)) is ProcessState.RUNNING
            }
        )

    def status(self) -> tuple[list[Status], View | None]:
        """All processes, and one broker's view."""
        state = self.state
        layout, cut_off, servers = state.layout, set(state.cut_off()), state.layout.servers()
        view = next((view for view in self.views().values() if view is not None), None)
        rows = []
        for name in layout.names:
            kind, _, number = name.partition("-")
            process_state, role, leaders = state.process_state(name), "", None
            told: str = process_state.value
            if name == LINKS:
                port, role = layout.peer_link_port(1), "proxies"
            elif kind == ZOOKEEPER:
                server = servers[int(number)]
                port = server.client_port
                if process_state is ProcessState.RUNNING:
                    role = zookeeper.mode(port, server.host) or "not serving"
            else:
                broker = int(number)
                port = layout.client_port(broker)
                if broker in cut_off and process_state is ProcessState.RUNNING:
                    told = "isolated"
                if view is not None:
                    role = "controller" if view.controller == broker else ""
                    leaders = view.led_by(broker)
            pid = None if process_state is ProcessState.DEAD else state.processes[name].pid
            rows.append(Status(name, pid, told, port, role, leaders))
        return rows, view

    # -- start and stop --------------------------------------------------------------------------

    def start(self, layout: Layout | None = None) -> None:
        """Start everything that does not run, and wait until all serves except `held_by_faults`.

        `layout` is for a new cluster, or has more brokers than before. It is refused, and nothing
        changes, if another program has one of its ports.
        """
        if layout is not None:
            if layout.zookeepers:
                zookeeper.command("")  # before anything is written
            self._check_ports(layout)
            self._disk.make_dirs(self.directory)
            with self._locked():
                state = read_state(self.directory)
                if state is None:
                    state = ClusterState(layout)
                    if layout.zookeepers:
                        secret = local_env().random.token(_SECRET_BYTES).hex()
                        self._disk.write_atomically(self._credential, f"{_USER}{secret}".encode())
                state.layout = layout
                write_state(self.directory, state)
        layout = self.layout
        servers = [*map(zookeeper_name, layout.servers())]
        links = [LINKS] if layout.has_links else []
        brokers = [*map(broker_name, layout.broker_ids)]
        for names in (servers, links, brokers):
            self.start_processes(names)
        held = self.held_by_faults()
        self._wait_until_served([n for n in (*servers, *links, *brokers) if n not in held])

    def _check_ports(self, layout: Layout) -> None:
        known = read_state(self.directory)
        if layout.network:  # each process has a host of its own
            return
        for name, ports in needed_ports(layout, known).items():
            for port in ports:
                if not is_free(port):
                    instead = "" if known else ", or give the first of other ports with --port"
                    raise ClusterError(
                        f"port {port} ({name}) is taken by another program: end it{instead}"
                    )

    def start_processes(self, names: Iterable[str]) -> None:
        """Start those that do not run, and wait until they serve; raises if one is cut off."""
        started = []
        with self.changed() as state:
            for name in names:
                process = state.processes.get(name)
                if process is None or process.state is ProcessState.DEAD:
                    state.processes[name] = self._spawn(state.layout, name)
                    started.append(name)
        if started:
            self._say(f"starting {', '.join(started)}")
        held = {n: why for n, why in self.held_by_faults().items() if n in started}
        self._wait_until_served([name for name in started if name not in held])
        for name, why in held.items():
            raise ClusterError(f"{name} is started, and does not serve: it is {why}")

    def stop(self) -> None:
        """Stop everything in order; what does not stop in time is killed."""
        layout = self.layout
        self.heal()
        self.stop_processes([broker_name(broker) for broker in layout.broker_ids])
        self.stop_processes([LINKS, *map(zookeeper_name, layout.servers())])

    def stop_processes(self, names: Sequence[str]) -> None:
        """SIGTERM; what does not stop in time is killed."""
        processes = {n: p for n, p in self.state.processes.items() if n in names}
        running = [name for name, process in processes.items() if process.send(signal.SIGTERM)]
        for name in running:
            processes[name].send(signal.SIGCONT)  # one that is paused would not stop
        if running:
            self._say(f"stopping {', '.join(running)}")

        def all_ended() -> bool:
            return all(processes[name].state is ProcessState.DEAD for name in running)

        with contextlib.suppress(ClusterError):
            _wait(all_ended, STOP_S, str)
        for name in running:
            if processes[name].send(signal.SIGKILL):
                self._say(f"{name} did not stop within {STOP_S:.0f} s: killed")
        _wait(all_ended, STOP_S, lambda: f"not ended after SIGKILL: {', '.join(running)}")

    def restart(self, name: str) -> None:
        """Stop a process if it runs, start it, and wait until it serves."""
        self.check_name(name)
        self.stop_processes([name])
        self.start_processes([name])

    def roll(self) -> None:
        """Restart one broker after another, each when all replicas are in sync."""
        self.wait_in_sync()
        for broker in self.layout.broker_ids:
            started_s = _now_s()
            self.restart(broker_name(broker))
            self.wait_in_sync()
            self._say(
                f"{broker_name(broker)} restarted, all replicas in sync after "
                f"{_now_s() - started_s:.1f} s"
            )

    def remove(self, broker: int) -> None:
        """Stop a broker that has no replicas, and take it out of the cluster. Its files stay.

        The controller has the last word on whether it has replicas.
        """
        name = broker_name(broker)
        self.check_name(name)
        if len(self.layout.broker_ids) == 1:
            raise ClusterError(f"{name} is the only broker")
        views = self._views_of_others(broker)
        if not views:
            raise ClusterError("no other broker answers: it is not known what is on this one")
        partitions = sorted({tp for view in views.values() for tp in view.replicas_on(broker)})
        if partitions:
            more = f" and {len(partitions) - 1} more" if len(partitions) > 1 else ""
            raise ClusterError(
                f"{name} has replicas of {partitions[0]}{more}: `suwi cluster drain {broker}` "
                "moves them away"
            )
        self.stop_processes([name])

        def is_unregistered() -> bool:
            seen = self._views_of_others(broker).values()
            return bool(seen) and all(broker not in view.brokers for view in seen)

        self.wait(is_unregistered, STOP_S, f"{name} is still registered")
        layout = self.layout
        try:
            unregister([layout.client_address(other) for other in views], broker)
        except InvalidRequest as error:  # it has got replicas meanwhile
            self.start_processes([name])
            raise ClusterError(error.message) from None
        with self.changed() as state:
            state.forget(broker)
        if self.process_state(LINKS) is ProcessState.RUNNING:
            # They have the ports until they have read `cluster.json`, and the next command may be
            # the one that adds a broker.
            ports = layout.link_ports(broker)
            self.wait(lambda: all(map(is_free, ports)), STOP_S, f"the links still use {ports}")

    def _views_of_others(self, broker: int) -> dict[int, View]:
        return {b: view for b, view in self.views().items() if b != broker and view is not None}

    def wait(self, is_done: Callable[[], bool], limit_s: float, why_not: str) -> None:
        """Raises `ClusterError` with this reason if it takes longer."""
        _wait(is_done, limit_s, lambda: f"{why_not} after {limit_s:.0f} s")

    def wait_in_sync(self, limit_s: float = IN_SYNC_S) -> None:
        """Wait until all brokers run, and each of them sees every replica in sync."""
        wanted = frozenset(self.layout.broker_ids)
        seen: dict[int, View | None] = {}

        def are_in_sync() -> bool:
            seen.clear()
            seen.update(self.views())
            return seen.keys() == wanted and all(
                view is not None and view.is_in_sync(wanted) for view in seen.values()
            )

        _wait(are_in_sync, limit_s, lambda: _why_not_in_sync(seen, wanted, limit_s))

    # -- faults ----------------------------------------------------------------------------------

    def kill(self, name: str) -> None:
        """SIGKILL, as a crash of the process."""
        self._signal(name, signal.SIGKILL, ProcessState.DEAD)

    def pause(self, name: str) -> None:
        self._signal(name, signal.SIGSTOP, ProcessState.PAUSED)

    def resume(self, name: str) -> None:
        self._signal(name, signal.SIGCONT, ProcessState.RUNNING)

    def isolate(self, broker: int) -> None:
        """Cut a broker off from the other brokers and from ZooKeeper, in both directions."""
        self.check_name(broker_name(broker))
        ends = [str(other) for other in self.layout.broker_ids if other != broker]
        self.cut([(str(broker), end) for end in [*ends, ZOOKEEPER]])

    def cut(self, pairs: Iterable[Cut], *, one_way: bool = False) -> None:
        """Cut links, beside those that are cut already."""
        layout = self._check_links()
        ends = [*map(str, layout.broker_ids), ZOOKEEPER]
        new: list[Cut] = []
        for start, to in pairs:
            if start == to or not {start, to} <= {*ends}:
                raise ClusterError(f"{start} and {to}: give two of {', '.join(ends)}")
            new += [(start, to)] if one_way else [(start, to), (to, start)]
        with self._changed_links() as state:
            state.cuts = list(dict.fromkeys([*state.cuts, *new]))

    def slow(self, broker: int) -> None:
        """Make the links of a broker slower than replication under load needs."""
        self.check_name(broker_name(broker))
        self._check_links()
        with self._changed_links() as state:
            state.slow += [str(broker)] if str(broker) not in state.slow else []

    def heal(self) -> None:
        with self._changed_links() as state:
            state.cuts, state.slow = [], []

    def held_by_faults(self) -> dict[str, str]:
        """The processes that run and cannot serve: why, and the command that ends it."""
        state = self.state
        found = {broker_name(b): "cut off (`suwi cluster heal`)" for b in state.cut_off()}
        for name, process in state.processes.items():
            if process.state is ProcessState.PAUSED:
                found[name] = f"paused (`suwi cluster resume {name}`)"
        return found

    def _signal(self, name: str, number: signal.Signals, wanted: ProcessState) -> None:
        self.check_name(name)
        process = self.state.processes.get(name)
        if process is None or not process.send(number):
            raise ClusterError(f"{name} does not run")
        _wait(lambda: process.state is wanted, STOP_S, lambda: f"{name} is not {wanted.value}")

    def _check_links(self) -> Layout:
        layout = self.layout
        if not layout.has_links and not layout.network:
            raise ClusterError("this cluster was started with --no-links: it has none to break")
        return layout

    def check_name(self, name: str) -> None:
        """Raises `ClusterError` if there is no such process."""
        names = self.layout.names
        if name not in names:
            raise ClusterError(f"there is no {name} here: there are {', '.join(names)}")

    # -- processes -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        locks: list[Lock] = []

        def is_locked() -> bool:
            with contextlib.suppress(AlreadyLocked):
                locks.append(self._disk.lock(os.path.join(self.directory, "cluster.lock")))
            return bool(locks)

        _wait(is_locked, _LOCK_S, lambda: f"another command changes {self.directory}")
        try:
            yield
        finally:
            locks[0].release()

    @contextlib.contextmanager
    def changed(self) -> Iterator[ClusterState]:
        """The state, written back at the end, also after an error: processes may have started."""
        _ = self.state  # where there is no cluster nothing is locked
        with self._locked():
            state = self.state
            try:
                yield state
            finally:
                write_state(self.directory, state)

    @contextlib.contextmanager
    def _changed_links(self) -> Iterator[ClusterState]:
        """As `changed`. Returns when the links follow, if they run."""
        with self.changed() as state:
            yield state
        path = os.path.join(self.directory, FOLLOWED)

        def follow() -> bool:
            if self.process_state(LINKS) is not ProcessState.RUNNING:
                return True
            wanted = version_of_state(self.directory).encode()
            return self._disk.exists(path) and self._disk.read_bytes(path) == wanted

        _wait(follow, STOP_S, lambda: f"the links do not follow; `suwi cluster restart {LINKS}`")

    def _spawn(self, layout: Layout, name: str) -> ProcessId:
        kind, _, number = name.partition("-")
        directory = os.path.join(self.directory, name)
        if name == LINKS:
            command = [sys.executable, "-m", "suwi.local_cluster.links", self.directory]
        elif kind == ZOOKEEPER:
            self._disk.make_dirs(directory)
            config = zookeeper.write_config(directory, int(number), layout.servers())
            command = zookeeper.command(config)
        else:
            self._disk.make_dirs(directory)
            config = self._write_properties(layout, int(number), directory)
            command = [sys.executable, *self.serve, config]
            if layout.network:
                command.append("--insecure")  # not loopback, and yet this machine
        return spawn([*self.launcher(name), *command], self.log_path(name), _environ())

    def launcher(self, name: str) -> list[str]:
        """What starts the command of a process in its place."""
        return []

    def _write_properties(self, layout: Layout, broker: int, directory: str) -> str:
        """The broker's server.properties; one that is there stays, it may have been edited."""
        path = os.path.join(directory, "server.properties")
        if self._disk.exists(path):
            return path
        settings = {**broker_settings(layout, broker, self.data_directory(broker))}
        if self._disk.exists(self._credential):
            settings["zookeeper.auth.file"] = self._credential
        settings |= layout.settings
        lines = "".join(f"{key}={value}\n" for key, value in settings.items())
        self._disk.write_atomically(path, lines.encode(), sync=False)
        return path

    def _serve(self, names: Sequence[str]) -> bool:
        state, layout = self.state, self.layout
        for name in names:
            if state.processes[name].state is ProcessState.DEAD:
                raise ClusterError(f"{name} has ended:\n{self._log_end(name)}")
        servers = layout.servers()
        modes = [servers[int(n.partition("-")[2])] for n in names if n.startswith(ZOOKEEPER)]
        if any(zookeeper.mode(server.client_port, server.host) is None for server in modes):
            return False
        brokers = [b for b in layout.broker_ids if broker_name(b) in names]
        if not brokers:
            return True
        seen = self.views()
        return all(
            (view := seen.get(broker)) is not None
            and view.controller is not None
            and view.brokers >= set(brokers)
            for broker in brokers
        )

    def _wait_until_served(self, names: Sequence[str]) -> None:
        def why_not() -> str:
            ends = "\n".join(f"{name}: {self._log_end(name)}" for name in names)
            return f"not everything serves after {START_S:.0f} s:\n{ends}"

        _wait(lambda: self._serve(names), START_S, why_not)

    def _log_end(self, name: str) -> str:
        try:
            content = self._disk.read_bytes(self.log_path(name))
        except OSError:
            return ""
        return content[-_SHOWN_BYTES:].decode(errors="replace")


def _why_not_in_sync(seen: dict[int, View | None], wanted: frozenset[int], limit_s: float) -> str:
    silent = sorted(wanted - {broker for broker, view in seen.items() if view is not None})
    if silent:
        return f"brokers {silent} do not answer after {limit_s:.0f} s"
    partitions = sorted({name for view in seen.values() if view for name in view.not_in_sync})
    if partitions:
        return f"not in sync after {limit_s:.0f} s: {', '.join(partitions)}"
    return f"the brokers disagree about each other after {limit_s:.0f} s: {seen}"


def _environ() -> dict[str, str]:
    """Of a child that finds this source, without settings for a broker."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SUWI_", "KAFKA_"))}
    source = os.path.dirname(os.path.dirname(suwi.__file__))
    paths = [source, kept.get("PYTHONPATH", "")]
    return {**kept, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def _wait(is_done: Callable[[], bool], limit_s: float, why_not: Callable[[], str]) -> None:
    """Raises `ClusterError` with the reason if it takes too long."""
    until_s = _now_s() + limit_s
    while not is_done():
        if _now_s() > until_s:
            raise ClusterError(why_not())
        _pause()


# Commands have no event loop: they may block.
def _now_s() -> float:
    return time.monotonic()  # noqa: TID251


def _pause() -> None:
    time.sleep(_PAUSE_S)  # noqa: TID251
