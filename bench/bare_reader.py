"""The upper bound for a consumer: a server that only finds the position in a file and sends.

It is a proxy of a broker that forwards everything except fetches of one topic, whose file it has
scanned beforehand. It answers those with two writes and a sendfile, in a thread for each
connection: no sessions, no checks, no other partition. The rest is the cost of a broker.
"""

import bisect
import json
import os
import socket
import struct
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from suwi.wire.primitives import uvarint
from suwi.wire.versions import ApiKey

_TOPIC_IDS_FROM, _NO_REPLICA_ID_FROM = 13, 15
_SEND_BUFFER_BYTES = 512 * 1024  # as Suwi's
_HEADER = struct.Struct(">hhih")  # API, version, correlation id, length of the client id
# max wait, min and max bytes, isolation, session id and epoch, number of topics + 1, topic id,
# number of partitions + 1, index, leader epoch, offset, last epoch, log start, max bytes.
_ASKED = struct.Struct(">iiibiiB16sBiiqiqi")
# correlation id, no tags, throttle time, error, no session, one topic, its id, one partition, its
# index, error, high watermark, last stable offset, log start, no aborted transactions, any replica.
_ANSWER = struct.Struct(">iBihiB16sBihqqqBi")
_TAGS = bytes(3)
_BATCH = struct.Struct(">qi11xi")  # base offset, length, last offset delta


class _File(NamedTuple):
    """A segment, and the position of each of its batches."""

    descriptor: int
    offsets: list[int]
    positions: list[int]
    size_bytes: int
    end_offset: int


def _look_through(directory: Path) -> _File:
    (path,) = directory.glob("*.log")
    data = path.read_bytes()
    offsets, positions = [], []
    at = end_offset = 0
    while at < len(data):
        base_offset, batch_bytes, last_delta = _BATCH.unpack_from(data, at)
        offsets.append(base_offset)
        positions.append(at)
        end_offset = base_offset + last_delta + 1
        at += 12 + batch_bytes
    return _File(os.open(path, os.O_RDONLY), offsets, positions, len(data), end_offset)


class _Server:
    def __init__(self, broker: tuple[str, int], file: _File) -> None:
        self._broker = broker
        self._file = file
        self.listener = socket.create_server(("127.0.0.1", 0))
        # Every client looks for brokers first: the response names this proxy.
        self._there = b"127.0.0.1" + struct.pack(">i", broker[1])
        self._here = b"127.0.0.1" + struct.pack(">i", self.listener.getsockname()[1])

    def serve(self) -> None:
        while True:
            connection, _ = self.listener.accept()
            threading.Thread(target=self._serve_one, args=(connection,), daemon=True).start()

    def _serve_one(self, client: socket.socket) -> None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with (
            suppress(ConnectionError),  # Consumers disconnect in the middle of a response.
            client,
            socket.create_connection(self._broker) as broker,
        ):
            while frame := _frame(client):
                if not self._answer(client, frame):
                    broker.sendall(frame)
                    client.sendall(_frame(broker).replace(self._there, self._here))

    def _answer(self, client: socket.socket, frame: bytes) -> bool:
        """Answer a fetch from one partition; forward everything else to the broker."""
        api_key, version, correlation_id, name_bytes = _HEADER.unpack_from(frame, 4)
        if api_key != ApiKey.FETCH or version < _TOPIC_IDS_FROM:
            return False
        body_at = 4 + _HEADER.size + max(0, name_bytes) + 1
        if version < _NO_REPLICA_ID_FROM:
            body_at += 4
        if len(frame) < body_at + _ASKED.size:
            return False
        (max_wait_ms, *_, topics, topic_id, partitions, index, _, offset, _, _, bytes_max) = (
            _ASKED.unpack_from(frame, body_at)
        )
        if (topics, partitions, index) != (2, 2, 0):
            return False
        file = self._file
        if offset < file.end_offset:
            position = file.positions[bisect.bisect_right(file.offsets, offset) - 1]
        else:
            time.sleep(max_wait_ms / 1000)
            position = file.size_bytes
        end = min(position + bytes_max, file.size_bytes)
        watermark = file.end_offset
        answer = _ANSWER.pack(
            *(correlation_id, 0, 0, 0, 0, 2, topic_id, 2, 0, 0),
            *(watermark, watermark, 0, 0, -1),
        ) + uvarint(end - position + 1)
        answer_bytes = len(answer) + end - position + len(_TAGS)
        client.sendall(struct.pack(">i", answer_bytes) + answer)
        while position < end:
            position += os.sendfile(client.fileno(), file.descriptor, position, end - position)
        client.sendall(_TAGS)
        return True


def _frame(connection: socket.socket) -> bytes:
    """The next frame, with its size; empty at the end."""
    size = connection.recv(4, socket.MSG_WAITALL)
    if not size:
        return b""
    return size + connection.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL)


def main() -> None:
    options = json.loads(sys.argv[1])
    host, port = options["broker"].split(":")
    server = _Server((host, int(port)), _look_through(Path(options["directory"])))
    print(f"127.0.0.1:{server.listener.getsockname()[1]}", flush=True)
    server.serve()


if __name__ == "__main__":
    main()
