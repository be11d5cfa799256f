"""The SASL state of one connection: mechanism, authentication and reauthentication (KIP-368).

Pure: `choose` and `respond` take the time as an argument. `principal` is the authenticated user,
`open_until_s` the end of the authentication.
Invariants: `principal` is set only after a mechanism has authenticated the peer, and never changes
after that; after a failed authentication there is no second attempt on the connection.
"""

import math
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from suwi.model.errors import IllegalSaslState, UnsupportedSaslMechanism
from suwi.security.mechanism import Authenticated, Refused, ServerMechanism, Step
from suwi.security.principal import Principal, user

# As in Kafka: constant reauthentication would keep the broker busy.
_REAUTHENTICATION_S_MIN: Final = 1.0


class MechanismRules(NamedTuple):
    start: Callable[[], ServerMechanism]
    reauthenticate_ms: int = 0
    """How long an authentication is valid; 0: as long as the connection."""


class PeerLogIn(NamedTuple):
    """The login of other brokers. Includes the mechanism, because the same user name may belong to
    somebody else in another mechanism."""

    mechanism: str
    principal: Principal


class SaslRules(NamedTuple):
    """The SASL settings of a listener."""

    mechanisms: Mapping[str, MechanismRules]
    failure_delay_ms: int = 100
    peer: PeerLogIn | None = None
    """How other brokers of the cluster log in; None if they do not."""


class SaslSession:
    __slots__ = (
        "_authenticated_at_s",
        "_mechanism",
        "_name",
        "_sends_bare_tokens",
        "_server",
        "is_refused",
        "open_until_s",
        "principal",
        "rules",
    )

    def __init__(self, rules: SaslRules) -> None:
        self.rules = rules
        self.principal: Principal | None = None
        self.is_refused = False
        self.open_until_s = -math.inf
        self._name = ""
        self._mechanism: MechanismRules | None = None
        self._server: ServerMechanism | None = None
        self._sends_bare_tokens = False
        self._authenticated_at_s = -math.inf

    @property
    def expects_bare_token(self) -> bool:
        """After SaslHandshake v0 the next frames are bare tokens, not requests."""
        return self._server is not None and self._sends_bare_tokens

    def choose(self, name: str, now_s: float, *, bare_tokens: bool) -> None:
        """Start an authentication. Raises IllegalSaslState, UnsupportedSaslMechanism."""
        if self._server is not None or self.is_refused:
            raise IllegalSaslState("the authentication has already started")
        if self.principal is not None:
            self._check_may_reauthenticate(name, now_s, bare_tokens)
        mechanism = self.rules.mechanisms.get(name)
        if mechanism is None:
            self._refuse()
            raise UnsupportedSaslMechanism("this mechanism is not enabled here")
        self._name, self._mechanism = name, mechanism
        self._server = mechanism.start()
        self._sends_bare_tokens = bare_tokens

    def _check_may_reauthenticate(self, name: str, now_s: float, bare_tokens: bool) -> None:
        assert self._mechanism is not None
        if not self._mechanism.reauthenticate_ms or bare_tokens:
            raise IllegalSaslState("the connection is already authenticated")
        if now_s - self._authenticated_at_s < _REAUTHENTICATION_S_MIN:
            raise IllegalSaslState("the connection was authenticated less than a second ago")
        if name != self._name:
            self._refuse()
            raise UnsupportedSaslMechanism(
                "a connection cannot change its mechanism when it reauthenticates"
            )

    def respond(self, token: bytes, now_s: float) -> Step:
        """Process the peer's next token. Raises IllegalSaslState, Refused."""
        server, mechanism = self._server, self._mechanism
        if server is None or mechanism is None:
            raise IllegalSaslState("a token without a mechanism: send SaslHandshake first")
        try:
            step = server.respond(token)
            if isinstance(step, Authenticated):
                self._authenticated(user(step.user), mechanism.reauthenticate_ms, now_s)
        except BaseException:
            self._refuse()
            raise
        return step

    def _authenticated(self, principal: Principal, lifetime_ms: int, now_s: float) -> None:
        if self.principal not in (None, principal):
            raise Refused("a connection cannot change its user")
        self.principal = principal
        self._server = None
        self._authenticated_at_s = now_s
        self.open_until_s = now_s + lifetime_ms / 1000 if lifetime_ms else math.inf

    def _refuse(self) -> None:
        self.is_refused = True
        self.open_until_s = -math.inf
        self._server = None

    @property
    def is_peer(self) -> bool:
        return (self._name, self.principal) == self.rules.peer

    @property
    def mechanism(self) -> str:
        """The chosen mechanism; empty before."""
        return self._name

    @property
    def lifetime_ms(self) -> int:
        """How long the authentication is valid, for the response to the client; 0: for ever."""
        return self._mechanism.reauthenticate_ms if self._mechanism is not None else 0
