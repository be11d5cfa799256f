"""What every SASL mechanism is to a connection: tokens in, tokens and one verdict out."""

from typing import NamedTuple, Protocol, TypeAlias


class Challenge(NamedTuple):
    """Not decided yet: the peer must answer this token."""

    token: bytes


class Authenticated(NamedTuple):
    """The peer is this user; the token is the last one it gets."""

    user: str
    token: bytes


Step: TypeAlias = Challenge | Authenticated


class Refused(Exception):
    """The peer is not who it says, or does not follow the mechanism.

    The text goes to the peer and to the log: it says nothing of what was wrong with whose secret.
    `user` is the name that the peer gave, and goes to the log only.
    """

    def __init__(self, reason: str, *, user: str = "") -> None:
        super().__init__(reason)
        self.user = user


class ServerMechanism(Protocol):
    """One authentication from the broker's side."""

    def respond(self, token: bytes) -> Step:
        """Raises `Refused`, and is not used again after that."""


class ClientMechanism(Protocol):
    """One authentication from the client's side."""

    @property
    def name(self) -> str: ...

    def first(self) -> bytes: ...

    def respond(self, token: bytes) -> bytes | None:
        """The answer to a broker's token; None when the broker has shown all it must.

        Raises `Refused` where the broker is not the one that knows our secret.
        """
