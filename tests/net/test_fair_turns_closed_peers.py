"""Pipelined requests of peers that have closed their connection: what is still served."""

import asyncio
import socket
import struct

import pytest

from suwi.net.answers import NO_REPLY, Answer, Exclusive, Later, NoReply, Reply
from suwi.net.listener import Listener
from tests.net.support import (
    Served,
    Waits,
    answering,
    burst,
    echo,
    limits,
    replies,
    run,
    serving,
    settle,
    until,
)

DESCRIBE_CONFIGS = 32


def send_and_leave(listener: Listener, data: bytes, *, reset: bool = False) -> None:
    """All of it before the broker has accepted the connection."""
    with socket.create_connection(("127.0.0.1", listener.port)) as peer:
        peer.sendall(data)
        if reset:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.mark.parametrize("reset", [False, True])
def test_requests_of_a_peer_that_has_closed_are_not_served_in_a_further_turn(reset: bool) -> None:
    async def scenario() -> None:
        served = Served()
        async with serving(served.by("gone"), limits(10)) as listener:
            send_and_leave(listener, burst(1_000, api_key=DESCRIBE_CONFIGS), reset=reset)
            send_and_leave(listener, burst(1_000, api_key=DESCRIBE_CONFIGS), reset=reset)
            while not served.order and not reset:  # noqa: ASYNC110 (nothing tells us)
                await asyncio.sleep(0)
            await until(lambda: not listener.connections)
            assert len(served.order) <= 2 * 10  # the first turn of each

    run(scenario)


def test_pipelined_exclusive_requests_end_with_the_peer() -> None:
    async def scenario() -> None:
        served = Served(lambda c, p: Exclusive(asyncio.sleep(0.001, Reply([b"done"]))))
        async with serving(served.by("gone")) as listener:
            send_and_leave(listener, burst(1_000, api_key=DESCRIBE_CONFIGS))
            await until(lambda: bool(served.order))
            await until(lambda: not listener.connections)
            assert served.order == [("gone", 0)]

    run(scenario)


def test_what_a_producer_sent_without_wanting_acks_is_served_although_it_has_closed() -> None:
    # As Kafka does it: a closed connection goes on until the first request that has a reply.
    async def scenario() -> None:
        served = Served(lambda c, p: NO_REPLY if c < 5_000 else echo(c, p))
        async with serving(served.by("producer"), limits(10)) as listener:
            send_and_leave(listener, burst(5_500, bytes(80)))
            await until(lambda: bool(served.order))
            await until(lambda: not listener.connections)
            assert [c for _, c in served.order] == list(range(5_001))

    run(scenario)


def test_what_takes_a_while_without_a_reply_is_served_although_the_producer_has_closed() -> None:
    async def scenario() -> None:
        def answer(correlation_id: int, payload: memoryview) -> Answer:
            appended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            async def append() -> Reply | NoReply:
                await asyncio.sleep(0.001)
                appended.set_result(None)
                return NO_REPLY if correlation_id < 10 else await waits(0, payload).reply  # type: ignore[union-attr]

            return Exclusive(append(), appended)

        waits = Waits()
        served = Served(answer)
        async with serving(served.by("producer")) as listener:
            send_and_leave(listener, burst(30, bytes(80)))
            await until(lambda: bool(served.order))
            await until(lambda: not listener.connections)
            assert [c for _, c in served.order] == list(range(11))
            await settle()
            assert waits.futures[0].cancelled()

    run(scenario)


@pytest.mark.parametrize("kind", [Later, Exclusive])
def test_the_wait_for_a_reply_that_nobody_hears_is_ended(
    kind: type[Later] | type[Exclusive],
) -> None:
    async def scenario() -> None:
        waits = Waits(kind)
        served = Served(lambda c, p: waits(c, p) if c == 20 else NO_REPLY)
        async with serving(served.by("producer"), limits(10)) as listener:
            send_and_leave(listener, burst(100))
            await until(lambda: bool(served.order))
            await until(lambda: not listener.connections)
            await settle()
            assert waits.futures[20].cancelled()
            assert len(served.order) == 21

    run(scenario)


def test_a_reply_that_nobody_hears_is_released() -> None:
    async def scenario() -> None:
        released: list[int] = []
        served = Served(
            lambda c, p: Reply([b""], lambda: released.append(c)) if c == 20 else NO_REPLY
        )
        async with serving(served.by("producer"), limits(10)) as listener:
            send_and_leave(listener, burst(100))
            await until(lambda: bool(served.order))
            await until(lambda: not listener.connections)
            assert released == [20]

    run(scenario)


def test_a_peer_that_is_there_gets_all_its_replies_over_many_turns() -> None:
    async def scenario() -> None:
        async with serving(answering(echo), limits(10)) as listener:
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            writer.write(burst(2_000, b"payload"))
            received = await reader.readexactly(2_000 * 15)
            assert replies(received) == [(i, b"payload") for i in range(2_000)]
            writer.close()

    run(scenario)
