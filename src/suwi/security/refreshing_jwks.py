"""The public keys of a token issuer (JWKS), from a file or a URL, read again from time to time.

As Kafka's RefreshingHttpsJwks. `find` is asked for the keys of a token; an unknown key id asks for
a refresh, after which the client's next attempt succeeds. Reading happens in a thread.
Invariants: unknown key ids cause at most one refresh in `_UNKNOWN_PERIOD_S`; if a refresh fails,
the old keys are used, for `_KEPT_S` at most; what is read comes from the configured URL itself.
These times are the event loop's: a wall clock that is set keeps no key and no refresh away.
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from suwi.env import Disk
from suwi.env.problems import ProblemKind, Problems
from suwi.env.tasks import RESTART, Tasks, cancel_and_wait, wait_for_event
from suwi.security.jwt_validator import BadKeys, BadToken, PublicKey, parse_keys

_UNKNOWN_PERIOD_S: Final = 10.0
_KEPT_S: Final = 24 * 3600.0
_TIMEOUT_S: Final = 10.0
_BYTES_MAX: Final = 1 << 20


class JwksSource(NamedTuple):
    url: str
    refresh_ms: int = 3_600_000
    retry_ms: int = 100
    retry_ms_max: int = 10_000

    @property
    def path(self) -> str:
        """Of the file; empty if it is none."""
        parts = urlsplit(self.url)
        return unquote(parts.path) if parts.scheme == "file" else ""


def _now_s() -> float:
    return asyncio.get_running_loop().time()


class RefreshingJwks:
    def __init__(
        self,
        source: JwksSource,
        listener: str,
        disk: Disk,
        problems: Problems,
        now_s: Callable[[], float] = _now_s,
    ) -> None:
        """Reads a file at once. Raises `BadKeys`, OSError."""
        self._source = source
        self._listener = listener
        self._disk = disk
        self._problems = problems
        self._now_s = now_s
        self._keys: Sequence[PublicKey] = ()
        self._read_s = -math.inf
        self._asked_s = -math.inf
        """When an unknown key id asked for a refresh last."""
        self._failures = 0
        """Since the last successful refresh."""
        self._is_wanted = asyncio.Event()
        self._refreshing: asyncio.Task[None] | None = None
        if source.path:
            self._keys = self._read()

    def find(self, key_id: str | None) -> Sequence[PublicKey]:
        """The keys with this id; None: all. Raises `BadToken` if there are none."""
        now_s = self._now_s()
        if now_s - self._read_s > self._source.refresh_ms / 1000 + _KEPT_S:
            raise BadToken("the issuer's keys cannot be read")
        found = [key for key in self._keys if key_id in (None, key.id)]
        if not found:
            if now_s - self._asked_s >= _UNKNOWN_PERIOD_S:
                self._asked_s = now_s
                self._is_wanted.set()
            raise BadToken("the key id of the token is unknown")
        return found

    async def start(self, tasks: Tasks) -> None:
        """Read the keys for the first time. If that fails, it is tried again and again."""
        if self._keys:
            self._read_s = self._now_s()
        else:
            await self._refresh()
        self._refreshing = tasks.start(self._run, name="token keys", on_failure=RESTART)

    async def stop(self) -> None:
        await cancel_and_wait(self._refreshing)

    async def _run(self) -> None:
        source = self._source
        while True:
            retry_ms = min(source.retry_ms * 2 ** min(self._failures, 30), source.retry_ms_max)
            pause_ms = retry_ms if self._failures else source.refresh_ms
            await wait_for_event(self._is_wanted, pause_ms / 1000)
            self._is_wanted.clear()
            await self._refresh()

    async def _refresh(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            self._keys = await loop.run_in_executor(None, self._read, loop.time)
        except (OSError, BadKeys) as error:
            self._failures += 1
            reason = f"{self._source.url}: {error}"
            self._problems.report(ProblemKind.TOKEN_KEYS_UNREADABLE, self._listener, reason)
        else:
            self._read_s, self._failures = self._now_s(), 0
            self._problems.resolve(ProblemKind.TOKEN_KEYS_UNREADABLE, self._listener)

    def _read(self, now_s: Callable[[], float] = lambda: 0.0) -> Sequence[PublicKey]:
        """Raises OSError, `BadKeys`."""
        if self._source.path:
            return parse_keys(self._disk.read_bytes(self._source.path))
        return parse_keys(_fetch(self._source.url, now_s))


def _fetch(url: str, now_s: Callable[[], float]) -> bytes:
    """Raises OSError."""
    import ssl
    import urllib.error
    import urllib.request  # slow to import
    from http.client import HTTPException

    class NoRedirects(urllib.request.HTTPRedirectHandler):
        """The allowed URL is asked, no other one that it names."""

        def redirect_request(self, *_: Any) -> None:
            return None

    tls = urllib.request.HTTPSHandler(context=ssl.create_default_context())
    opener = urllib.request.build_opener(NoRedirects, tls)
    ends_s, text = now_s() + _TIMEOUT_S, bytearray()
    try:
        with opener.open(url, timeout=_TIMEOUT_S) as answer:
            while piece := answer.read1(_BYTES_MAX):
                text += piece
                if len(text) > _BYTES_MAX or now_s() > ends_s:
                    raise OSError("it is too large or too slow")
    except urllib.error.HTTPError as error:
        error.close()
        raise OSError(f"HTTP status {error.code}") from None
    except urllib.error.URLError as error:
        raise OSError(str(error.reason)) from None
    except (HTTPException, ValueError) as error:
        raise OSError(f"it does not answer with HTTP: {error!r}") from None
    return bytes(text)
