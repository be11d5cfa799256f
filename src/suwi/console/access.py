"""Who may ask the console, and how: a browser with a session, and no page of another site.

On this machine the printed token is exchanged for a cookie at `/?token=…`, and the browser is sent
on to an address without it. Elsewhere a user logs in (`sessions.py`). Files of the front end hold
no data and are given to everybody; whatever is below `/api` needs the cookie, but the log-in. A
page of another site has neither the cookie (it is `SameSite=Strict`) nor the origin; one whose name
was bound to this machine has the wrong `Host`.
Invariant: no response below `/api` has data unless all checks of `_refusal` passed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlencode

from starlette.responses import JSONResponse, RedirectResponse

from suwi.console.sessions import LogIns, OneSession, Session

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

API = "/api/"
LOG_IN = "/api/login"
CHANGE_HEADER = "x-suwi-console"
"""A request that changes something has it: a form of another site cannot set it."""
_QUERY_BYTES_MAX = 8 * 1024
_BODY_BYTES_MAX = 64 * 1024
_LOG_IN_BYTES_MAX = 4 * 1024
_RECORD = "/changes/send-record"
_RECORD_BODY_BYTES_MAX = 2 * 1024 * 1024
"""A record of 1 MiB in base 64 fits."""
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
_SAFE_METHODS = ("GET", "HEAD")

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_ONLY_TLS = b"max-age=31536000"


class Place(NamedTuple):
    """How browsers reach the console."""

    port: int
    names: Sequence[str] = LOOPBACK_NAMES
    """What may be in `Host`, without the port."""
    has_tls: bool = False

    @property
    def cookie(self) -> str:
        """Cookies do not depend on ports, and two consoles may run on one machine."""
        name = f"suwi-console-{self.port}"
        return f"__Host-{name}" if self.has_tls else name

    def set_cookie(self, response: Any, secret: str) -> None:
        response.set_cookie(
            self.cookie, secret, httponly=True, samesite="strict", secure=self.has_tls
        )


class Access:
    """ASGI middleware. The session of a request is `scope["session"]`."""

    def __init__(self, app: App, sessions: OneSession | LogIns, place: Place) -> None:
        self._app = app
        self._sessions = sessions
        self._place = place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = self._answer(scope)

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                kept = [(k, v) for k, v in message["headers"] if k.decode() not in _HEADERS]
                own = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                if self._place.has_tls:
                    own.append((b"strict-transport-security", _ONLY_TLS))
                if not any(k == b"cache-control" for k, _ in kept):
                    own.append((b"cache-control", b"no-store"))
                message = {**message, "headers": [*kept, *own]}
            await send(message)

        session: Session | None = scope.get("session")
        if session is None:
            await (answer or self._app)(scope, receive, send_with_headers)
            return
        session.begin()
        try:
            await self._app(scope, receive, send_with_headers)
        finally:
            await session.finish(asyncio.get_running_loop().time())

    def _answer(self, scope: Scope) -> App | None:
        """The answer in the place of the application's, if the request is not passed on."""
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        query = scope["query_string"]
        if len(query) + len(scope["raw_path"]) > _QUERY_BYTES_MAX:
            return _refuse(414, "bad", "the address is too long")
        if _number(headers.get("content-length", "0")) > _bytes_max(scope["path"]) or (
            "transfer-encoding" in headers
        ):
            return _refuse(413, "bad", "the request is too large")
        refusal = self._refusal(scope["method"], scope["scheme"], headers)
        if refusal is not None:
            return refusal
        given = parse_qs(query.decode("latin-1"))
        if scope["path"] == "/" and "token" in given and isinstance(self._sessions, OneSession):
            return self._exchange(self._sessions, given)
        if scope["path"].startswith(API):
            scope["secret"] = self._secret(headers)
            session = self._sessions.find(scope["secret"])
            if session is None and scope["path"] != LOG_IN:
                return _refuse(401, *self._sessions.missing)
            scope["session"] = session
        return None

    def _exchange(self, sessions: OneSession, given: dict[str, list[str]]) -> App:
        secret = sessions.exchange(given["token"][0])
        if secret is None:
            return _refuse(
                401, "forbidden", "this is not the token of the running console, or no longer"
            )
        kept = {name: values[0] for name, values in given.items() if name != "token"}
        response = RedirectResponse("/" + (f"?{urlencode(kept)}" if kept else ""), 303)
        self._place.set_cookie(response, secret)
        return _app(response)

    def _secret(self, headers: Mapping[str, str]) -> str:
        # Other programs on this machine may have set cookies that the parser of Python refuses.
        for pair in headers.get("cookie", "").split(";"):
            name, _, value = pair.strip().partition("=")
            if name == self._place.cookie:
                return value
        return ""

    def _refusal(self, method: str, scheme: str, headers: Mapping[str, str]) -> App | None:
        host = headers.get("host", "")
        name, _, port = host.rpartition(":")
        if (name if port.isascii() and port.isdigit() else host) not in self._place.names:
            return _refuse(403, "forbidden", "the console is not served under this name")
        origin = headers.get("origin")
        is_change = method not in _SAFE_METHODS
        if origin != f"{scheme}://{host}" and (origin is not None or is_change):
            return _refuse(403, "forbidden", "the request comes from another site")
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and (
            is_change or headers.get("sec-fetch-mode") != "navigate"
        ):
            return _refuse(403, "forbidden", "the request comes from another site")
        if is_change and CHANGE_HEADER not in headers:
            return _refuse(
                403, "forbidden", f"a request that changes something has {CHANGE_HEADER}"
            )
        return None


def _refuse(status: int, kind: str, text: str) -> App:
    return _app(JSONResponse({"kind": kind, "text": text}, status))


def _app(response: Any) -> App:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await response(scope, receive, send)

    return answer


def _bytes_max(path: str) -> int:
    """Of the body of a request."""
    if path == LOG_IN:
        return _LOG_IN_BYTES_MAX
    return _RECORD_BODY_BYTES_MAX if path.endswith(_RECORD) else _BODY_BYTES_MAX


def _number(text: str) -> int:
    """Whatever is not a number is too large."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 1 << 62
