"""Brokers on hosts of their own: network namespaces on one bridge. A host that is cut off vanishes.

Its packets are dropped in both directions and nobody answers for it: no connection is refused or
reset. ZooKeeper and the clients stay outside. Needs root on Linux; `why_unavailable` says what is
missing.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.base_env import ROOT, clean_environment
from bench.clusters import BALANCING, SESSION, ProcessCluster, running
from bench.servers import SUWI, temporary_directory
from suwi.local_cluster import zookeeper
from suwi.local_cluster.layout import Layout, broker_settings
from suwi.local_cluster.zookeeper import HOST, Server

_BRIDGE, _NAMESPACE, _LINK = "suwi-bench", "suwi-bench-{}", "suwi-b{}"
_NETWORK = "10.231.77.{}"
_OUTSIDE = _NETWORK.format(1)
_PORT, _ZOOKEEPER_PORT = 21092, 21392
_RUN = "from suwi.cli.main import app; app()"
_STOP_S = 60


def why_unavailable() -> str | None:
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("ip") is None:
        return "hosts in network namespaces need Linux, root and the command `ip`"
    try:
        with _network(1):
            return None
    except subprocess.CalledProcessError as refused:
        return f"network namespaces are refused: {refused.stderr.strip()}"


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@contextmanager
def _network(hosts: int) -> Iterator[None]:
    with ExitStack() as stack:
        _ip("link", "add", _BRIDGE, "type", "bridge")
        stack.callback(_ip, "link", "delete", _BRIDGE)
        _ip("address", "add", f"{_OUTSIDE}/24", "dev", _BRIDGE)
        _ip("link", "set", _BRIDGE, "up")
        for host in range(1, hosts + 1):
            name, link = _NAMESPACE.format(host), _LINK.format(host)
            _ip("netns", "add", name)
            stack.callback(_ip, "netns", "delete", name)
            _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
            # Deleted here: with its namespace it would go only some time later.
            stack.callback(_ip, "link", "delete", link)
            _ip("link", "set", link, "master", _BRIDGE, "up")
            _ip("-n", name, "address", "add", f"{_address(host)}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "link", "set", "lo", "up")
        yield


def _address(host: int) -> str:
    return _NETWORK.format(10 + host)


class HostCluster(ProcessCluster):
    """A broker on each host."""

    name = SUWI

    def __init__(self, directory: Path, hosts: int) -> None:
        self._directory = directory
        self._layout = Layout(hosts, 0, f"{_OUTSIDE}:{_ZOOKEEPER_PORT}", _PORT, has_links=False)
        self.brokers = tuple(self._layout.broker_ids)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._zookeeper: subprocess.Popen[bytes] | None = None

    def cut_off(self, broker: int) -> None:
        _ip("link", "set", _LINK.format(broker), "down")

    def heal(self, broker: int) -> None:
        _ip("link", "set", _LINK.format(broker), "up")

    def address(self, broker: int) -> str:
        return f"{_address(broker)}:{self._layout.client_port(broker)}"

    def pid(self, broker: int) -> int:
        return self._processes[broker].pid

    def stop(self, broker: int) -> None:
        process = self._processes.pop(broker)
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def restart(self, broker: int) -> None:
        properties = self._directory / f"broker-{broker}.properties"
        settings = broker_settings(self._layout, broker, str(self._directory / f"data-{broker}"))
        settings = {**settings, **SESSION, **BALANCING}
        lines = (
            f"{key}={value.replace(HOST, _address(broker))}" for key, value in settings.items()
        )
        properties.write_text("\n".join(lines))
        inside = ["ip", "netns", "exec", _NAMESPACE.format(broker)]
        command = [*inside, sys.executable, "-c", _RUN, "serve", "--insecure"]
        command += ["--config", str(properties)]
        self._processes[broker] = self._start(command, f"broker-{broker}.log")

    def start_everything(self) -> None:
        ports = Server(_ZOOKEEPER_PORT, _ZOOKEEPER_PORT + 10, _ZOOKEEPER_PORT + 20)
        outside = [f"clientPortAddress={_OUTSIDE}"]  # the last one counts
        config = zookeeper.write_config(str(self._directory), 1, {1: ports}, outside)
        self._zookeeper = self._start(zookeeper.command(config), "zookeeper.log")
        for broker in self.brokers:
            self.restart(broker)

    def stop_everything(self) -> None:
        for broker in list(self._processes):
            self.stop(broker)
        if self._zookeeper is not None:
            self._zookeeper.kill()
            self._zookeeper.wait()

    def _start(self, command: list[str], log: str) -> subprocess.Popen[bytes]:
        # Suwi is installed in place: without the variable, too.
        environment = {**clean_environment(), "PYTHONPATH": str(ROOT / "src")}
        with (self._directory / log).open("ab") as output:
            return subprocess.Popen(command, env=environment, stdout=output, stderr=output)


@contextmanager
def host_cluster(hosts: int = 3) -> Iterator[HostCluster]:
    with temporary_directory() as directory, _network(hosts):
        cluster = HostCluster(directory, hosts)
        with running(cluster):
            yield cluster
