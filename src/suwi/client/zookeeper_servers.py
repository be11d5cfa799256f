"""The servers of a ZooKeeper ensemble: their addresses in `zookeeper.connect`.

As in Kafka, a server without a port has 2181: `zk1,zk2:2182/chroot`.
"""

from typing import NamedTuple

from suwi.client.addresses import Address, parse_address

ZOOKEEPER_PORT = 2181


class Ensemble(NamedTuple):
    servers: tuple[Address, ...]
    chroot: str
    """Without slashes at its ends; empty if there is none."""

    @property
    def hosts(self) -> str:
        return ",".join(map(str, self.servers))

    def __str__(self) -> str:
        return f"{self.hosts}/{self.chroot}" if self.chroot else self.hosts


def parse_connect(text: str) -> Ensemble:
    """Raises ValueError with a text for the user."""
    hosts, _, path = text.partition("/")
    try:
        servers = [parse_address(host.strip(), ZOOKEEPER_PORT) for host in hosts.split(",")]
    except ValueError:
        raise ValueError(
            f"{text}: give it as HOST:PORT, several separated by commas, then optionally a path, "
            "like zk1:2181,zk2:2181/prod"
        ) from None
    return Ensemble(tuple(servers), path.strip("/"))
