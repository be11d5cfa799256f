"""Sessions: what one browser may see, and the log-in of users beyond this machine.

`OneSession` is that of a console on this machine, which all browsers with the printed token share.
`LogIns` tries a user's name and password at the clusters: who is a user there gets a session with
connections of its own, so the cluster itself decides what the user sees.
Invariant: passwords are in memory only, held by the connections of a session, and go with it.
"""

import asyncio
import base64
import hmac
import logging
import ssl
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from suwi.client.errors import reason
from suwi.client.security import AuthenticationFailed
from suwi.console.clusters import ShownCluster
from suwi.env import Random
from suwi.env.tasks import loop_s
from suwi.model.errors import BrokerError

log = logging.getLogger(__name__)

_SECRET_BYTES = 24
_IDLE_S_MAX = 30 * 60
_AGE_S_MAX = 12 * 60 * 60
_SWEEP_S = 30
_SESSIONS_MAX = 200
_SESSIONS_OF_USER_MAX = 10
_ATTEMPTS_AT_ONCE = 4
_FAILURE_S = 0.5
"""What a failed attempt takes at least: with the limit above, the attempts of all are limited."""
_WAIT_S_MAX = 300
_WAITING_MAX = 10_000
_FREE_ATTEMPTS = 10
"""How many attempts of an address may fail, of different users, before it has to wait itself."""
_NAME_CHARACTERS_MAX = 256


class Public(NamedTuple):
    """A console that others than this machine reach. Users log in."""

    host: str
    """Where it listens."""
    names: Sequence[str]
    """By which browsers reach it: what may be in `Host`."""
    tls: ssl.SSLContext


class Session:
    """The clusters as one user's connections see them. `begin` and `finish` frame each request."""

    def __init__(
        self,
        clusters: Mapping[str, ShownCluster],
        now_s: float,
        user: str | None = None,
        address: str | None = None,
    ) -> None:
        self.clusters = clusters
        self.user = user
        """None on this machine: whoever has the token."""
        self.address = address
        """From which the user has logged in."""
        self.streams = 0
        self.ended = asyncio.Event()
        self.began_s = self.used_s = now_s
        self._requests = 0

    def begin(self) -> None:
        self._requests += 1

    async def finish(self, now_s: float) -> None:
        self._requests -= 1
        self.used_s = now_s
        if self.ended.is_set():
            await self.end()  # the request may have opened a connection again

    async def end(self) -> None:
        """Close its connections, when the last request has finished."""
        self.ended.set()
        for cluster in self.clusters.values():
            cluster.is_closed = True
        if not self._requests:
            for cluster in self.clusters.values():
                await cluster.client.close()

    def is_over(self, now_s: float) -> bool:
        is_idle = not self._requests and now_s - self.used_s > _IDLE_S_MAX
        return self.ended.is_set() or is_idle or now_s - self.began_s > _AGE_S_MAX


class OneSession:
    # The kind and text of the answer to a browser without a session.
    missing = ("forbidden", "this browser has no session; open the address that it printed")

    def __init__(self, session: Session, random: Random) -> None:
        self._session = session
        self.token = _secret(random)
        self._secret = _secret(random)

    def exchange(self, token: str) -> str | None:
        """The secret of the session for the printed token."""
        return self._secret if _is_same(token, self.token) else None

    def end_streams(self) -> None:
        """A server waits for them before it stops."""
        self._session.ended.set()

    async def close(self) -> None:
        await self._session.end()

    def find(self, secret: str) -> Session | None:
        return self._session if _is_same(secret, self._secret) else None


class Refused(Exception):
    """Why nobody was logged in."""

    def __init__(self, status: int, kind: str, text: str) -> None:
        super().__init__(text)
        self.status, self.kind = status, kind


class LogIns:
    missing = ("login", "log in as a user of the cluster")

    def __init__(self, own: Collection[ShownCluster], random: Random) -> None:
        """`own`: the clusters by the console's own connections."""
        self._own = own
        self._random = random
        self._sessions: dict[str, Session] = {}
        self._turns = asyncio.Semaphore(_ATTEMPTS_AT_ONCE)
        self._waiting = _WaitingTimes()

    def find(self, secret: str) -> Session | None:
        session = self._sessions.get(secret)
        return None if session is None or session.is_over(loop_s()) else session

    async def log_in(self, user: str, password: str, address: str) -> str:
        """The secret of a new session. Raises `Refused`."""
        who = {"user": user[:_NAME_CHARACTERS_MAX], "address": address}
        # Others behind the same address need not wait for one user, unless many attempts fail.
        keys: list[_Key] = [(address, who["user"]), (address, None)]
        wait_s = max(self._waiting.left_s(key, loop_s()) for key in keys)
        if wait_s > 0:
            raise Refused(429, "login", f"too many attempts; try again in {wait_s:.0f} s")
        # Counted before it ends, so that attempts of one address cannot overtake each other.
        for key in keys:
            self._waiting.count(key, loop_s())
        async with self._turns:
            try:
                clusters = await self._connect(user, password)
            except Refused as refused:
                log.warning("log-in refused", extra={**who, "reason": str(refused)})
                await asyncio.sleep(_FAILURE_S)
                raise
        for key in keys:
            self._waiting.forgive(key, loop_s())
        session = Session(clusters, loop_s(), user, address)
        await self._make_room(session)
        secret = _secret(self._random)
        self._sessions[secret] = session
        log.info("logged in", extra={**who, "clusters": sorted(clusters)})
        return secret

    async def _make_room(self, session: Session) -> None:
        """A user's least used sessions end first. Raises `Refused`."""
        own = sorted(
            (other.used_s, secret)
            for secret, other in self._sessions.items()
            if (other.user, other.clusters.keys()) == (session.user, session.clusters.keys())
        )
        for _, secret in own[: max(0, len(own) + 1 - _SESSIONS_OF_USER_MAX)]:
            await self.log_out(secret)
        if len(self._sessions) >= _SESSIONS_MAX:
            await session.end()
            raise Refused(503, "login", "too many users are logged in")

    async def _connect(self, user: str, password: str) -> dict[str, ShownCluster]:
        """The clusters where they are a user's."""
        if not _is_name(user) or not _is_name(password):
            raise Refused(401, "login", "give a user name and a password")
        tried = await asyncio.gather(
            *(_try(cluster.as_user(user, password)) for cluster in self._own)
        )
        clusters = {shown.name: shown for shown in tried if isinstance(shown, ShownCluster)}
        if clusters:
            return clusters
        # Why, and which, is in the log: nobody is logged in yet.
        if not any(isinstance(error, AuthenticationFailed) for error in tried):
            raise Refused(503, "unreachable", "no cluster can be asked")
        raise Refused(401, "login", "no cluster has this user with this password")

    async def log_out(self, secret: str) -> None:
        session = self._sessions.pop(secret, None)
        if session is not None:
            log.info("logged out", extra={"user": session.user, "address": session.address})
            await session.end()

    async def sweep(self) -> None:
        """Ends sessions that are idle or too old, for ever."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            for secret, session in list(self._sessions.items()):
                if session.is_over(loop_s()):
                    await self.log_out(secret)

    def end_streams(self) -> None:
        for session in self._sessions.values():
            session.ended.set()

    async def close(self) -> None:
        for secret in list(self._sessions):
            await self.log_out(secret)


async def _try(shown: ShownCluster) -> ShownCluster | Exception:
    try:
        await shown.client.any_link()
    except (BrokerError, OSError) as error:
        if not isinstance(error, AuthenticationFailed):
            about = {"cluster": shown.name, "reason": reason(error)}
            log.warning("cluster cannot be asked for a log-in", extra=about)
        await shown.client.close()
        return error
    return shown


class _Waiting(NamedTuple):
    failures: int
    until_s: float


_Key = tuple[str, str | None]
"""An address and a user, or all users of the address."""


class _WaitingTimes:
    """After each failed attempt a user of an address waits twice as long as before, and so does the
    address itself after some of them."""

    def __init__(self) -> None:
        self._by_key: dict[_Key, _Waiting] = {}

    def left_s(self, key: _Key, now_s: float) -> float:
        waiting = self._by_key.get(key)
        return 0 if waiting is None else waiting.until_s - now_s

    def count(self, key: _Key, now_s: float) -> None:
        before = self._by_key.pop(key, _Waiting(0, 0))
        if now_s > before.until_s + _WAIT_S_MAX:
            before = _Waiting(0, 0)
        doublings = before.failures - (_FREE_ATTEMPTS if key[1] is None else 0)
        wait_s = min(2**doublings, _WAIT_S_MAX) if doublings >= 0 else 0
        failures = min(before.failures + 1, _FREE_ATTEMPTS + 16)
        self._by_key[key] = _Waiting(failures, now_s + wait_s)
        if len(self._by_key) > _WAITING_MAX:
            del self._by_key[next(iter(self._by_key))]

    def forgive(self, key: _Key, now_s: float) -> None:
        """The attempt has succeeded: it does not count, nor do those before it of the same user."""
        waiting = self._by_key.pop(key, None)
        if waiting is not None and key[1] is None and waiting.failures > 1:
            self._by_key[key] = _Waiting(waiting.failures - 1, now_s)


def _is_name(text: str) -> bool:
    """NUL separates the parts of SASL PLAIN's message."""
    is_text = not any("\ud800" <= character <= "\udfff" for character in text)
    return 0 < len(text) <= _NAME_CHARACTERS_MAX and "\0" not in text and is_text


def _secret(random: Random) -> str:
    return base64.urlsafe_b64encode(random.token(_SECRET_BYTES)).decode()


def _is_same(given: str, known: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), known.encode())
