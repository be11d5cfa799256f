"""The least that any server must do, done serially and without a broker around it.

`append`: receive frames, CRC-32C over each batch, write it to a file, answer. `send`: for each
request send 1 MiB of a file with sendfile. `relay`: answer a waiting fetch as soon as a produce
arrives on another connection. All are plain blocking loops around C calls; the rest is the cost of
a broker.
"""

import json
import os
import socket
import struct
import sys

from crc32c import crc32c

from bench.clients.drain import FETCH_BYTES
from bench.messages import batch_of, fetch_request, produce_request

_BUFFER_BYTES = 256 * 1024
_REPLY = struct.pack(">i", 56) + bytes(56)
_SEND_PIECES = 64
_CRC_COVERS_FROM = 21


def serve_append(connection: socket.socket, path: str, batch_bytes: int) -> None:
    """Accept produce requests that all have one batch of this size."""
    batch, _ = batch_of(batch_bytes)
    request = produce_request("bound", batch, -1)
    request_bytes, batch_at = len(request), request.index(batch[:_CRC_COVERS_FROM])
    crc_at, batch_end = batch_at + _CRC_COVERS_FROM, batch_at + batch_bytes
    buffer = memoryview(bytearray(max(_BUFFER_BYTES, 2 * request_bytes)))
    whole_only = request_bytes > _BUFFER_BYTES
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    position = held = 0
    while True:
        # A large frame is read to its end, so that no bytes of the next have to be moved.
        count = connection.recv_into(buffer[held : request_bytes if whole_only else len(buffer)])
        if not count:
            break
        held += count
        at = 0
        while held - at >= request_bytes:
            crc32c(buffer[at + crc_at : at + batch_end])
            os.pwrite(file, buffer[at + batch_at : at + batch_end], position)
            position += batch_bytes
            at += request_bytes
        if at:
            connection.sendall(_REPLY * (at // request_bytes))
            rest = held - at
            buffer[:rest] = buffer[at:held]
            held = rest
    os.close(file)


def serve_send(connection: socket.socket, path: str, topic: str) -> None:
    """Accept fetch requests for `topic`; each is answered with the next piece of a file."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    for piece in range(_SEND_PIECES):
        os.pwrite(file, bytes(FETCH_BYTES), piece * FETCH_BYTES)
    request_bytes = len(fetch_request(topic, 0, FETCH_BYTES))
    header = struct.pack(">i", FETCH_BYTES + 60) + bytes(60)
    buffer = memoryview(bytearray(4096))
    held = piece = 0
    while count := connection.recv_into(buffer):
        held += count
        while held >= request_bytes:
            held -= request_bytes
            connection.sendall(header)
            at = piece % _SEND_PIECES * FETCH_BYTES
            end = at + FETCH_BYTES
            while at < end:
                at += os.sendfile(connection.fileno(), file, at, end - at)
            piece += 1
    os.close(file)


def serve_relay(producer: socket.socket, consumer: socket.socket, path: str) -> None:
    """A produce, then alternately a fetch and a produce, which answers both."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    position = 0
    _frame(producer)
    producer.sendall(_REPLY)
    while _frame(consumer):
        batch = _frame(producer)
        crc32c(batch)
        position += os.pwrite(file, batch, position)
        consumer.sendall(_REPLY)
        producer.sendall(_REPLY)
    os.close(file)


def _frame(connection: socket.socket) -> bytes:
    """The next request, which a client sends in one piece; empty at the end."""
    data = connection.recv(_BUFFER_BYTES)
    while data and len(data) < 4 + struct.unpack_from(">i", data)[0]:
        data += connection.recv(_BUFFER_BYTES)
    return data


def main() -> None:
    options = json.loads(sys.argv[1])
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"127.0.0.1:{listener.getsockname()[1]}", flush=True)
    connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with connection:
        if options["work"] == "append":
            serve_append(connection, options["path"], options["batch_bytes"])
        elif options["work"] == "relay":
            consumer, _ = listener.accept()
            consumer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with consumer:
                serve_relay(connection, consumer, options["path"])
        else:
            serve_send(connection, options["path"], options["topic"])


if __name__ == "__main__":
    main()
