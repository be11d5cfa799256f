"""Checks the signed tokens (JWT, RFC 7519) of OAUTHBEARER, as Kafka's BrokerJwtValidator.

`parse_keys` reads the issuer's public keys (JWKS, RFC 7517), `JwtValidator.validate` a token.
Invariants: the key decides which algorithms a token may have, and only those with a public key are
allowed; nothing of a peer's token is used before its signature is verified, except to find the key;
an error text has no token.
"""

import base64
import binascii
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from suwi.env import Clock

_TOKEN_CHARACTERS_MAX: Final = 16_384
_KEYS_MAX: Final = 100
_RSA_BITS_MIN: Final = 2048
_TIME_S_MAX: Final = 10**12
_USER_CHARACTERS_MAX: Final = 1_000
_RSA: Final[tuple[str, ...]] = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_BY_CURVE: Final = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}
_PUBLIC_MEMBERS: Final = ("kty", "n", "e", "crv", "x", "y")


class BadToken(Exception):
    """The token is not accepted. The text has nothing of it, so that equal refusals are counted
    together. `user`: whom it is for, if its signature is valid."""

    def __init__(self, reason: str, user: str = "") -> None:
        super().__init__(reason)
        self.user = user


class BadKeys(ValueError):
    """The text has no key that could verify a token."""


class PublicKey(NamedTuple):
    id: str
    algorithms: tuple[str, ...]
    key: Any
    """PyJWT's."""


def parse_keys(text: bytes) -> list[PublicKey]:
    """The keys of a JWKS that can verify tokens. Raises `BadKeys`."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise BadKeys("it is not JSON") from None
    keys = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(keys, list) or len(keys) > _KEYS_MAX:
        raise BadKeys(f'it has no list "keys" of at most {_KEYS_MAX}')
    usable = [key for each in keys if (key := _parse_key(each)) is not None]
    if not usable:
        raise BadKeys("it has no public key for signatures with RS…, PS… or ES…")
    return usable


def _parse_key(jwk: Any) -> PublicKey | None:
    """None, if it is not for verifying signatures or not understood."""
    from jwt import PyJWK, PyJWTError  # an extra, and slow to import

    try:
        kind, key_id = jwk["kty"], jwk.get("kid", "")
        algorithms = _RSA if kind == "RSA" else (_BY_CURVE[jwk["crv"]],)
        if "alg" in jwk:
            algorithms = tuple(name for name in algorithms if name == jwk["alg"])
        if jwk.get("use", "sig") != "sig" or "verify" not in jwk.get("key_ops", ["verify"]):
            return None
        public = {name: jwk[name] for name in _PUBLIC_MEMBERS if name in jwk}
        key = PyJWK(public, algorithms[0]).key
    except (PyJWTError, ValueError, TypeError, LookupError, AttributeError):
        return None
    if not isinstance(key_id, str) or (kind == "RSA" and key.key_size < _RSA_BITS_MIN):
        return None
    return PublicKey(key_id, algorithms, key)


class JwtRules(NamedTuple):
    """What a token must say. An empty value is not checked."""

    issuer: str = ""
    audiences: Sequence[str] = ()
    """One of them."""
    scopes: Sequence[str] = ()
    """All of them."""
    user_claim: str = "sub"
    scope_claim: str = "scope"
    skew_s: int = 30


class ValidToken(NamedTuple):
    user: str
    lifetime_ms: int
    """At least 1: within the clock skew a token is accepted after its end."""


class JwtValidator:
    def __init__(
        self, rules: JwtRules, keys: Callable[[str | None], Sequence[PublicKey]], clock: Clock
    ) -> None:
        """`keys` finds those with an id, or all. Raises `BadToken`."""
        self._rules = rules
        self._keys = keys
        self._clock = clock

    def validate(self, token: str) -> ValidToken:
        """Raises `BadToken`."""
        claims = _object(self._verified(token), "payload")
        user = _user(claims, self._rules.user_claim)
        now_s = self._clock.now_ms() / 1000
        try:
            self._check_receiver(claims)
            expires_s = self._check_time(claims, now_s)
        except BadToken as error:
            raise BadToken(str(error), user) from None
        return ValidToken(user, max(1, int((expires_s - now_s) * 1000)))

    def _verified(self, token: str) -> bytes:
        """The claims, after the check of the signature."""
        from jwt import PyJWS, PyJWTError

        if len(token) > _TOKEN_CHARACTERS_MAX:
            raise BadToken("the token is too large")
        parts = token.split(".")
        if len(parts) != 3:
            raise BadToken("there is no signed token")
        header = _object(_decode(parts[0]), "header")
        if "crit" in header or "b64" in header:
            raise BadToken("the header of the token asks for extensions")
        key_id, algorithm = header.get("kid"), header.get("alg")
        if key_id is not None and not isinstance(key_id, str):
            raise BadToken("the key id of the token is not text")
        keys = self._keys(key_id)
        matching = [key for key in keys if algorithm in key.algorithms]
        if not matching:
            raise BadToken("the algorithm of the token is not one of the key's")
        if len(matching) > 1:
            raise BadToken("several keys match the token")
        try:
            (key,) = matching
            signed = PyJWS().decode_complete(token, key.key, algorithms=[algorithm])
        except (PyJWTError, ValueError, RecursionError):
            raise BadToken("the signature of the token is not valid") from None
        payload: bytes = signed["payload"]
        return payload

    def _check_receiver(self, claims: Mapping[str, Any]) -> None:
        rules = self._rules
        if rules.issuer and claims.get("iss") != rules.issuer:
            raise BadToken("the token is of another issuer")
        if rules.audiences and not _words(claims.get("aud")).intersection(rules.audiences):
            raise BadToken("the token is for another audience")
        scope = claims.get(rules.scope_claim)
        scopes = _words(scope.split() if isinstance(scope, str) else scope)
        if missing := [name for name in rules.scopes if name not in scopes]:
            raise BadToken(f"the token lacks the scope {missing[0]}")

    def _check_time(self, claims: Mapping[str, Any], now_s: float) -> float:
        """Returns when the token ends."""
        skew_s = self._rules.skew_s
        expires_s, issued_s = _time(claims, "exp"), _time(claims, "iat")
        if now_s >= expires_s + skew_s:
            raise BadToken("the token has expired")
        if issued_s > now_s + skew_s:
            raise BadToken("the token was issued in the future")
        if "nbf" in claims and _time(claims, "nbf") > now_s + skew_s:
            raise BadToken("the token is not valid yet")
        return expires_s


def user_of_own_token(token: str, claim: str) -> str:
    """Whom a token is for that this process was given to log in with: its signature is checked by
    those who receive it. Raises `BadToken`."""
    parts = token.split(".")
    if len(parts) != 3:
        raise BadToken("there is no signed token")
    return _user(_object(_decode(parts[1]), "payload"), claim)


def _user(claims: Mapping[str, Any], claim: str) -> str:
    user = claims.get(claim)
    if not isinstance(user, str) or not user.strip():
        raise BadToken(f"the claim {claim} of the token has no user")
    user = user.strip()
    if len(user) > _USER_CHARACTERS_MAX or not user.isprintable():
        raise BadToken(f"the claim {claim} of the token is not a name")
    return user


def _decode(part: str) -> bytes:
    try:
        return base64.b64decode(part + "=" * (-len(part) % 4), b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise BadToken("there is no signed token") from None


def _object(text: bytes, what: str) -> dict[str, Any]:
    """A JSON object. Other programs may take the first of two equal names: there are none."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            raise BadToken(f"the {what} of the token has a name twice")
        return made

    try:
        found = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise BadToken(f"the {what} of the token is not a JSON object")
    return found


def _time(claims: Mapping[str, Any], name: str) -> float:
    value: Any = claims.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and 0 <= value <= _TIME_S_MAX):
        raise BadToken(f"the claim {name} of the token is missing or not a time")
    return float(value)


def _words(value: Any) -> set[str]:
    words = value if isinstance(value, list) else [value]
    return {word for word in words if isinstance(word, str)}
