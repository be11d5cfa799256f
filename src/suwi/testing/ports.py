"""Keeps a broker's port reserved while its process is not running.

While a broker is down its port must refuse connections, and no other process may get it, since
clients would connect to the wrong server. A socket that is bound but does not listen does both.
"""

import socket
import sys

_HOST = "127.0.0.1"


class Reservation:
    """Without effect on systems that do not let two sockets share an address."""

    def __init__(self, port: int) -> None:
        self._socket: socket.socket | None = None
        if sys.platform == "linux":
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                self._socket.bind((_HOST, port))
            except OSError:
                self.release()

    def release(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
