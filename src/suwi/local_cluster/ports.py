"""Whether the ports that a local cluster is about to use are free."""

import socket

from suwi.local_cluster.layout import LINKS, ClusterState, Layout, broker_name, zookeeper_name
from suwi.local_cluster.process import ProcessState
from suwi.local_cluster.zookeeper import HOST


class PortTaken(Exception):
    """Which port another program has, what it is for, and what to do."""


def check_ports(layout: Layout, known: ClusterState | None) -> None:
    """Raises `PortTaken` if another program has a port that `layout` needs.

    What runs already has its ports, and the links have those of every broker that is known.
    """
    if layout.network:  # each process has a host of its own
        return
    for name, ports in _needed(layout, known).items():
        for port in ports:
            if not is_free(port):
                instead = "" if known else ", or give the first of other ports with --port"
                raise PortTaken(
                    f"port {port} ({name}) is taken by another program: end it{instead}"
                )


def _needed(layout: Layout, known: ClusterState | None) -> dict[str, list[int]]:
    """The ports of processes that do not run, and of links that do not exist yet."""

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
