"""The interface of SASL mechanisms: tokens in, tokens and one final result out."""

from typing import NamedTuple, Protocol, TypeAlias


class Refused(Exception):
    """The authentication failed, or the peer does not follow the protocol of the mechanism.

    The text is sent to the peer; it must not reveal why a user's secret was wrong. `user` is the
    name that the peer gave, and `reason` what the text does not tell; they are logged only.
    """

    def __init__(self, text: str, *, user: str = "", reason: str = "") -> None:
        super().__init__(text)
        self.user = user
        self.reason = reason or text
        self.is_noted = False
        """Whether it is logged and counted already."""


class Challenge(NamedTuple):
    """The authentication continues: the peer must respond to this token."""

    token: bytes
    refused: Refused | None = None
    """It has failed; the token says so, and the peer's response is followed by this error."""


class Authenticated(NamedTuple):
    """The peer is authenticated as this user; the token is the last one sent to it."""

    user: str
    token: bytes
    lifetime_ms: int = 0
    """How long the user's credential is valid; 0: for ever."""


Step: TypeAlias = Challenge | Authenticated


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
