"""Who sends requests over a connection. Immutable: all requests of a connection share one.

A connection replaces its own when it learns more: a log-in, a proof, the name of the software.
"""

import asyncio
from typing import NamedTuple

from suwi.security.principal import ANONYMOUS, Principal


class ClientIdentity(NamedTuple):
    listener: str
    host: str = ""
    principal: Principal = ANONYMOUS
    is_peer: bool = False
    """Another broker of this cluster, and proven to be one."""
    software_name: str = ""
    """As the client says in ApiVersions (KIP-511)."""
    software_version: str = ""


def peer_address(transport: asyncio.BaseTransport) -> tuple[str, int]:
    """Host and port of the other side; ("", 0) where it has none."""
    peer = transport.get_extra_info("peername")
    if isinstance(peer, tuple) and len(peer) >= 2:
        return str(peer[0]), int(peer[1])
    return "", 0
