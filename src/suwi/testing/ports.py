"""Ports that stay a broker's own between its lives.

While a broker is dead its port must refuse connections, and no other process may be given it: its
clients would talk to a stranger. A socket that is bound but does not listen does both.
"""

import socket
import sys

_HOST = "127.0.0.1"


class Reservation:
    """Nothing but a wish where the system does not let two sockets share an address."""

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
