"""The parts of a local cluster, their ports, and the file that remembers them.

`ClusterState` is `cluster.json` in the data directory, written atomically. The process of the links
reads it too.
"""

import json
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from suwi.client.addresses import Address
from suwi.client.zookeeper_servers import Ensemble, parse_connect
from suwi.env import LocalDisk
from suwi.local_cluster.process import ProcessId, ProcessState
from suwi.local_cluster.zookeeper import HOST, Server

FILE = "cluster.json"
FOLLOWED = "links.follow"
"""Which version of the file above the links have."""
LINKS = "links"
ZOOKEEPER = "zookeeper"
"""The end of a link: the ensemble as a whole."""
BROKERS_MAX = 30
PORTS = 700
"""How many ports from the first on belong to the cluster."""
_PEERS, _PEER_LINKS, _ENSEMBLE, _ENSEMBLE_LINKS = 100, 200, 300, 400
_VERSION = 1
_SESSION_TIMEOUT_MS = 3_000
_REPLICAS = 3

Cut = tuple[str, str]
"""From and to: a broker's id, or `zookeeper`."""


def broker_name(broker: int) -> str:
    return f"broker-{broker}"


def zookeeper_name(number: int) -> str:
    return f"zookeeper-{number}"


@dataclass(frozen=True, slots=True)
class Layout:
    """What does not change while the cluster exists, except that brokers are added and removed."""

    brokers: int
    """The highest id of a broker."""
    zookeepers: int
    """Servers of its own; 0 with a given ensemble."""
    zookeeper: str
    """The given ensemble, as `host:2181,…/chroot`; empty if it has its own."""
    port: int
    has_links: bool
    settings: dict[str, str] = field(default_factory=dict)
    """Of every broker, from `--set`."""
    network: str = ""
    """The first three numbers of the addresses if each process has a host of its own."""
    removed: tuple[int, ...] = ()
    """The ids up to `brokers` that have no broker any more."""

    def host(self, name: str) -> str:
        """The address of a broker's or a server's host."""
        if not self.network:
            return HOST
        kind, _, number = name.partition("-")
        return f"{self.network}.{(100 if kind == ZOOKEEPER else 10) + int(number)}"

    @property
    def broker_ids(self) -> list[int]:
        return [broker for broker in range(1, self.brokers + 1) if broker not in self.removed]

    @property
    def names(self) -> list[str]:
        """Of all processes."""
        names = [*map(broker_name, self.broker_ids), *map(zookeeper_name, self.servers())]
        return [*names, LINKS] if self.has_links else names

    def with_brokers(self, count: int) -> "Layout":
        """The layout with so many brokers, not fewer than before; new ones get the lowest ids."""
        wanted = count - len(self.broker_ids)
        assert wanted >= 0
        reused = sorted(self.removed)[:wanted]
        removed = tuple(broker for broker in self.removed if broker not in reused)
        return replace(self, brokers=self.brokers + wanted - len(reused), removed=removed)

    def without(self, broker: int) -> "Layout":
        assert broker in self.broker_ids
        return replace(self, removed=(*self.removed, broker))

    def client_port(self, broker: int) -> int:
        return self.port + broker - 1

    def client_address(self, broker: int) -> Address:
        return Address(self.host(broker_name(broker)), self.client_port(broker))

    def peer_port(self, broker: int) -> int:
        """Where the broker listens for other brokers."""
        return self.port + _PEERS + broker - 1

    def peer_link_port(self, broker: int) -> int:
        """Where other brokers reach it."""
        return self.port + _PEER_LINKS + broker - 1

    def servers(self) -> dict[int, Server]:
        first = self.port + _ENSEMBLE
        return {
            number: Server(
                first + number - 1,
                first + 9 + number,
                first + 19 + number,
                self.host(zookeeper_name(number)),
            )
            for number in range(1, self.zookeepers + 1)
        }

    def ensemble(self) -> list[Address]:
        """The addresses of the ZooKeeper servers. Raises ValueError."""
        if not self.zookeeper:
            return [Address(server.host, server.client_port) for server in self.servers().values()]
        return [*parse_connect(self.zookeeper).servers]

    def ensemble_link_port(self, broker: int, server: int) -> int:
        """Where a broker reaches a server of the ensemble, both counted from 1 and 0."""
        return self.port + _ENSEMBLE_LINKS + (broker - 1) * len(self.ensemble()) + server

    def link_ports(self, broker: int) -> list[int]:
        """Where the links listen that lead to a broker, and from it to the ensemble."""
        to_ensemble = [self.ensemble_link_port(broker, at) for at in range(len(self.ensemble()))]
        return [self.peer_link_port(broker), *to_ensemble]

    def zookeeper_connect(self, broker: int) -> str:
        """The broker's `zookeeper.connect`."""
        servers = self.ensemble()
        if self.has_links:
            ports = [self.ensemble_link_port(broker, at) for at in range(len(servers))]
            servers = [Address(HOST, port) for port in ports]
        chroot = parse_connect(self.zookeeper).chroot if self.zookeeper else ""
        return str(Ensemble(tuple(servers), chroot))


def broker_settings(layout: Layout, broker: int, data: str) -> dict[str, str]:
    """The server.properties of a broker, with Kafka's keys."""
    host, client_port = layout.client_address(broker)
    client, peer_port = f"PLAINTEXT://{host}:{client_port}", layout.peer_port(broker)
    advertised_port = layout.peer_link_port(broker) if layout.has_links else peer_port
    replicas = min(_REPLICAS, len(layout.broker_ids))
    return {
        "broker.id": str(broker),
        "broker.rack": socket.gethostname(),
        "listeners": f"{client},PEERS://{host}:{peer_port}",
        "advertised.listeners": f"{client},PEERS://{host}:{advertised_port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,PEERS:PLAINTEXT",
        "inter.broker.listener.name": "PEERS",
        "log.dirs": data,
        "zookeeper.connect": layout.zookeeper_connect(broker),
        "zookeeper.session.timeout.ms": str(_SESSION_TIMEOUT_MS),
        "default.replication.factor": str(replicas),
        "offsets.topic.replication.factor": str(replicas),
        "min.insync.replicas": str(max(1, replicas - 1)),
    }


@dataclass(slots=True)
class ClusterState:
    layout: Layout
    processes: dict[str, ProcessId] = field(default_factory=dict)
    """By name, of the last start of each."""
    cuts: list[Cut] = field(default_factory=list)
    slow: list[str] = field(default_factory=list)
    """The brokers whose links are slow."""

    def forget(self, broker: int) -> None:
        """A broker that has been removed."""
        self.layout = self.layout.without(broker)
        self.processes.pop(broker_name(broker), None)
        self.cuts = [cut for cut in self.cuts if str(broker) not in cut]
        self.slow = [slow for slow in self.slow if slow != str(broker)]

    def cut_off(self) -> Iterator[int]:
        """The brokers that cannot reach any other."""
        cuts = set(self.cuts)
        for broker in self.layout.broker_ids:
            others = {str(other) for other in self.layout.broker_ids if other != broker}
            if others | {ZOOKEEPER} <= {to for start, to in cuts if start == str(broker)}:
                yield broker

    def process_state(self, name: str) -> ProcessState:
        process = self.processes.get(name)
        return ProcessState.DEAD if process is None else process.state

    def out_of_touch(self) -> str | None:
        """Why brokers do not know whether replicas are in sync, and the command that ends it."""
        servers = [*map(zookeeper_name, self.layout.servers())]
        down = [n for n in self.layout.names if self.process_state(n) is not ProcessState.RUNNING]
        if LINKS in down:
            name, effect = LINKS, "no broker reaches ZooKeeper or another broker"
        elif 2 * len(servers_down := [n for n in servers if n in down]) >= max(len(servers), 1):
            name, effect = servers_down[0], "ZooKeeper has no majority"
        else:
            return None
        state = self.process_state(name)
        verb = "resume" if state is ProcessState.PAUSED else "restart"
        return f"{name} is {state.value}: {effect}; `suwi cluster {verb} {name}`"


def needed_ports(layout: Layout, known: ClusterState | None) -> dict[str, list[int]]:
    """The ports of processes that do not run, and of links that do not exist yet.

    What runs already has its ports, and the links have those of every broker that is known.
    """

    def runs(name: str) -> bool:
        return known is not None and known.process_state(name) is not ProcessState.DEAD

    found = {}
    for number, server in layout.servers().items():
        if not runs(zookeeper_name(number)):
            ports = [server.client_port]
            if layout.zookeepers > 1:
                ports += [server.quorum_port, server.election_port]
            found[zookeeper_name(number)] = ports
    linked = known.layout.broker_ids if known and runs(LINKS) else []
    for broker in layout.broker_ids:
        if not runs(broker_name(broker)):
            ports = [layout.client_port(broker), layout.peer_port(broker)]
            found[broker_name(broker)] = ports
        if layout.has_links and broker not in linked:
            found[f"links of {broker_name(broker)}"] = layout.link_ports(broker)
    return found


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do: connections of a process that has ended do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen()
        except OSError:
            return False
    return True


def read_state(directory: str) -> ClusterState | None:
    """None if there is no cluster. Raises ValueError with a text for the user."""
    path = os.path.join(directory, FILE)
    if not LocalDisk().exists(path):
        return None
    try:
        found: Mapping[str, Any] = json.loads(LocalDisk().read_bytes(path))
        if found["version"] != _VERSION:
            raise ValueError(f"version {found['version']}, not {_VERSION}")
        removed = tuple(found["layout"].get("removed", ()))
        return ClusterState(
            Layout(**{**found["layout"], "removed": removed}),
            {name: ProcessId(*process) for name, process in found["processes"].items()},
            [(start, to) for start, to in found["cuts"]],
            found.get("slow", []),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not the description of a cluster: {error}") from None


def version_of_state(directory: str) -> str:
    """Different after every change."""
    found = os.stat(os.path.join(directory, FILE))
    return f"{found.st_ino} {found.st_mtime_ns}"


def write_state(directory: str, state: ClusterState) -> None:
    content = {
        "version": _VERSION,
        "layout": asdict(state.layout),
        "processes": state.processes,
        "cuts": state.cuts,
        "slow": state.slow,
    }
    path = os.path.join(directory, FILE)
    LocalDisk().write_atomically(path, json.dumps(content, indent=2).encode())
