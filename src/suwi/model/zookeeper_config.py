"""The configuration keys of the connection to ZooKeeper: Kafka's names, and three keys of our own.

Kafka has no keys for digest credentials (it takes them from a JAAS file): `zookeeper.auth` and
`zookeeper.auth.file` give them here. `zookeeper.copy.enable` is for readers of Kafka's znodes.
"""

from dataclasses import dataclass

from suwi.model.config_kinds import (
    NO_PASSWORD,
    Password,
    boolean,
    int32,
    key,
    list_of,
    password,
    text,
)
from suwi.model.coordinator_config import CoordinatorConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ZookeeperConfig(CoordinatorConfig):
    zookeeper_connect: str = key(text(), "").doc(
        "The ZooKeeper ensemble that holds the cluster's metadata: HOST:PORT, several separated by "
        "commas, then optionally a path (`zk1:2181,zk2:2181,zk3:2181/prod`); the default port is "
        "2181. Suwi's znodes are in `suwi` below that path. Empty: the metadata is in the "
        "first data directory."
    )
    zookeeper_session_timeout_ms: int = key(int32(1000), 6_000).doc(
        "A broker that ZooKeeper has not heard of for this long is considered failed. ZooKeeper "
        "allows 2 to 20 of its ticks."
    )
    zookeeper_connection_timeout_ms: int = key(int32(0), 0).doc(
        "How long a starting broker waits for ZooKeeper before it gives up; 0: for ever."
    )
    zookeeper_auth: Password = key(password(), NO_PASSWORD).doc(
        "Credentials for ZooKeeper: `digest:USER:PASSWORD`. The znodes are then open to these "
        "credentials only. In the environment: SUWI_ZOOKEEPER_AUTH."
    )
    zookeeper_auth_file: str = key(text(), "").doc(
        "A file with the value of `zookeeper.auth`, instead of the value itself."
    )
    zookeeper_copy_enable: bool = key(boolean(), False).doc(
        "Whether brokers and the controller are also written to `/brokers/ids`, `/controller`, "
        "`/controller_epoch` and `/cluster/id` below the path of `zookeeper.connect`, as Kafka 2.8 "
        "writes them, for people and tools that read them there. Needs `zookeeper.auth` or "
        "`zookeeper.auth.file`."
    )
    zookeeper_ssl_client_enable: bool = key(boolean(), False).doc(
        "Whether ZooKeeper is reached by TLS."
    )
    zookeeper_ssl_truststore_location: str = key(text(), "").doc(
        "A PEM file with the certificates that issue ZooKeeper's; default: the system's."
    )
    zookeeper_ssl_keystore_location: str = key(text(), "").doc(
        "A PEM file with the certificate and key that the broker presents to ZooKeeper."
    )
    zookeeper_ssl_keystore_password: Password = key(password(), NO_PASSWORD).doc(
        "The password of an encrypted private key in that file."
    )
    zookeeper_ssl_enabled_protocols: tuple[str, ...] = key(
        list_of("TLSv1.2", "TLSv1.3"), ("TLSv1.2", "TLSv1.3")
    ).doc("The enabled TLS versions.")
    zookeeper_ssl_endpoint_identification_algorithm: str = key(text(), "https").doc(
        "How the broker checks that ZooKeeper's certificate matches its address; empty: no check."
    )
