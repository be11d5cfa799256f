"""Responses are extracted from the byte stream, however the network splits it."""

import asyncio
import struct
import subprocess
import sys
import tracemalloc

import pytest

from suwi.client.connection import PeerConnection
from suwi.wire.versions import ApiKey


class Wire(asyncio.Transport):
    """A fake transport that discards what is written and can be aborted."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = False

    def writelines(self, pieces: object) -> None:
        pass

    def abort(self) -> None:
        self.aborted = True


def receive(connection: PeerConnection, data: bytes) -> None:
    """Deliver bytes as an event loop does: into the connection's buffer, as many as fit."""
    while data:
        buffer = connection.get_buffer(-1)
        size_bytes = min(len(buffer), len(data))
        buffer[:size_bytes] = data[:size_bytes]
        connection.buffer_updated(size_bytes)
        data = data[size_bytes:]


def frame(correlation_id: int, body: bytes) -> bytes:
    return struct.pack(">ii", 4 + len(body), correlation_id) + body


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 4, 5, 7, 64, 1000])
def test_responses_arrive_complete_however_the_stream_is_split(piece_bytes: int) -> None:
    bodies = [b"", b"a", b"bc" * 50, b"d" * 700]

    async def scenario() -> None:
        connection = PeerConnection("test")
        connection.connection_made(Wire())
        answers = [connection.send(ApiKey.HEARTBEAT, 0, [b""]) for _ in bodies]
        stream = b"".join(frame(i + 1, body) for i, body in enumerate(bodies))
        for at in range(0, len(stream), piece_bytes):
            receive(connection, stream[at : at + piece_bytes])
        assert [bytes(await answer) for answer in answers] == bodies

    asyncio.run(scenario())


@pytest.mark.parametrize("piece_bytes", [4093, 65_536, 300_000])
def test_a_long_response_arrives_complete(piece_bytes: int) -> None:
    body = bytes(range(256)) * 4000

    async def scenario() -> None:
        connection = PeerConnection("test")
        connection.connection_made(Wire())
        answers = [connection.send(ApiKey.HEARTBEAT, 0, [b""]) for _ in range(2)]
        stream = frame(1, body) + frame(2, b"next")
        for at in range(0, len(stream), piece_bytes):
            receive(connection, stream[at : at + piece_bytes])
        assert [bytes(await answer) for answer in answers] == [body, b"next"]

    asyncio.run(scenario())


def test_memory_grows_with_received_bytes_not_with_the_announced_length() -> None:
    async def scenario() -> None:
        connection = PeerConnection("test")
        connection.connection_made(Wire())
        tracemalloc.start()
        try:
            receive(connection, struct.pack(">i", 900_000_000) + b"x")
            for _ in range(10):
                receive(connection, bytes(10_000))
            assert tracemalloc.get_traced_memory()[1] < 1_000_000
        finally:
            tracemalloc.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize("size_bytes", [-1, 2**31 - 1])
def test_an_impossible_frame_length_closes_the_connection(size_bytes: int) -> None:
    async def scenario() -> None:
        connection, wire = PeerConnection("test"), Wire()
        connection.connection_made(wire)
        receive(connection, struct.pack(">i", size_bytes))
        assert wire.aborted

    asyncio.run(scenario())


def test_a_response_that_is_still_viewed_is_not_overwritten_by_the_next() -> None:
    bodies = [bytes([number]) * 300_000 for number in range(4)]

    async def scenario() -> None:
        connection = PeerConnection("test")
        connection.connection_made(Wire())
        kept = []
        for number, body in enumerate(bodies):
            answer = connection.send(ApiKey.HEARTBEAT, 0, [b""])
            receive(connection, frame(number + 1, body))
            kept.append((await answer)[1000:2000])
        assert [bytes(view) for view in kept] == [body[1000:2000] for body in bodies]

    asyncio.run(scenario())


def test_the_memory_of_a_large_response_is_used_again_until_a_small_one_arrives() -> None:
    async def scenario() -> None:
        connection = PeerConnection("test")
        connection.connection_made(Wire())
        memory = []
        for number, size_bytes in enumerate([900_000, 800_000, 900_000, 10]):
            answer = connection.send(ApiKey.HEARTBEAT, 0, [b""])
            receive(connection, frame(number + 1, bytes(size_bytes)))
            memory.append(id((await answer).obj))
            del answer
        assert memory[0] == memory[1] == memory[2]
        assert len(connection._memory._memory) == 0

    asyncio.run(scenario())


def test_a_forked_process_does_not_share_the_receive_buffer() -> None:
    """Spark forks its Python workers, which may have imported the client before."""
    script = """
import os
from suwi.client.connection import _shared
_shared.buffer[:3] = b"own"
child = os.fork()
if child == 0:
    _shared.buffer[:3] = b"new"
    os._exit(0)
os.waitpid(child, 0)
assert bytes(_shared.buffer[:3]) == b"own"
"""
    subprocess.run([sys.executable, "-c", script], check=True)
