"""A blocking connection for raw clients."""

import socket
import struct
import time
from typing import Self

from bench.messages import base_offset

_READY_S_MAX = 60
_SIZE = struct.Struct(">i")


class Wire:
    """One connection that sends prepared frames and reads responses."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def reply(self) -> bytes:
        """The next response without its size."""
        (size,) = _SIZE.unpack(self.exactly(4))
        return self.exactly(size)

    def ask(self, request: bytes) -> bytes:
        self.send(request)
        return self.reply()

    def first_produce(self, request: bytes) -> bytes:
        """The response to a produce, which is sent until the partition is ready for it."""
        limit = time.monotonic() + _READY_S_MAX
        while base_offset(reply := self.ask(request)) is None:
            if time.monotonic() > limit:
                raise RuntimeError("the partition does not become ready")
            time.sleep(0.002)
        return reply

    def exactly(self, size: int) -> bytes:
        data = bytearray(size)
        view = memoryview(data)
        got = 0
        while got < size:
            count = self.socket.recv_into(view[got:])
            if not count:
                raise ConnectionError("the server closed the connection")
            got += count
        return bytes(data)
