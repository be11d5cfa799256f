"""A listener: a bound address and the connections accepted on it.

`start` binds and serves, `stop` shuts down gracefully. The listeners of a broker share a `Budget`.
"""

import asyncio
import logging
import math
import os
import socket
from collections.abc import Callable
from typing import NamedTuple

from suwi.net.buffer_pool import BufferPool
from suwi.net.client_quota_manager import ClientQuotaManager
from suwi.net.connection import Connection, ConnectionRegistry, Dispatch
from suwi.net.fair_turns import Turns
from suwi.net.limits import Limits
from suwi.net.output import UnsentBytesBudget
from suwi.net.tls_handshake import ServerContexts, TlsHandshake
from suwi.security.principal import ANONYMOUS, Principal

log = logging.getLogger(__name__)

_SWEEP_S_MAX = 5.0
_ACCEPTED_AT_ONCE = 1
_REFUSAL_LINE_PERIOD_S = 60.0
_FAILURE_LINE_PERIOD_S = 1.0
_USER_CHARACTERS_MAX = 64
# SO_SNDBUF, inherited by accepted sockets. With the kernel's default, megabytes are queued at once
# and then sent in the context of incoming acknowledgements, on the peer's core if it is local. With
# a smaller buffer part of that work is done here, concurrently with the peer.
_SEND_BUFFER_BYTES = 512 * 1024


class FailedLogIn(NamedTuple):
    listener: str
    mechanism: str
    host: str
    user: str
    """The name that was sent; empty if there was none."""
    reason: str
    principal: Principal = ANONYMOUS
    """Whose connection it is, if it was to be authenticated again."""


class Budget:
    """Shared by all listeners of a broker: memory, turns and the number of connections."""

    def __init__(
        self,
        limits: Limits,
        *,
        poison: bool = False,
        on_refused: Callable[[str], None] = lambda _: None,
        on_log_in_failed: Callable[[FailedLogIn], None] = lambda _: None,
        quotas: ClientQuotaManager | None = None,
    ) -> None:
        """`poison` overwrites each frame after its handler, to detect views that were kept.
        `on_refused` gets the reason why no more connections can be taken from anybody."""
        self._on_refused = on_refused
        self.on_log_in_failed = on_log_in_failed
        self._quotas = quotas or ClientQuotaManager()
        self.limits = limits
        self.buffer_pool = BufferPool(limits.unfinished_bytes_max, poison=poison)
        self.unsent_budget = UnsentBytesBudget(limits.unsent_bytes_max)
        self.turns = Turns(limits.turn_requests_max, limits.turn_ms_max)
        self.connections = 0
        self._by_host: dict[str, int] = {}
        self._refusals = 0
        """Those since the last line of the log."""
        self._line_at_s = -math.inf

    def admit(self, host: str, *, is_rated: bool = True) -> str | None:
        """Count a new connection, or return the reason why it is refused. `is_rated`: whether it
        counts in the rate of its host."""
        if self.connections >= self.limits.connections_max:
            reason = f"too many connections: {self.connections} are open"
            self._on_refused(reason)
            return self._refused(reason)
        of_host = self._by_host.get(host, 0)
        if of_host >= self.limits.connections_per_ip_max:
            return self._refused(f"too many connections from {host}: {of_host} are open")
        if is_rated and self._quotas.refuses_connection(host):
            return self._refused(f"too many new connections from {host} per second")
        self.connections += 1
        self._by_host[host] = of_host + 1
        return None

    def _refused(self, reason: str) -> str:
        """One line a minute: clients try again at once."""
        self._refusals += 1
        now_s = asyncio.get_running_loop().time()
        if now_s - self._line_at_s >= _REFUSAL_LINE_PERIOD_S:
            fields = {"reason": reason, "refused": self._refusals}
            log.warning("connections refused", extra=fields)
            self._line_at_s, self._refusals = now_s, 0
        return reason

    def release(self, host: str) -> None:
        self.connections -= 1
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]


class FailedAuthentications:
    """Counted by mechanism and logged, at most one line a second because anybody can cause them."""

    def __init__(self, listener: str) -> None:
        self._listener = listener
        self.by_mechanism: dict[str, int] = {}
        self._line_at_s = -math.inf
        self._suppressed = 0

    def add(self, mechanism: str, reason: str, peer: str, user: str, now_s: float) -> None:
        """`mechanism` is one that the broker supports, `user` the name that was sent, or empty."""
        self.by_mechanism[mechanism] = self.by_mechanism.get(mechanism, 0) + 1
        if now_s - self._line_at_s < _FAILURE_LINE_PERIOD_S:
            self._suppressed += 1
            return
        facts: dict[str, object] = {
            "listener": self._listener,
            "mechanism": mechanism,
            "peer": peer,
            "reason": reason,
        }
        if user:
            facts["user"] = _shown(user)
        if self._suppressed:
            facts["suppressed"] = self._suppressed  # failures not logged since the last line
        self._line_at_s, self._suppressed = now_s, 0
        log.info("authentication failed", extra=facts)


def _shown(user: str) -> str:
    """An untrusted name, escaped and shortened for the log."""
    escaped = repr(user[: _USER_CHARACTERS_MAX + 1])[1:-1]
    return escaped if len(escaped) <= _USER_CHARACTERS_MAX else f"{escaped[:_USER_CHARACTERS_MAX]}…"


class Listener:
    def __init__(
        self,
        name: str,
        host: str,
        port: int,
        dispatch: Dispatch,
        budget: Budget,
        *,
        tls: ServerContexts | None = None,
        limits: Limits | None = None,
        backlog: int = 1024,
        is_protected: bool = False,
    ) -> None:
        """`limits` are the initial ones of a connection; by default those of the budget.
        `is_protected`: it is for brokers only."""
        self._is_protected = is_protected
        self.name = name
        self.host = host
        self.port = port  # after `start` the bound port, if 0 was given
        self.failed_authentications = FailedAuthentications(name)
        self._dispatch = dispatch
        self._budget = budget
        self._tls = tls
        self._limits = limits or budget.limits
        self._backlog = backlog
        self._server: asyncio.AbstractServer | None = None
        self._connections: dict[Connection, None] = {}  # in order of arrival
        self._handshakes: dict[TlsHandshake, None] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Future[None] | None = None

    @property
    def connections(self) -> list[Connection]:
        return list(self._connections)

    async def start(self) -> None:
        """Bind and serve. Raises `OSError` if the address is not available."""
        loop = asyncio.get_running_loop()
        limits, budget, tls = self._limits, self._budget, self._tls

        def connection(registry: ConnectionRegistry) -> Connection:
            return Connection(
                loop,
                self.name,
                self._dispatch,
                limits,
                budget.buffer_pool,
                budget.unsent_budget,
                budget.turns,
                registry,
            )

        def protocol() -> asyncio.BaseProtocol:
            if tls is None:
                return connection(self)
            handshake_s_max = limits.authenticate_ms_max / 1000
            return TlsHandshake(tls, connection, self, budget.turns, handshake_s_max)

        # asyncio accepts up to `backlog` connections in one go, before any limit is checked: a
        # connection storm would use all file descriptors. Without descriptors it fails as often,
        # and plans a retry for each failure, which multiply. So asyncio accepts one at a time, and
        # `listen` is called again with the real backlog.
        self._server = await loop.create_server(
            protocol, self.host, self.port, backlog=_ACCEPTED_AT_ONCE
        )
        for bound in reversed(getattr(self._server, "sockets", ())):
            self.port = bound.getsockname()[1]
            if bound.fileno() >= 0:  # a simulated socket has no descriptor
                with socket.socket(fileno=os.dup(bound.fileno())) as same:
                    same.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
                    same.listen(self._backlog)
        self._plan_sweep(loop)
        log.debug("listening", extra={"listener": self.name, "address": f"{self.host}:{self.port}"})

    async def stop(self, grace_s: float = 1.0) -> None:
        """Stop accepting and reading; wait for pending replies for at most `grace_s`."""
        if self._server is None:
            return
        server, self._server = self._server, None
        loop = asyncio.get_running_loop()
        for bound in getattr(server, "sockets", ()):
            if bound.fileno() >= 0:
                loop.remove_reader(bound.fileno())
        if self._sweeper is not None:
            self._sweeper.cancel()
        for handshake in list(self._handshakes):
            handshake.close()
        for connection in self.connections:
            connection.stop()
        # Connections that asyncio has accepted must be made before the server is closed: asyncio
        # would fail on them and leave their sockets open.
        await asyncio.sleep(0)
        server.close()
        limit = loop.call_later(grace_s, self._abort_all)
        if self._connections:
            self._emptied = loop.create_future()
            await self._emptied
        limit.cancel()
        await server.wait_closed()

    def serve_with(self, dispatch: Dispatch) -> None:
        """Use another dispatch function for all further requests of all connections."""
        self._dispatch = dispatch
        for connection in self.connections:
            connection.serve_with(dispatch)

    def _abort_all(self) -> None:
        for connection in self.connections:
            connection.abort()

    def opened(self, connection: Connection) -> str | None:
        if self._server is None:
            return "the listener has stopped"
        is_rated = self._tls is None and not self._is_protected  # or it was, before the handshake
        refused = self._budget.admit(connection.peer_host, is_rated=is_rated)
        if refused is None:
            self._connections[connection] = None
        return refused

    def closed(self, connection: Connection) -> None:
        if connection not in self._connections:
            return  # it was refused
        del self._connections[connection]
        self._budget.release(connection.peer_host)
        if self._emptied is not None and not self._connections and not self._emptied.done():
            self._emptied.set_result(None)

    def authentication_failed(
        self,
        mechanism: str,
        reason: str,
        peer: str,
        user: str,
        principal: Principal = ANONYMOUS,
    ) -> None:
        now_s = asyncio.get_running_loop().time()
        self.failed_authentications.add(mechanism, reason, peer, user, now_s)
        host = peer.rpartition(":")[0]
        failed = FailedLogIn(self.name, mechanism, host, user, reason, principal)
        self._budget.on_log_in_failed(failed)

    def handshake_started(self, handshake: TlsHandshake) -> str | None:
        """A peer in the TLS handshake counts as a connection."""
        if self._server is None:
            return "the listener has stopped"
        refused = self._budget.admit(handshake.peer_host, is_rated=not self._is_protected)
        if refused is None:
            self._handshakes[handshake] = None
        return refused

    def handshake_ended(self, handshake: TlsHandshake) -> None:
        if handshake in self._handshakes:
            del self._handshakes[handshake]
            self._budget.release(handshake.peer_host)

    def _plan_sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        limits = self._limits
        shortest_ms = min(
            limits.idle_ms_max,
            limits.frame_ms_max / 10,
            limits.close_ms_max,
            limits.authenticate_ms_max,
        )
        period_s = min(_SWEEP_S_MAX, max(0.01, shortest_ms / 4000))

        def sweep() -> None:
            now = loop.time()
            for connection in self.connections:
                connection.check_time(now)
            self._sweeper = loop.call_later(period_s, sweep)

        self._sweeper = loop.call_later(period_s, sweep)
