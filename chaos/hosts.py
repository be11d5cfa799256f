"""Hosts for the processes of a local cluster: network namespaces on one bridge (Linux and root).

`Hosts.apply` makes the cuts and slow links of a `ClusterState` real. What is sent over a cut link
vanishes: no connection is refused or reset. Clients are outside, at the bridge.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator

from suwi.local_cluster.layout import (
    ZOOKEEPER,
    ClusterState,
    Cut,
    Layout,
    broker_name,
    zookeeper_name,
)

_NOBODY = "02:00:00:00:00:01"
"""The hardware address to which packets of a cut link go."""
_SLOW = ("tbf", "rate", "800kbit", "burst", "16kb", "latency", "400ms")
"""100 kB/s, less than replication under load needs."""


def why_unavailable() -> str | None:
    if not os.path.exists("/proc/self/ns/net") or os.geteuid() != 0:
        return "only root on Linux may make network namespaces"
    missing = [name for name in ("ip", "nsenter", "tc") if shutil.which(name) is None]
    return f"no command `{missing[0]}`" if missing else None


def network(port: int) -> str:
    """Of a cluster with these ports."""
    return f"10.231.{port // 700 % 256}"


class Hosts:
    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._servers = [*map(zookeeper_name, layout.servers())]
        self._brokers = [*map(broker_name, layout.broker_ids)]
        self._cuts: frozenset[tuple[str, str]] = frozenset()
        self._slow: frozenset[str] = frozenset()
        self._bridge = f"suwi-{layout.port}"

    def make(self) -> None:
        self.remove()  # what a run that was killed has left
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("address", "add", f"{self._layout.network}.1/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")
        for name in [*self._brokers, *self._servers]:
            inside, link = self._namespace(name), self._link(name)
            _ip("netns", "add", inside)
            _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", inside)
            _ip("link", "set", link, "master", self._bridge, "up")
            address = f"{self._layout.host(name)}/24"
            _ip("-n", inside, "address", "add", address, "dev", "eth0")
            _ip("-n", inside, "link", "set", "eth0", "up")
            _ip("-n", inside, "link", "set", "lo", "up")

    def remove(self) -> None:
        """What there is of it."""
        with contextlib.suppress(OSError):
            _ip("link", "delete", self._bridge)
        for name in [*self._brokers, *self._servers]:
            with contextlib.suppress(OSError):
                _ip("link", "delete", self._link(name))
            with contextlib.suppress(OSError):
                _ip("netns", "delete", self._namespace(name))

    def launcher(self, name: str) -> list[str]:
        """What starts a command on a host."""
        # Not `ip netns exec`: its processes would keep file systems mounted for themselves.
        nsenter = shutil.which("nsenter")
        assert nsenter is not None
        return [nsenter, f"--net=/run/netns/{self._namespace(name)}"]

    def apply(self, state: ClusterState) -> None:
        cuts = frozenset(self._pairs(state.cuts))
        for start, to in cuts - self._cuts:
            where = (self._layout.host(to), "lladdr", _NOBODY, "dev", "eth0", "nud", "permanent")
            _ip("-n", self._namespace(start), "neigh", "replace", *where)
        for start, to in self._cuts - cuts:
            where = (self._layout.host(to), "dev", "eth0")
            _ip("-n", self._namespace(start), "neigh", "delete", *where)
        slow = frozenset(broker_name(int(broker)) for broker in state.slow)
        for name in slow - self._slow:
            self._queue(name, "add", *_SLOW)
        for name in self._slow - slow:
            self._queue(name, "delete")
        self._cuts, self._slow = cuts, slow

    def _pairs(self, cuts: Iterable[Cut]) -> Iterator[tuple[str, str]]:
        """By host."""
        for start, to in cuts:
            for one in self._ends(start):
                for other in self._ends(to):
                    yield one, other

    def _ends(self, end: str) -> list[str]:
        return self._servers if end == ZOOKEEPER else [broker_name(int(end))]

    def _queue(self, name: str, verb: str, *kind: str) -> None:
        """Of what a host sends, and of what it is sent."""
        inside = self._namespace(name)
        _run("tc", "-n", inside, "qdisc", verb, "dev", "eth0", "root", *kind)
        _run("tc", "qdisc", verb, "dev", self._link(name), "root", *kind)

    def _namespace(self, name: str) -> str:
        return f"suwi-{self._layout.port}-{name}"

    def _link(self, name: str) -> str:
        # At most 15 characters.
        kind, _, number = name.partition("-")
        return f"suwi{self._layout.port}{kind[0]}{number}"


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
