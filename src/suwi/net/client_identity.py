"""The identity of a client. Immutable and shared by all requests of a connection.

A connection replaces it after authentication and after ApiVersions (KIP-511).
"""

import asyncio
from typing import NamedTuple

from suwi.security.principal import ANONYMOUS, Principal


class ClientIdentity(NamedTuple):
    listener: str
    host: str = ""
    principal: Principal = ANONYMOUS
    is_peer: bool = False
    """Whether it has been authenticated as another broker of this cluster."""
    software_name: str = ""
    """As sent in ApiVersions (KIP-511)."""
    software_version: str = ""


def peer_address(transport: asyncio.BaseTransport) -> tuple[str, int]:
    """Host and port of the peer; ("", 0) if unknown."""
    peer = transport.get_extra_info("peername")
    if isinstance(peer, tuple) and len(peer) >= 2:
        return str(peer[0]), int(peer[1])
    return "", 0
