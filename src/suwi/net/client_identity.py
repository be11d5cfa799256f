"""Who sends requests over a connection. Immutable: all requests of a connection share one.

A connection replaces its own when it learns more: a log-in, a proof, the name of the software.
"""

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
