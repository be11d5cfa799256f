"""SASL PLAIN (RFC 4616): user and password in plain text, so only for encrypted listeners.

Passwords are compared as keyed digests of equal length, which takes the same time for a wrong
password of any length and for a user that does not exist.
"""

import hashlib
import hmac
from collections.abc import Mapping
from typing import Final

from suwi.security.mechanism import Authenticated, Refused, Step

PLAIN: Final = "PLAIN"
_REFUSAL: Final = "Authentication failed: Invalid username or password"


class PlainUsers:
    """Users with digests of their passwords."""

    def __init__(self, passwords: Mapping[str, str], key: bytes) -> None:
        """`key`: random, created by this process."""
        self._key = key
        self._digests = {name: self._digest(password) for name, password in passwords.items()}
        self._no_user = self._digest("")

    def is_valid(self, name: str, password: str) -> bool:
        expected = self._digests.get(name)
        is_same = hmac.compare_digest(self._digest(password), expected or self._no_user)
        return is_same and expected is not None

    def _digest(self, password: str) -> bytes:
        return hmac.digest(self._key, password.encode(), hashlib.sha256)


class PlainServer:
    def __init__(self, users: PlainUsers) -> None:
        self._users = users

    def respond(self, token: bytes) -> Step:
        try:
            authorization_id, name, password = bytes(token).decode().split("\0", 3)
        except ValueError:
            raise Refused("Authentication failed: not a PLAIN message") from None
        if not name or not password:
            raise Refused(_REFUSAL, user=name)
        if authorization_id not in ("", name):
            reason = "Authentication failed: the authorization id is not the user's name"
            raise Refused(reason, user=name)
        if not self._users.is_valid(name, password):
            raise Refused(_REFUSAL, user=name)
        return Authenticated(name, b"")


class PlainClient:
    name = PLAIN

    def __init__(self, user: str, password: str) -> None:
        self._token = f"\0{user}\0{password}".encode()

    def first(self) -> bytes:
        return self._token

    def respond(self, token: bytes) -> bytes | None:
        return None
