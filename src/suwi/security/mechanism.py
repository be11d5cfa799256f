"""The interface of SASL mechanisms: tokens in, tokens and one final result out."""

from typing import NamedTuple, Protocol, TypeAlias


class Challenge(NamedTuple):
    """The authentication continues: the peer must respond to this token."""

    token: bytes


class Authenticated(NamedTuple):
    """The peer is authenticated as this user; the token is the last one sent to it."""

    user: str
    token: bytes


Step: TypeAlias = Challenge | Authenticated


class Refused(Exception):
    """The authentication failed, or the peer does not follow the protocol of the mechanism.

    The text is sent to the peer and logged; it must not reveal why a user's secret was wrong.
    `user` is the name that the peer gave; it is logged only.
    """

    def __init__(self, reason: str, *, user: str = "") -> None:
        super().__init__(reason)
        self.user = user


class ServerMechanism(Protocol):
    """The broker's side of one authentication."""

    def respond(self, token: bytes) -> Step:
        """Process the client's next token. Raises `Refused`; must not be called again then."""


class ClientMechanism(Protocol):
    """The client's side of one authentication."""

    @property
    def name(self) -> str: ...

    def first(self) -> bytes: ...

    def respond(self, token: bytes) -> bytes | None:
        """The response to a broker's token; None when the authentication is complete.

        Raises `Refused` if the broker does not prove that it knows the user's secret.
        """
