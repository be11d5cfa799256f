"""The server.properties of the brokers of a local cluster."""

import socket

from suwi.local_cluster.layout import Layout

_SESSION_TIMEOUT_MS = 3_000
_REPLICAS = 3


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
