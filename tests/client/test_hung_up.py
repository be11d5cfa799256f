"""A disconnected peer is noticed before the event loop has read from its connection."""

import asyncio
import socket

import pytest

from suwi.client.connection import ConnectionLost, PeerConnection
from suwi.wire.versions import ApiKey


def test_a_disconnected_peer_is_noticed_at_once() -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            connection = await PeerConnection.open(*listener.getsockname())
            accepted, _ = listener.accept()
            assert not connection.is_hung_up
            accepted.close()
            assert connection.is_open, "the event loop has not noticed it yet"
            assert connection.is_hung_up
        ended = asyncio.Event()
        connection.when_ended(lambda broke: ended.set() if broke else None)
        async with asyncio.timeout(30):
            await ended.wait()
        assert connection.is_hung_up

    asyncio.run(scenario())


def test_a_connection_closed_by_this_side_does_not_count_as_broken() -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            connection = await PeerConnection.open(*listener.getsockname())
            calls: list[bool] = []
            connection.when_ended(calls.append)
            await connection.close()
            assert calls == [False]
            with pytest.raises(ConnectionLost, match="this side closed the connection"):
                await connection.send(ApiKey.API_VERSIONS, 0, [])

    asyncio.run(scenario())


def test_a_connection_is_not_open_from_the_moment_this_side_closes_it() -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            connection = await PeerConnection.open(*listener.getsockname())
            connection.abort()
            assert not connection.is_open
            await connection.lost()

    asyncio.run(scenario())
