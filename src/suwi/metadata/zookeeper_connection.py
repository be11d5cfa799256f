"""One connection to ZooKeeper, through kazoo: its requests as futures of the event loop.

kazoo has threads of its own. What they report is passed to the event loop (hazard Z8), and one
thread of ours starts and stops the client, because kazoo's `stop` may wait for long and must not
be called twice at once (hazard Z10). `confirmed_s` is when the last answered `sync` was sent: until
one session timeout after that, ZooKeeper has certainly not ended the session (hazard Z6).
Invariant: a `sync` that is not answered for half the session timeout ends the connection, so that
the next host is tried in time. (kazoo pings only when it has sent nothing else for a while, and so
does not notice a silent server on a busy connection.)
"""

import asyncio
import contextlib
import logging
import math
import queue
import socket
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import KeeperState
from kazoo.security import CREATOR_ALL_ACL, READ_ACL_UNSAFE, Permissions

from suwi.metadata import zookeeper_format as fmt
from suwi.metadata.store import Closed, SessionState, StoreRolledBack, Unavailable
from suwi.metadata.zookeeper_format import Node, Step

log = logging.getLogger(__name__)

_DISCONNECTED = (
    ConnectionClosedError,
    ConnectionLoss,
    OperationTimeoutError,
    SessionExpiredError,
    SessionMovedError,
)
_REFUSED_STEP = (
    BadVersionError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
)
_STATES = {
    KazooState.CONNECTED: SessionState.CONNECTED,
    KazooState.SUSPENDED: SessionState.DISCONNECTED,
    KazooState.LOST: SessionState.EXPIRED,
}
_RECONNECT = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0}
_REQUESTS_IN_FLIGHT_MAX = 100
"""kazoo wakes its thread through a socket for each request; with more the event loop would wait."""
_SYNCS_PER_TIMEOUT = 4
_SILENCE_MAX = 0.5
"""The part of the session timeout for which a server may not answer a `sync`."""
_TIMEOUTS_BEFORE_PROBE = 2
_STOP_S_MAX = 3.0
_RESTART_PAUSE_S = 1.0
_SIGNALS_PER_TIMEOUT = 4

READABLE_ACL = [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE]
"""Anybody may read the znode; only these credentials may change it and create others below it."""


class Sockets(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's handler, with a time limit for each host, TLS as configured, and `disconnect`."""

    def __init__(
        self, connect_timeout_s: float, make_tls_context: Callable[[], ssl.SSLContext] | None
    ) -> None:
        super().__init__()
        self._connect_timeout_s = connect_timeout_s
        self._make_tls_context = make_tls_context
        self._current: socket.socket | None = None
        self._address: tuple[str, int] | None = None
        self._silent: tuple[str, int] | None = None
        """The host that was left last because it did not answer."""

    def create_connection(
        self, address: tuple[str, int], hostname: str | None = None, **_: Any
    ) -> socket.socket:
        """Called by kazoo's connection thread. Raises OSError."""
        self._current = None
        self._address = address
        plain = socket.create_connection(address, self._connect_timeout_s)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._current = plain
            if self._make_tls_context is not None:
                context = self._make_tls_context()
                self._current = context.wrap_socket(plain, server_hostname=hostname)
        except ValueError as error:  # BadTls: kazoo tries again after an OSError
            plain.close()
            log.error("TLS to ZooKeeper is not possible", extra={"reason": str(error)})
            raise OSError(str(error)) from error
        except BaseException:
            plain.close()
            raise
        return self._current

    def select(
        self, readable: list[Any], writable: list[Any], errors: list[Any], *timeout: Any
    ) -> Any:
        """Also reports what OpenSSL has decrypted already: a select on the socket does not, and
        kazoo would wait for its next ping."""
        decrypted = [s for s in readable if isinstance(s, ssl.SSLSocket) and s.pending()]
        if decrypted:
            timeout = (0,)
        found = super().select(readable, writable, errors, *timeout)
        return [*decrypted, *(s for s in found[0] if s not in decrypted)], *found[1:]

    def disconnect(self) -> None:
        """Leave a host that does not answer; kazoo reconnects."""
        self._silent = self._address
        if self._current is not None:
            with contextlib.suppress(OSError):
                self._current.shutdown(socket.SHUT_RDWR)

    def with_silent_last(self, hosts: list[tuple[str, str, int]]) -> list[tuple[str, str, int]]:
        """The hosts in kazoo's random order. The one that did not answer is tried last: half of the
        session timeout has passed when it is left, and it would cost a part of the rest (hazard
        Z7)."""
        return sorted(hosts, key=lambda host: host[1:] == self._silent)


class AccessDenied(Exception):
    """ZooKeeper's access lists refuse the credentials, or the lack of them."""


@dataclass(frozen=True, slots=True)
class ZookeeperSettings:
    hosts: str
    """HOST:PORT, several separated by commas."""
    root: str = "/suwi"
    session_timeout_s: float = 6.0
    auth: tuple[str, str] | None = field(default=None, repr=False)
    """Scheme and credentials; the znodes are then accessible with them only."""
    make_tls_context: Callable[[], ssl.SSLContext] | None = None
    copied_listeners: Mapping[str, str] | None = None
    """With their security protocols, for the copy at Kafka's znodes; None: there is no copy."""

    @property
    def connect_timeout_s(self) -> float:
        """For one host, so that an unreachable one does not cost the session (hazard Z7)."""
        return self.session_timeout_s / len(self.hosts.split(","))


OnState = Callable[[SessionState, int | None], None]


class Connection:
    def __init__(self, settings: ZookeeperSettings, on_state: OnState) -> None:
        """`on_state` is called on the event loop with the state and the session's id."""
        self.closed = False
        self._is_ended = False
        """Whether the session has been ended on purpose."""
        self.confirmed_s = -math.inf
        self.timeout_s = settings.session_timeout_s
        """The session timeout that ZooKeeper has granted."""
        self._settings = settings
        self._root = settings.root
        self._on_state = on_state
        self._loop = asyncio.get_running_loop()
        self._sockets = Sockets(settings.connect_timeout_s, settings.make_tls_context)
        self.client = _make_client(settings, self._sockets)
        self._learn_granted_timeout()
        self.client.add_listener(self._listen)
        self._owner = _ClientOwner(self.client)
        self._connected = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._sync_sent_s: float | None = None
        self._disconnected_s: float | None = None
        self.head_seen = 0
        self._rolled_back = ""

    def _learn_granted_timeout(self) -> None:
        """kazoo keeps the granted timeout to itself; what it reads with is two thirds of it."""
        connect = self.client._connection._connect

        def connect_and_learn(*args: Any) -> Any:
            read_timeout_ms, connect_timeout_ms = connect(*args)
            self.timeout_s = read_timeout_ms * 1.5 / 1000
            return read_timeout_ms, connect_timeout_ms

        self.client._connection._connect = connect_and_learn

    # -- starting and stopping -------------------------------------------------------------------

    def start(self) -> None:
        self._owner.start()
        self._confirm()

    async def wait_connected(self) -> None:
        await self._connected.wait()

    async def end_session(self) -> None:
        """End the session; no other begins. Bounded in time: a session that cannot be ended now
        ends by its timeout."""
        self._is_ended = True
        await self._within_limit(self._owner.stop())

    async def close(self) -> None:
        """Bounded in time, like `end_session`."""
        self.closed = self._is_ended = True
        if self._timer is not None:
            self._timer.cancel()
        await self._within_limit(self._owner.stop())
        self._owner.close()

    async def _within_limit(self, done: "asyncio.Future[None]") -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_S_MAX):
                await done

    def stop_from_thread(self) -> None:
        """End the session; called by the loop guard's thread while the event loop hangs."""
        self._owner.submit(self._owner.stop_client)

    def restart(self) -> None:
        """Unless the session was ended on purpose; from any thread."""
        if not self._is_ended:
            self._owner.start()

    # -- state -----------------------------------------------------------------------------------

    def _listen(self, state: str) -> None:
        """Called by kazoo's connection thread."""
        has_died = (
            self.client.client_state in (KeeperState.CLOSED, KeeperState.AUTH_FAILED)
            and not self._owner.is_stopped
        )
        self.call_on_loop(self._state_changed, _STATES[state], self.session_id, has_died)

    def _state_changed(self, state: SessionState, session_id: int | None, has_died: bool) -> None:
        if state is SessionState.CONNECTED:
            log.info("connected to ZooKeeper", extra={"session": f"{session_id or 0:#x}"})
            self._connected.set()
            self._sync_sent_s = self._disconnected_s = None
        else:
            if not self._is_ended and self._connected.is_set():
                log.warning("disconnected from ZooKeeper")
            self._connected.clear()
            self._disconnected_s = self._disconnected_s or self._loop.time()
        if state is SessionState.EXPIRED:
            self.confirmed_s = -math.inf
        if has_died and not self._is_ended:
            log.warning("connection to ZooKeeper failed, restarting")
            self._loop.call_later(_RESTART_PAUSE_S, self.restart)
        self._on_state(state, session_id)

    def call_on_loop(self, callback: Callable[..., None], *args: Any) -> None:
        """Call `callback` on the event loop, from one of kazoo's threads."""
        with contextlib.suppress(RuntimeError):  # The loop has been closed.
            self._loop.call_soon_threadsafe(callback, *args)

    def check(self) -> None:
        if self.closed:
            raise Closed("closed")
        if self._rolled_back:
            raise StoreRolledBack(self._rolled_back)
        if not self.client.connected:
            raise Unavailable("disconnected from ZooKeeper")

    @property
    def session_id(self) -> int | None:
        client_id = self.client.client_id
        return client_id[0] if client_id and self.client.connected else None

    # -- requests --------------------------------------------------------------------------------

    async def request(self, *requests: Callable[[], Any]) -> list[Any]:
        """Send the requests in order; the result is None if a znode is missing, or if one that
        should be created exists."""
        responses: list[Any] = []
        for first in range(0, len(requests), _REQUESTS_IN_FLIGHT_MAX):
            self.check()
            futures = [self._send(r) for r in requests[first : first + _REQUESTS_IN_FLIGHT_MAX]]
            responses += await asyncio.gather(*futures, return_exceptions=True)
        for at, response in enumerate(responses):
            if isinstance(response, (NoNodeError, NodeExistsError)):
                responses[at] = None
            elif isinstance(response, _DISCONNECTED):
                raise Unavailable("disconnected from ZooKeeper") from response
            elif isinstance(response, BaseException):
                _raise(response)
        return responses

    async def get(self, *paths: str) -> list[Node | None]:
        return await self.request(*(partial(self.client.get_async, path) for path in paths))

    async def create(self, nodes: Sequence[tuple[Any, ...]]) -> None:
        """Create the znodes in this order, of path, data and optionally an access list; those that
        exist stay as they are."""
        await self.request(*(partial(self.client.create_async, *node) for node in nodes))

    async def ensure_path(self, path: str) -> None:
        await self.request(partial(self.client.ensure_path_async, path))

    async def children(self, *paths: str) -> list[tuple[list[str], Any]]:
        """The names of each znode's children, and its stat."""
        get_children = self.client.get_children_async
        found = await self.request(*(partial(get_children, p, include_data=True) for p in paths))
        return [response or ([], None) for response in found]

    async def multi(self, steps: Sequence[Step]) -> bool | None:
        """Whether it was applied; None if the response was lost.

        Raises `Unavailable` if it was not sent.
        """
        self.check()
        transaction = self.client.transaction()
        for method, path, args in steps:
            getattr(transaction, method)(path, *args)
        try:
            responses = await self._send(transaction.commit_async)
        except _DISCONNECTED:
            return None
        failures = [response for response in responses if isinstance(response, Exception)]
        for failure in failures:
            if not isinstance(failure, _REFUSED_STEP):
                _raise(failure)
        return not failures

    async def sync(self) -> None:
        sent_s, session_id = self._loop.time(), self.session_id
        await self.request(partial(self.client.sync_async, self._root))
        self._confirmed(sent_s, session_id)

    def _send(self, request: Callable[[], Any]) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        request().rawlink(lambda result: self.call_on_loop(_complete, future, result))
        return future

    # -- confirmation of the session -------------------------------------------------------------

    def _confirm(self) -> None:
        """Send a `sync` at regular intervals; a server that does not answer is left."""
        if self._is_ended:
            return
        self._timer = self._loop.call_later(self.timeout_s / _SYNCS_PER_TIMEOUT, self._confirm)
        now_s, sent_s = self._loop.time(), self._sync_sent_s
        if sent_s is not None:
            if now_s - sent_s >= _SILENCE_MAX * self.timeout_s:
                log.warning("ZooKeeper does not answer, reconnecting")
                self._sync_sent_s = None
                self._sockets.disconnect()
            return
        if not self.client.connected:
            self._look_for_rollback(now_s)
            return
        self._sync_sent_s, session_id = now_s, self.session_id
        self.client.sync_async(self._root).rawlink(
            lambda result: self.call_on_loop(self._sync_answered, result, now_s, session_id)
        )

    def _sync_answered(self, result: Any, sent_s: float, session_id: int | None) -> None:
        if self._sync_sent_s == sent_s:
            self._sync_sent_s = None
        if result.exception is None:
            self._confirmed(sent_s, session_id)

    # -- an ensemble that has lost data (hazard Z11) ----------------------------------------------

    def saw(self, head: int) -> None:
        self.head_seen = max(self.head_seen, head)

    def _look_for_rollback(self, now_s: float) -> None:
        """ZooKeeper refuses a client that has seen later state than it has, without a reason. A new
        client is not refused, and sees what there is."""
        since_s = self._disconnected_s
        if since_s is not None and now_s - since_s >= _TIMEOUTS_BEFORE_PROBE * self.timeout_s:
            self._disconnected_s = now_s
            self._owner.submit(self._probe)

    def _probe(self) -> None:
        """Called on the owner's thread."""
        settings, seen = self._settings, self.head_seen  # The head may move on meanwhile.
        client = _make_client(
            settings, Sockets(settings.connect_timeout_s, settings.make_tls_context)
        )
        try:
            client.start(settings.connect_timeout_s)
            client.sync(self._root)  # The server may lag behind the one that was read from before.
            head = fmt.decode_number(client.get(fmt.Paths(self._root).head)[0])
        except NoNodeError:
            head = 0
        except Exception:
            return  # It is away for everybody.
        finally:
            client.stop()
            client.close()
        if head < seen:
            self._rolled_back = fmt.rolled_back(head, seen)
            self.call_on_loop(self._on_state, SessionState.DISCONNECTED, None)

    @property
    def is_confirmed(self) -> bool:
        """Whether ZooKeeper certainly has not ended the session yet."""
        return self._loop.time() < self.confirmed_s + self.timeout_s

    def _confirmed(self, sent_s: float, session_id: int | None) -> None:
        if session_id is not None and session_id == self.session_id:
            self.confirmed_s = max(self.confirmed_s, sent_s)


async def may_change(connection: Connection, path: str) -> bool:
    """Whether anybody may do more than read the znode."""
    (found,) = await connection.request(partial(connection.client.get_acls_async, path))
    return found is not None and any(
        acl.id.scheme == "world" and acl.perms & ~Permissions.READ for acl in found[0]
    )


def _make_client(settings: ZookeeperSettings, sockets: Sockets) -> KazooClient:
    client = KazooClient(
        settings.hosts,
        timeout=settings.session_timeout_s,
        handler=sockets,
        connection_retry=dict(_RECONNECT),
        auth_data=[settings.auth] if settings.auth else None,
        default_acl=CREATOR_ALL_ACL if settings.auth else None,
    )
    hosts_of = client._connection._expand_client_hosts
    client._connection._expand_client_hosts = lambda: sockets.with_silent_last(hosts_of())
    return client


def _complete(future: asyncio.Future[Any], result: Any) -> None:
    if future.done():
        return
    if result.exception is not None:
        future.set_exception(result.exception)
    else:
        future.set_result(result.value)


def _raise(error: BaseException) -> None:
    if isinstance(error, (NoAuthError, AuthFailedError)):
        raise AccessDenied("ZooKeeper refuses access to the znodes: check zookeeper.auth")
    raise error


class _ClientOwner:
    """The one thread that starts and stops kazoo's client."""

    def __init__(self, client: KazooClient) -> None:
        self.is_stopped = True
        """Whether the client was stopped on purpose, or not started yet."""
        self._client = client
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        # Not an executor: an interpreter that exits waits for its threads, and `stop` may hang.
        threading.Thread(  # noqa: TID251
            target=self._run, name="suwi-zookeeper", daemon=True
        ).start()

    def start(self) -> None:
        def start() -> None:
            self.is_stopped = False
            self._client.start_async()

        self._jobs.put(start)

    def stop(self) -> "asyncio.Future[None]":
        """Done when the session has ended, or its end was attempted."""
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def finished() -> None:
            if not done.done():
                done.set_result(None)

        def stop_and_tell() -> None:
            try:
                self.stop_client()
            finally:
                with contextlib.suppress(RuntimeError):  # The loop has been closed.
                    loop.call_soon_threadsafe(finished)

        self._jobs.put(stop_and_tell)
        return done

    def submit(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)

    def close(self) -> None:
        """After `stop`: release the client's resources and end the thread."""
        self._jobs.put(self._client.close)
        self._jobs.put(None)

    def stop_client(self) -> None:
        self.is_stopped = True
        self._client.stop()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception as error:
                log.warning("kazoo's client did not stop", extra={"reason": repr(error)})


class LoopGuard:
    """Ends the session when the event loop hangs.

    kazoo's threads keep the session alive even then, and with it leaderships that the broker cannot
    serve. A timer on the loop signals a thread; without a signal for the session timeout the thread
    ends the session, and starts another when the loop runs again.
    """

    def __init__(
        self, timeout_s: float, end_session: Callable[[], None], begin_session: Callable[[], None]
    ) -> None:
        self._timeout_s = timeout_s
        self._end_session = end_session
        self._begin_session = begin_session
        self._signalled = threading.Event()
        self._stopped = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        # A thread of its own, not an executor: it must run when the loop does not.
        threading.Thread(  # noqa: TID251
            target=self._watch, name="suwi-loop-guard", daemon=True
        ).start()
        self._signal()

    def stop(self) -> None:
        self._stopped = True
        self._signalled.set()
        if self._timer is not None:
            self._timer.cancel()

    def _signal(self) -> None:
        self._signalled.set()
        delay_s = self._timeout_s / _SIGNALS_PER_TIMEOUT
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._signal)

    def _watch(self) -> None:
        while not self._stopped:
            if self._signalled.wait(self._timeout_s):
                self._signalled.clear()
                continue
            log.error("event loop hangs, session ended", extra={"timeout_s": self._timeout_s})
            self._end_session()
            self._signalled.wait()
            if not self._stopped:
                self._begin_session()
