"""The principal of a connection, for example `User:alice`."""

from typing import Final, NamedTuple


class Principal(NamedTuple):
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS: Final = Principal("User", "ANONYMOUS")
"""The principal of connections without authentication."""


def parse_principal(text: str) -> Principal:
    """From `User:alice`. Raises ValueError."""
    kind, colon, name = text.partition(":")
    if not (kind and colon and name):
        raise ValueError(f"{text!r} is not a principal")
    return Principal(kind, name)


def user(name: str) -> Principal:
    return Principal("User", name)
