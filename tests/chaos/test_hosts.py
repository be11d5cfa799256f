"""The hosts of `make chaos-cluster`: over a cut link packets vanish. On Linux, for root."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from chaos.hosts import Hosts, network, why_unavailable
from suwi.local_cluster.layout import ClusterState, Layout
from tests.local_cluster.ports import free_ports

pytestmark = pytest.mark.skipif(why_unavailable() is not None, reason=why_unavailable() or "")
_CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 9), float(sys.argv[2]))
except OSError as error:
    print(type(error).__name__)
"""


@pytest.fixture
def state() -> ClusterState:
    port = free_ports()
    return ClusterState(Layout(2, 1, "", port, has_links=False, network=network(port)))


@pytest.fixture
def hosts(state: ClusterState) -> Iterator[Hosts]:
    hosts = Hosts(state.layout)
    try:
        hosts.make()
        yield hosts
    finally:
        hosts.remove()


def connect(hosts: Hosts, state: ClusterState, start: str, to: str, patience_s: float = 60) -> str:
    """What a process hears that connects to a port where nobody listens."""
    command = [*hosts.launcher(start), sys.executable, "-c", _CONNECT]
    arguments = [state.layout.host(to), str(patience_s)]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_cut_link_is_silent_and_a_healed_one_is_not(hosts: Hosts, state: ClusterState) -> None:
    assert connect(hosts, state, "broker-1", "broker-2") == "ConnectionRefusedError"
    state.cuts = [("1", "2")]
    hosts.apply(state)
    assert connect(hosts, state, "broker-1", "broker-2", 0.5) == "TimeoutError"
    assert connect(hosts, state, "broker-1", "zookeeper-1") == "ConnectionRefusedError"
    state.cuts = []
    hosts.apply(state)
    assert connect(hosts, state, "broker-1", "broker-2") == "ConnectionRefusedError"


def test_a_broker_is_cut_from_all_servers_of_zookeeper(hosts: Hosts, state: ClusterState) -> None:
    state.cuts = [("1", "zookeeper"), ("zookeeper", "1")]
    hosts.apply(state)
    assert connect(hosts, state, "broker-1", "zookeeper-1", 0.5) == "TimeoutError"
    assert connect(hosts, state, "broker-2", "zookeeper-1") == "ConnectionRefusedError"


def test_a_slow_host_is_reached_and_made_fast_again(hosts: Hosts, state: ClusterState) -> None:
    for slow in (["2"], []):
        state.slow = slow
        hosts.apply(state)
        assert connect(hosts, state, "broker-1", "broker-2") == "ConnectionRefusedError"
