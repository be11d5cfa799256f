"""SASL OAUTHBEARER (RFC 7628): the client sends a token issued by a third party.

A broker that rejects the token sends the status, and waits for one more message before it fails the
authentication. Why it rejects a token is in its log only.
"""

import re
from collections.abc import Callable
from typing import Final

from suwi.security.jwt_validator import BadToken, ValidToken
from suwi.security.mechanism import Authenticated, Challenge, Refused, Step

OAUTHBEARER: Final = "OAUTHBEARER"
_SEPARATOR: Final = "\x01"
_INVALID_TOKEN: Final = '{"status":"invalid_token"}'  # as Kafka's, byte for byte
# The gs2 header, without channel binding and perhaps with an authorization id; then the pairs.
# Strangers send it: what is matched one by one is limited, or it would block the event loop.
_FIRST: Final = re.compile(
    r"n,(?:a=(?P<user>(?:[^=,\x00-\x1f]|=2C|=3D){1,1000}))?,\x01"
    r"(?P<pairs>(?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01){0,100})\x01"
)
_BEARER: Final = re.compile(r"bearer +([-_.a-zA-Z0-9]+)", re.IGNORECASE)


class OAuthBearerServer:
    def __init__(self, validate: Callable[[str], ValidToken]) -> None:
        """`validate` raises `BadToken`."""
        self._validate = validate
        self._refused: Refused | None = None

    def respond(self, token: bytes) -> Step:
        if self._refused is not None:
            raise self._refused
        user, bearer = _read_first(token)
        try:
            valid = self._validate(bearer)
        except BadToken as error:
            self._refused = Refused(_INVALID_TOKEN, user=error.user, reason=str(error))
            return Challenge(_INVALID_TOKEN.encode(), self._refused)
        if user not in ("", valid.user):
            text = "Authentication failed: the authorization id is not the token's user"
            raise Refused(text, user=valid.user)
        return Authenticated(valid.user, b"", valid.lifetime_ms)


def _read_first(message: bytes) -> tuple[str, str]:
    """The authorization id and the token. Extensions are accepted and not used."""
    try:
        first = _FIRST.fullmatch(bytes(message).decode())
    except UnicodeDecodeError:
        first = None
    pairs = first["pairs"].split(_SEPARATOR)[:-1] if first is not None else []
    values = [value for name, _, value in (pair.partition("=") for pair in pairs) if name == "auth"]
    bearer = _BEARER.fullmatch(values[0]) if len(values) == 1 else None
    if first is None or bearer is None:
        raise Refused("Authentication failed: not an OAUTHBEARER message")
    return (first["user"] or "").replace("=2C", ",").replace("=3D", "="), bearer[1]


class OAuthBearerClient:
    name = OAUTHBEARER

    def __init__(self, token: str) -> None:
        self._token = token

    def first(self) -> bytes:
        return f"n,,{_SEPARATOR}auth=Bearer {self._token}{_SEPARATOR}{_SEPARATOR}".encode()

    def respond(self, token: bytes) -> bytes | None:
        return _SEPARATOR.encode() if token else None
