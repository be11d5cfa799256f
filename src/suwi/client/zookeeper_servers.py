"""The servers of a ZooKeeper ensemble: their addresses in `zookeeper.connect`, and their state.

As in Kafka, a server without a port has 2181: `zk1,zk2:2182/chroot`. `ask_servers` uses the
four-letter word `srvr`, which ZooKeeper allows by default; not by TLS.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from suwi.client.addresses import Address, parse_address

ZOOKEEPER_PORT = 2181
AWAY = "away"
"""The connection is refused: no server runs there."""
NO_ANSWER = "no answer"
NOT_SERVING = "not serving"
"""It runs and has no quorum, or does not allow `srvr`."""
_TIMEOUT_S = 2.0


class Ensemble(NamedTuple):
    servers: tuple[Address, ...]
    chroot: str
    """Without slashes at its ends; empty if there is none."""

    @property
    def hosts(self) -> str:
        return ",".join(map(str, self.servers))

    def __str__(self) -> str:
        return f"{self.hosts}/{self.chroot}" if self.chroot else self.hosts


@dataclass(frozen=True, slots=True)
class ServerStatus:
    address: str
    state: str
    """`leader`, `follower`, `observer` or `standalone`, or one of the constants above."""
    version: str | None = None


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


async def ask_servers(servers: Sequence[Address]) -> tuple[ServerStatus, ...]:
    return tuple(await asyncio.gather(*map(_ask, servers)))


async def _ask(address: Address) -> ServerStatus:
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(*address)
            try:
                writer.write(b"srvr")
                answer = (await reader.read()).decode(errors="replace")
            finally:
                writer.transport.abort()
    except ConnectionRefusedError:
        return ServerStatus(str(address), AWAY)
    except OSError:
        return ServerStatus(str(address), NO_ANSWER)
    fields = dict(line.split(": ", 1) for line in answer.splitlines() if ": " in line)
    # The version is followed by a commit and a date.
    version = fields.get("Zookeeper version", "").partition(",")[0].partition("-")[0]
    return ServerStatus(str(address), fields.get("Mode", NOT_SERVING).strip(), version or None)
