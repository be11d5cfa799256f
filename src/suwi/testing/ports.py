"""Keeps the port of a broker reserved, also while its process is not running.

While a broker is down its port must refuse connections, and no other process may get it, since
clients would connect to the wrong server. A socket that is bound but does not listen does both.
It must be bound first: Linux lets a second socket with SO_REUSEADDR bind and listen beside it, but
lets none bind beside one that listens.
"""

import socket
import sys
import weakref
from collections.abc import Callable

_HOST = "127.0.0.1"


class Reservation:
    """`port` is 0, which is any free port, on systems that do not let two sockets share one."""

    def __init__(self) -> None:
        self.port = 0
        self._close: Callable[[], object] = lambda: None
        if sys.platform == "linux":
            bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            self._close = weakref.finalize(self, bound.close)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((_HOST, 0))
            self.port = bound.getsockname()[1]

    def release(self) -> None:
        self._close()
