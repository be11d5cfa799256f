"""A proxy in front of all brokers, which can hold their answers back."""

import socket
import struct
import threading
from collections.abc import Iterator
from types import TracebackType

from tests.testing.clients import until

_INT32 = struct.Struct(">i")
_PRODUCE = b"\0\0"
"""The API key, behind the length of a request."""


class HeldAnswers:
    """Clients that begin here stay here: it puts its own ports into what brokers tell of others.

    `hold` holds back the answers on all connections, `release` delivers them; connections that are
    made later are not held."""

    def __init__(self, *brokers: str) -> None:
        self._own: dict[bytes, bytes] = {}
        """What brokers call each other, and what clients are told."""
        self._gates: list[threading.Event] = []
        self._sent = self._held = 0
        self._sockets: list[socket.socket] = []
        self.addresses: list[str] = []
        for broker in brokers:
            host, _, port = broker.rpartition(":")
            listener = socket.create_server(("127.0.0.1", 0))
            own_port = listener.getsockname()[1]
            self._own[host.encode() + _INT32.pack(int(port))] = host.encode() + _INT32.pack(
                own_port
            )
            self._sockets.append(listener)
            self.addresses.append(f"127.0.0.1:{own_port}")
            arguments = (listener, (host, int(port)))
            threading.Thread(target=self._accept, args=arguments, daemon=True).start()

    def __enter__(self) -> "HeldAnswers":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for each in self._sockets:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # It is not connected any more.
            each.close()
        self.release()

    def hold(self) -> None:
        self._sent = self._held = 0
        for gate in self._gates:
            gate.clear()

    def release(self) -> None:
        for gate in self._gates:
            gate.set()

    def wait_held(self) -> None:
        """Until the answer to a Produce request is held."""
        until(lambda: self._held > 0)

    def wait_sent(self, requests: int) -> None:
        """Until this many Produce requests were sent since `hold`."""
        until(lambda: self._sent >= requests)

    def _accept(self, listener: socket.socket, address: tuple[str, int]) -> None:
        while True:
            try:
                client, _ = listener.accept()
                broker = socket.create_connection(address)
            except OSError:
                return
            self._sockets += [client, broker]
            gate = threading.Event()
            gate.set()
            self._gates.append(gate)
            produced: set[bytes] = set()
            for pump, arguments in (
                (self._pass_requests, (client, broker, produced)),
                (self._pass_answers, (broker, client, produced, gate)),
            ):
                threading.Thread(target=pump, args=arguments, daemon=True).start()

    def _pass_requests(
        self, client: socket.socket, broker: socket.socket, produced: set[bytes]
    ) -> None:
        """`produced`: the correlation ids of Produce requests."""
        try:
            for data in _frames(client):
                if data[4:6] == _PRODUCE:
                    produced.add(data[8:12])
                    self._sent += 1
                broker.sendall(data)
            broker.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # One side has closed the connection.

    def _pass_answers(
        self,
        broker: socket.socket,
        client: socket.socket,
        produced: set[bytes],
        gate: threading.Event,
    ) -> None:
        try:
            for data in _frames(broker):
                for real, own in self._own.items():
                    data = data.replace(real, own)
                if not gate.is_set():
                    self._held += data[4:8] in produced
                    gate.wait()
                client.sendall(data)
            client.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # One side has closed the connection.


def _frames(source: socket.socket) -> Iterator[bytes]:
    """Each request or answer with its length, however many arrive at once."""
    with source.makefile("rb") as stream:
        while head := stream.read(_INT32.size):
            yield head + stream.read(*_INT32.unpack(head))
