"""A client's SASL credentials from Kafka's settings: user and password, or OAuth tokens.

`read_sasl_login` checks the settings without reading files; `start` begins one authentication.
Invariant: no error text and no `repr` has secrets.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from suwi.env import Env
from suwi.model.config_kinds import BadConfig
from suwi.security.jaas import BadJaas, LoginModule, parse_jaas
from suwi.security.mechanism import ClientMechanism
from suwi.security.oauthbearer import OAUTHBEARER, OAuthBearerClient
from suwi.security.plain import PLAIN, PlainClient
from suwi.security.scram import MECHANISMS, NONCE_BYTES, ScramClient, new_nonce

if TYPE_CHECKING:
    from suwi.client.tokens import Tokens

_JAAS: Final = "sasl.jaas.config"
_ALLOWED: Final = (PLAIN, *MECHANISMS, OAUTHBEARER)


class SaslLogin(Protocol):
    async def start(self, env: Env) -> ClientMechanism:
        """Raises `NoToken`."""


@dataclass(frozen=True, slots=True)
class PasswordLogin:
    mechanism: str
    user: str
    password: str = field(repr=False)

    async def start(self, env: Env) -> ClientMechanism:
        if self.mechanism == PLAIN:
            return PlainClient(self.user, self.password)
        nonce = new_nonce(env.random.token(NONCE_BYTES))
        return ScramClient(MECHANISMS[self.mechanism], self.user, self.password, nonce)


class TokenLogin(NamedTuple):
    tokens: "Tokens"

    async def start(self, env: Env) -> ClientMechanism:
        return OAuthBearerClient(await self.tokens.token(env))


def read_sasl_login(given: Mapping[str, str]) -> SaslLogin:
    """Raises `BadConfig`."""
    mechanism = given.get("sasl.mechanism", "")
    if mechanism not in _ALLOWED:
        raise BadConfig(f"sasl.mechanism={mechanism}: allowed: {', '.join(_ALLOWED)}")
    if mechanism == OAUTHBEARER:
        # All options have keys of their own, so sasl.jaas.config is optional.
        from suwi.client.tokens import read_tokens  # imports urllib, which is slow

        return TokenLogin(read_tokens(given, _module(given).options if _JAAS in given else {}))
    options = _module(given).options
    user, password = options.get("username"), options.get("password")
    if not user or not password:
        raise BadConfig(f'{_JAAS}: username="…" and password="…" are missing')
    return PasswordLogin(mechanism, user, password)


def _module(given: Mapping[str, str]) -> LoginModule:
    try:
        return parse_jaas(given.get(_JAAS, ""))
    except BadJaas as error:
        raise BadConfig(f"{_JAAS}: {error}") from None
