"""The SASL state of one connection: mechanism, authentication and reauthentication (KIP-368).

Pure: `choose` and `respond` take the time as an argument. `principal` is the authenticated user,
`open_until_s` the end of the authentication.
Invariants: `principal` is set only after a mechanism has authenticated the peer, and never changes
after that; after a failed authentication there is no second attempt on the connection.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from suwi.model.errors import IllegalSaslState, UnsupportedSaslMechanism
from suwi.security.mechanism import Authenticated, Refused, ServerMechanism, Step
from suwi.security.principal import Principal, user

# As in Kafka: constant reauthentication would keep the broker busy.
_REAUTHENTICATION_S_MIN: Final = 1.0


class MechanismRules(NamedTuple):
    start: Callable[[], ServerMechanism]
    reauthenticate_ms: int = 0
    """How long an authentication is valid at most; 0: as long as connection and credential."""


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


@dataclass(slots=True, eq=False, repr=False)
class SaslSession:
    rules: SaslRules
    principal: Principal | None = None
    is_refused: bool = False
    open_until_s: float = -math.inf
    mechanism: str = ""
    """The chosen one; empty before."""
    _mechanism_rules: MechanismRules | None = None
    _server: ServerMechanism | None = None
    _sends_bare_tokens: bool = False
    _authenticated_at_s: float = -math.inf
    lifetime_ms: int = 0
    """How long the authentication is valid, for the response to the client; 0: for ever."""

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
        self.mechanism, self._mechanism_rules = name, mechanism
        self._server = mechanism.start()
        self._sends_bare_tokens = bare_tokens

    def _check_may_reauthenticate(self, name: str, now_s: float, bare_tokens: bool) -> None:
        if not self.lifetime_ms or bare_tokens:
            raise IllegalSaslState("the connection is already authenticated")
        if now_s - self._authenticated_at_s < _REAUTHENTICATION_S_MIN:
            raise IllegalSaslState("the connection was authenticated less than a second ago")
        if name != self.mechanism:
            self._refuse()
            raise UnsupportedSaslMechanism(
                "a connection cannot change its mechanism when it reauthenticates"
            )

    def respond(self, token: bytes, now_s: float) -> Step:
        """Process the peer's next token. Raises IllegalSaslState, Refused."""
        server, mechanism = self._server, self._mechanism_rules
        if server is None or mechanism is None:
            raise IllegalSaslState("a token without a mechanism: send SaslHandshake first")
        try:
            step = server.respond(token)
            if isinstance(step, Authenticated):
                limits_ms = [ms for ms in (step.lifetime_ms, mechanism.reauthenticate_ms) if ms]
                self._authenticated(user(step.user), min(limits_ms, default=0), now_s)
            elif step.refused is not None:
                self.open_until_s = -math.inf
        except BaseException:
            self._refuse()
            raise
        return step

    def _authenticated(self, principal: Principal, lifetime_ms: int, now_s: float) -> None:
        if self.principal not in (None, principal):
            raise Refused("a connection cannot change its user", user=principal.name)
        self.principal = principal
        self.lifetime_ms = lifetime_ms
        self._server = None
        self._authenticated_at_s = now_s
        self.open_until_s = now_s + lifetime_ms / 1000 if lifetime_ms else math.inf

    def _refuse(self) -> None:
        self.is_refused = True
        self.open_until_s = -math.inf
        self._server = None

    @property
    def is_peer(self) -> bool:
        return (self.mechanism, self.principal) == self.rules.peer
