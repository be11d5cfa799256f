"""The sockets of kazoo's client, and the order in which it tries the hosts."""

import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler

log = logging.getLogger(__name__)


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
