"""The principal of a connection, for example `User:alice`."""

from typing import Final, NamedTuple


class Principal(NamedTuple):
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS: Final = Principal("User", "ANONYMOUS")
"""The principal of connections without authentication."""
BROKER: Final = Principal("Broker", "internal")
"""In an envelope: the request is the broker's own. No client has a principal of this kind."""


def parse_principal(text: str) -> Principal:
    """From `User:alice`. The name may be empty: it is for a certificate without a subject. Raises
    ValueError."""
    kind, colon, name = text.partition(":")
    if not (kind and colon):
        raise ValueError(f"{text!r} is not a principal")
    return Principal(kind, name)


def user(name: str) -> Principal:
    return Principal("User", name)
