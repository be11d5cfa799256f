"""The TLS handshake, before a `Connection` exists.

A TLS listener accepts with a `TlsHandshake`. It uses the current TLS context, so that renewed
certificates are used from the next peer on. Peers in the handshake count as connections and have a
time limit. A handshake takes one or two milliseconds of the event loop, most of it for the first
message, so each waits for a turn as requests do. A failed handshake sends the TLS alert: without it
clients assume a broken connection and retry.
"""

import asyncio
import contextlib
import logging
import os
import socket
import ssl
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, cast

from suwi.net.connection import Connection, ConnectionRegistry, peer_address
from suwi.net.fair_turns import Turns

log = logging.getLogger(__name__)

NewConnection: TypeAlias = Callable[[ConnectionRegistry], Connection]

_MECHANISM = "TLS"
# How long a refused peer may take to read the alert; what it sends is discarded.
_LINGER_S = 1.0
_LINGER_READ_BYTES = 16 * 1024


class ServerContexts(Protocol):
    def current(self) -> ssl.SSLContext:
        """The context for a new connection."""


class HandshakeRegistry(ConnectionRegistry, Protocol):
    """Counts handshakes and connections: the listener."""

    def handshake_started(self, handshake: "TlsHandshake") -> str | None:
        """Count a peer, or log and return the reason why it is refused."""

    def handshake_ended(self, handshake: "TlsHandshake") -> None: ...


class TlsHandshake(asyncio.Protocol):
    def __init__(
        self,
        contexts: ServerContexts,
        new_connection: NewConnection,
        registry: HandshakeRegistry,
        turns: Turns,
        handshake_s_max: float,
    ) -> None:
        self.peer_host = ""
        self._peer = ""
        self._contexts = contexts
        self._new_connection = new_connection
        self._registry = registry
        self.closed = registry.closed
        self.authentication_failed = registry.authentication_failed
        self._turns = turns
        self._handshake_s_max = handshake_s_max
        self._accepted: socket.socket | None = None  # until the handshake starts
        self._task: asyncio.Task[None] | None = None

    # asyncio.Protocol: the accepted socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop has its own class
        self.peer_host, port = peer_address(transport)
        self._peer = f"{self.peer_host}:{port}"
        if self._registry.handshake_started(self) is None:
            try:
                self._take_over(transport.get_extra_info("socket").fileno())
                self._turns.join(self)
            except OSError as error:  # out of descriptors
                self._registry.handshake_ended(self)
                log.info("connection closed", extra={"peer": self._peer, "reason": str(error)})
        transport.abort()

    def _take_over(self, accepted_fd: int) -> None:
        # The handshake needs the socket without a transport, before anything is read from it.
        self._accepted = socket.socket(fileno=os.dup(accepted_fd))
        self._accepted.setblocking(False)

    def take_turn(self) -> bool:
        if self._accepted is None:
            return False
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._run(self._accepted))  # owner: itself
        self._task.add_done_callback(lambda _: self._ended())
        return True

    def _ended(self) -> None:
        self._registry.handshake_ended(self)
        if self._accepted is not None:
            self._accepted.close()
            self._accepted = None

    async def _run(self, accepted: socket.socket) -> None:
        self._accepted = None
        context = _AlertingContext(self._contexts.current(), accepted)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._new_connection(self),
                accepted,
                ssl=cast(ssl.SSLContext, context),
                ssl_handshake_timeout=self._handshake_s_max,
            )
        except OSError as error:  # TLS error, socket error or time-out
            reason = getattr(error, "reason", None) or str(error) or "peer disconnected"
            self._registry.authentication_failed(
                _MECHANISM, f"TLS handshake failed: {reason}", self._peer, ""
            )
            await context.linger()
        except Exception as error:
            log.error("TLS handshake failed", extra={"peer": self._peer}, exc_info=error)
        finally:
            context.close()

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        else:
            self._ended()

    # ConnectionRegistry: the connection after the handshake

    def opened(self, connection: Connection) -> str | None:
        self._registry.handshake_ended(self)
        return self._registry.opened(connection)


class _AlertingContext:
    """A TLS context for one handshake. When a handshake fails, asyncio closes the socket without
    sending the pending TLS alert: this class sends it and lets the peer read it."""

    def __init__(self, context: ssl.SSLContext, accepted: socket.socket) -> None:
        self._context = context
        self._accepted = accepted
        self._alerted: socket.socket | None = None

    def wrap_bio(
        self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, **given: Any
    ) -> ssl.SSLObject:
        tls = self._context.wrap_bio(incoming, outgoing, **given)
        handshake = tls.do_handshake

        def do_handshake() -> None:
            try:
                handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLError:
                self._send(outgoing.read())
                del tls.do_handshake
                raise
            del tls.do_handshake  # break the reference cycle

        tls.do_handshake = do_handshake  # type: ignore[method-assign]
        return tls

    def _send(self, alert: bytes) -> None:
        if not alert:
            return
        with contextlib.suppress(OSError):
            # asyncio closes its descriptor; the duplicate keeps the TCP connection open.
            self._alerted = socket.socket(fileno=os.dup(self._accepted.fileno()))
            self._alerted.setblocking(False)
            self._alerted.send(alert)
            self._alerted.shutdown(socket.SHUT_WR)

    async def linger(self) -> None:
        """Read until the peer closes: closing with unread bytes resets it and loses the alert."""
        if self._alerted is None:
            return
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                while await loop.sock_recv(self._alerted, _LINGER_READ_BYTES):
                    pass

    def close(self) -> None:
        if self._alerted is not None:
            self._alerted.close()
