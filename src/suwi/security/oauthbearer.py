"""SASL OAUTHBEARER (RFC 7628), the client's side: sends a token issued by a third party.

A broker that rejects the token sends the reason, and waits for one more byte before it fails the
authentication.
"""

from typing import Final

OAUTHBEARER: Final = "OAUTHBEARER"
_SEPARATOR: Final = "\x01"


class OAuthBearerClient:
    name = OAUTHBEARER

    def __init__(self, token: str) -> None:
        self._token = token

    def first(self) -> bytes:
        return f"n,,{_SEPARATOR}auth=Bearer {self._token}{_SEPARATOR}{_SEPARATOR}".encode()

    def respond(self, token: bytes) -> bytes | None:
        return _SEPARATOR.encode() if token else None
