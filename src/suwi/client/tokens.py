"""OAuth tokens from a file, from a token endpoint, or unsecured ones made by the client.

`read_tokens` reads Kafka's settings. The token is fetched for each authentication, so that a
renewed file or an expired token needs no attention of the caller.
Invariant: no error text and no `repr` has secrets or tokens.
"""

import asyncio
import base64
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any, Final, Protocol

from suwi.env import Disk, Env
from suwi.model.config_kinds import BadConfig

URL_KEY: Final = "sasl.oauthbearer.token.endpoint.url"
ID_KEY: Final = "sasl.oauthbearer.client.credentials.client.id"
SECRET_KEY: Final = "sasl.oauthbearer.client.credentials.client.secret"
SCOPE_KEY: Final = "sasl.oauthbearer.scope"
_UNSECURED: Final = "unsecuredLogin"
_STRING_CLAIM: Final = f"{_UNSECURED}StringClaim_"
_TIMEOUT_S: Final = 10
# Share of a token's lifetime for which it is cached.
_CACHED_SHARE: Final = 0.8


class NoToken(ConnectionError):
    """No token is available at the moment."""


class Tokens(Protocol):
    async def token(self, env: Env) -> str:
        """Raises `NoToken`."""


def read_tokens(given: Mapping[str, str], options: Mapping[str, str]) -> Tokens:
    """From settings and the options of the login module. Raises `BadConfig`."""
    url = given.get(URL_KEY, "")
    scheme = urllib.parse.urlsplit(url).scheme
    if scheme == "file":
        return FileTokens(urllib.parse.unquote(urllib.parse.urlsplit(url).path))
    if scheme in ("http", "https"):
        client_id = given.get(ID_KEY) or options.get("clientId", "")
        secret = given.get(SECRET_KEY) or options.get("clientSecret", "")
        if not client_id or not secret:
            raise BadConfig(f"{URL_KEY} needs {ID_KEY} and {SECRET_KEY}")
        return EndpointTokens(
            url, client_id, secret, given.get(SCOPE_KEY) or options.get("scope", "")
        )
    if url:
        raise BadConfig(f"{URL_KEY}: give https://…, http://… or file:///…")
    claims = {
        name.removeprefix(_STRING_CLAIM): value
        for name, value in options.items()
        if name.startswith(_STRING_CLAIM)
    }
    if "sub" not in claims:
        raise BadConfig(f"{URL_KEY} is missing: the source of the tokens")
    lifetime = options.get(f"{_UNSECURED}LifetimeSeconds", "3600")
    if not lifetime.isdigit():
        raise BadConfig(f"sasl.jaas.config: {_UNSECURED}LifetimeSeconds must be a number")
    return UnsecuredTokens(claims, int(lifetime))


@dataclass(frozen=True)
class FileTokens:
    """A file that another program renews."""

    path: str

    async def token(self, env: Env) -> str:
        return self.read(env.disk)

    def read(self, disk: Disk) -> str:
        """Raises `NoToken`."""
        try:
            return disk.read_bytes(self.path).decode("ascii").strip()
        except OSError as error:
            raise NoToken(f"no token in {self.path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise NoToken(f"{self.path} has no token") from None


@dataclass(frozen=True)
class UnsecuredTokens:
    """Unsigned tokens (RFC 7515, "none"), for tests with brokers that accept them."""

    claims: Mapping[str, str]
    lifetime_s: int

    async def token(self, env: Env) -> str:
        now_s = env.clock.now_ms() / 1000
        claims = {**self.claims, "iat": now_s, "exp": now_s + self.lifetime_s}
        return f"{_encode({'alg': 'none'})}.{_encode(claims)}."


def _encode(part: Mapping[str, Any]) -> str:
    text = json.dumps(part, separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Another URL would get the secret, too."""

    def redirect_request(self, *_: Any) -> None:
        return None


@dataclass
class EndpointTokens:
    """The client credentials grant (RFC 6749, 4.4). A token is cached for most of its lifetime."""

    url: str
    client_id: str
    secret: str = field(repr=False)
    scope: str = ""
    _cached: str = field(default="", repr=False)
    _valid_until_s: float = field(default=float("-inf"), repr=False)

    async def token(self, env: Env) -> str:
        loop = asyncio.get_running_loop()
        if not loop.time() < self._valid_until_s:  # also if that is no number
            asked_s = loop.time()
            answer = await loop.run_in_executor(None, self._ask)
            token, lifetime_s = answer.get("access_token"), answer.get("expires_in", 0)
            if not isinstance(token, str) or not isinstance(lifetime_s, int | float):
                raise NoToken(f"the response of {self.url} has no access_token")
            self._cached, self._valid_until_s = token, asked_s + lifetime_s * _CACHED_SHARE
        return self._cached

    def _ask(self) -> dict[str, Any]:
        fields = {"grant_type": "client_credentials"}
        if self.scope:
            fields["scope"] = self.scope
        basic = base64.b64encode(f"{self.client_id}:{self.secret}".encode()).decode()
        request = urllib.request.Request(
            self.url,
            urllib.parse.urlencode(fields).encode(),
            {"Authorization": f"Basic {basic}", "Accept": "application/json"},
        )
        handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
        if self.url.startswith("https"):
            handlers.append(urllib.request.HTTPSHandler(context=ssl.create_default_context()))
        opener = urllib.request.build_opener(*handlers)
        try:
            with opener.open(request, timeout=_TIMEOUT_S) as answer:
                found = json.load(answer)
        except urllib.error.HTTPError as error:
            error.close()
            raise NoToken(f"no token from {self.url}: HTTP status {error.code}") from None
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None)
            reason = reason or type(error).__name__
            raise NoToken(f"no token from {self.url}: {reason}") from None
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise NoToken(f"the response of {self.url} is not a JSON object")
        return found
