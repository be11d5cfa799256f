"""Responses are extracted from the byte stream, however the network splits it."""

import asyncio
import struct
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
            connection.data_received(stream[at : at + piece_bytes])
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
            connection.data_received(stream[at : at + piece_bytes])
        assert [bytes(await answer) for answer in answers] == [body, b"next"]

    asyncio.run(scenario())


def test_memory_grows_with_received_bytes_not_with_the_announced_length() -> None:
    async def scenario() -> None:
        connection = PeerConnection("test")
        connection.connection_made(Wire())
        tracemalloc.start()
        try:
            connection.data_received(struct.pack(">i", 900_000_000) + b"x")
            for _ in range(10):
                connection.data_received(bytes(10_000))
            assert tracemalloc.get_traced_memory()[1] < 1_000_000
        finally:
            tracemalloc.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize("size_bytes", [-1, 2**31 - 1])
def test_an_impossible_frame_length_closes_the_connection(size_bytes: int) -> None:
    async def scenario() -> None:
        connection, wire = PeerConnection("test"), Wire()
        connection.connection_made(wire)
        connection.data_received(struct.pack(">i", size_bytes))
        assert wire.aborted

    asyncio.run(scenario())
