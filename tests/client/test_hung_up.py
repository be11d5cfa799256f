"""A peer that is gone is noticed before the loop has read from its connection."""

import asyncio
import socket

from suwi.client.connection import PeerConnection


def test_a_peer_that_hung_up_is_seen_at_once() -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            connection = await PeerConnection.open(*listener.getsockname())
            accepted, _ = listener.accept()
            assert not connection.is_hung_up
            accepted.close()
            assert connection.is_open, "the loop has not heard of it"
            assert connection.is_hung_up
        ended = asyncio.Event()
        connection.when_ended(lambda broke: ended.set() if broke else None)
        async with asyncio.timeout(30):
            await ended.wait()
        assert connection.is_hung_up

    asyncio.run(scenario())


def test_a_connection_that_is_closed_here_did_not_break() -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            connection = await PeerConnection.open(*listener.getsockname())
            told: list[bool] = []
            connection.when_ended(told.append)
            await connection.close()
            assert told == [False]

    asyncio.run(scenario())
