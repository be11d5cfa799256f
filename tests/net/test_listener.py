"""Listeners and connections on real sockets, on every event loop that is installed."""

import asyncio
import gc
import os
import resource
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from suwi.net.answers import Answer, Exclusive, Later, NoReply, Reply
from suwi.net.limits import Limits
from suwi.net.listener import Budget, Listener
from tests.net.support import (
    Region,
    answering,
    client,
    echo,
    replies,
    request,
    serving,
    until,
)

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    factory = None
    if request.param == "uvloop":
        factory = pytest.importorskip("uvloop").new_event_loop

    def run_on_loop(scenario: Coroutine[Any, Any, None]) -> None:
        try:
            with asyncio.Runner(loop_factory=factory) as runner:
                runner.run(scenario)
        finally:
            scenario.close()

    return run_on_loop


def open_descriptors() -> int:
    return len(os.listdir("/dev/fd"))


def rss_bytes() -> int:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except FileNotFoundError:
        pytest.skip("no /proc")


def test_pipelined_requests_are_answered_in_order_though_later_ones_end_first(run: Run) -> None:
    async def scenario() -> None:
        waits: list[asyncio.Future[Reply | NoReply]] = []

        def answer(correlation_id: int, payload: memoryview) -> Answer:
            if correlation_id % 3:
                return echo(correlation_id, payload)
            waits.append(asyncio.get_running_loop().create_future())
            return Later(waits[-1])

        async with serving(answering(answer)) as listener, client(listener) as peer:
            peer.send(*(request(i, b"%d" % i) for i in range(30)))
            await until(lambda: len(waits) == 10)
            for future in reversed(waits):
                future.set_result(Reply([b"later"]))
            for i in range(30):
                assert await peer.reply() == (i, b"%d" % i if i % 3 else b"later")

    run(scenario())


def test_frames_of_all_sizes_from_many_clients_at_once(run: Run) -> None:
    async def scenario() -> None:
        async with serving(answering(echo)) as listener:

            async def talk(number: int) -> None:
                sizes = [0, 1, 70_000, 300_000, 1_000_000, 1_048_576, 262_132, 3_000_000]
                async with client(listener) as peer:
                    sent = [bytes([number, i]) * (size // 2) for i, size in enumerate(sizes)]
                    peer.send(*(request(i, payload) for i, payload in enumerate(sent)))
                    for i, payload in enumerate(sent):
                        assert await peer.reply() == (i, payload)

            await asyncio.gather(*(talk(number) for number in range(6)))
            assert listener._budget.buffer_pool.allocated_bytes == 0

    run(scenario())


def test_frames_that_arrive_byte_by_byte(run: Run) -> None:
    async def scenario() -> None:
        async with serving(answering(echo)) as listener, client(listener) as peer:
            for byte in request(1, b"one") + request(2, b"two"):
                peer.send(bytes([byte]))
                await peer.writer.drain()
                await asyncio.sleep(0)
            assert await peer.reply() == (1, b"one")
            assert await peer.reply() == (2, b"two")

    run(scenario())


def test_slow_readers_cost_no_more_memory_than_their_limit(run: Run) -> None:
    async def scenario() -> None:
        limits = Limits(in_flight_bytes_max=1_000_000)

        def answer(correlation_id: int, payload: memoryview) -> Answer:
            return Reply([bytes([correlation_id % 256]) * 100_000])

        async with serving(answering(answer), limits) as listener:
            before = rss_bytes()
            peers = []
            for _ in range(10):
                peer = socket.create_connection(("127.0.0.1", listener.port))
                peer.sendall(b"".join(request(i) for i in range(1_000)))
                peers.append(peer)
            await until(
                lambda: (
                    len(listener.connections) == 10
                    and all(not c._reading for c in listener.connections)
                )
            )
            for connection in listener.connections:
                assert connection._output.queued_bytes <= 1_200_000
                assert connection._transport.get_write_buffer_size() <= 300_000
            # Without limits this would be 1 GB.
            assert rss_bytes() - before < 40_000_000
            loop = asyncio.get_running_loop()
            received = bytearray()
            peers[0].setblocking(False)
            while len(received) < 1_000 * 100_008:
                received += await loop.sock_recv(peers[0], 1 << 20)
            assert [c for c, _ in replies(bytes(received))] == list(range(1_000))
            for peer in peers:
                peer.close()

    run(scenario())


def test_unfinished_frames_share_a_memory_limit_and_still_all_complete(run: Run) -> None:
    async def scenario() -> None:
        limits = Limits(unfinished_bytes_max=2_000_000)
        frame = request(1, b"x" * 1_000_000)
        async with serving(answering(echo), limits) as listener, AsyncExitStack() as stack:
            buffers = listener._budget.buffer_pool
            peers = [await stack.enter_async_context(client(listener)) for _ in range(12)]
            for peer in peers:
                peer.send(frame[:900_000])
            await until(lambda: buffers.is_exhausted)
            assert buffers.allocated_bytes <= 2_000_000 + (1 << 20) + 12 * 512 * 1024
            for peer in peers:
                peer.send(frame[900_000:])
            for peer in peers:
                assert await peer.reply() == (1, b"x" * 1_000_000)
            assert buffers.allocated_bytes == 0

    run(scenario())


def test_peers_that_pin_memory_with_stalled_frames_do_not_hold_up_others(run: Run) -> None:
    async def scenario() -> None:
        limits = Limits(unfinished_bytes_max=1_000_000, frame_ms_max=5_000)
        frame = request(1, b"x" * 1_000_000)
        async with serving(answering(echo), limits) as listener, AsyncExitStack() as stack:
            peers = [await stack.enter_async_context(client(listener)) for _ in range(6)]
            for peer in peers[:3]:
                peer.send(frame[:900_000])
            await until(lambda: listener._budget.buffer_pool.is_exhausted)
            for peer in peers[3:]:
                peer.send(frame)
            for peer in peers[3:]:
                assert await peer.reply() == (1, b"x" * 1_000_000)
            for peer in peers[:3]:
                assert await peer.closed() == b""

    run(scenario())


def test_connections_are_limited_in_total_and_per_address(run: Run) -> None:
    async def scenario() -> None:
        for limits in (Limits(connections_max=2), Limits(connections_per_ip_max=2)):
            async with serving(answering(echo), limits) as listener:
                async with client(listener) as first, client(listener) as second:
                    for peer in (first, second):
                        peer.send(request(1))
                        await peer.reply()
                    async with client(listener) as third:
                        assert await third.closed() == b""
                    second.send(request(2))
                    await second.reply()
                await until(lambda: not listener.connections)
                async with client(listener) as fourth:
                    fourth.send(request(1))
                    await fourth.reply()

    run(scenario())


def test_a_storm_of_connections_takes_few_descriptors_beyond_the_limit() -> None:
    limit, storm = 5, 400

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with serving(answering(echo), Limits(connections_max=limit)) as listener:
            peers = [socket.socket() for _ in range(storm)]
            before = open_descriptors()
            peak = 0

            def watch() -> None:
                nonlocal peak
                peak = max(peak, open_descriptors() - before)
                loop.call_soon(watch)

            for peer in peers:  # All wait in the kernel: the loop has no turn meanwhile.
                peer.connect(("127.0.0.1", listener.port))
                peer.setblocking(False)
            watch()
            ends = [asyncio.create_task(loop.sock_recv(peer, 1)) for peer in peers]
            await until(lambda: sum(end.done() for end in ends) == storm - limit)
            assert all(end.exception() or end.result() == b"" for end in ends if end.done())
            # They are accepted some at a time, and looked at two turns later.
            assert peak < limit + 100
            for end in ends:
                end.cancel()
            for peer in peers:
                peer.close()

    asyncio.run(scenario())


def test_an_idle_connection_is_closed_in_time_and_a_waiting_one_is_not(run: Run) -> None:
    async def scenario() -> None:
        limits = Limits(idle_ms_max=40)
        wait: asyncio.Future[Reply | NoReply] = asyncio.get_running_loop().create_future()
        async with (
            serving(answering(lambda c, p: Exclusive(wait)), limits) as listener,
            client(listener) as idle,
            client(listener) as waiting,
        ):
            waiting.send(request(1))
            assert await idle.closed() == b""
            wait.set_result(Reply([b"at last"]))
            assert await waiting.reply() == (1, b"at last")
            assert await waiting.closed() == b""

    run(scenario())


def test_a_frame_that_never_completes_is_cut_off(run: Run) -> None:
    async def scenario() -> None:
        limits = Limits(frame_ms_max=40, frame_bytes_per_s_min=1_000_000)
        async with serving(answering(echo), limits) as listener:
            for sent in (2, 10, 500_000):
                async with client(listener) as peer:
                    peer.send(request(1, bytes(1_000_000))[:sent])
                    assert await peer.closed() == b""
            await until(lambda: listener._budget.buffer_pool.allocated_bytes == 0)

    run(scenario())


def test_a_disconnect_cancels_a_long_poll(run: Run) -> None:
    async def scenario() -> None:
        started, cancelled = asyncio.Event(), asyncio.Event()

        async def poll() -> Reply:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
            raise AssertionError

        async with serving(answering(lambda c, p: Exclusive(poll()))) as listener:
            async with client(listener) as peer:
                peer.send(request(1))
                await started.wait()
            await cancelled.wait()
            await until(lambda: not listener.connections)

    run(scenario())


def test_a_graceful_stop_lets_replies_leave_and_refuses_newcomers(run: Run) -> None:
    async def scenario() -> None:
        wait: asyncio.Future[Reply | NoReply] = asyncio.get_running_loop().create_future()
        async with (
            serving(answering(lambda c, p: Later(wait))) as listener,
            client(listener) as busy,
            client(listener) as idle,
        ):
            busy.send(request(1))
            await until(lambda: any(c._order.slots for c in listener.connections))
            stopping = asyncio.ensure_future(listener.stop(grace_s=60))
            assert await idle.closed() == b""
            with pytest.raises(ConnectionError):
                await asyncio.open_connection("127.0.0.1", listener.port)
            wait.set_result(Reply([bytes(3_000_000)]))
            assert await busy.reply() == (1, bytes(3_000_000))
            assert await busy.closed() == b""
            await stopping
            assert listener._budget.connections == 0

    run(scenario())


def test_a_stop_closes_what_was_accepted_at_that_moment(run: Run) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with serving(answering(lambda c, p: Reply([p]))) as listener:
            with socket.create_connection(("127.0.0.1", listener.port), 60) as peer:
                await asyncio.sleep(0)
                # Accepted in this round; in the next it would get its transport, but this is first.
                stopping = loop.create_task(listener.stop())
                assert await loop.run_in_executor(None, peer.recv, 1) == b""
                await stopping
        gc.collect()  # tells of what was left open

    run(scenario())


def test_a_stop_does_not_wait_longer_than_its_grace(run: Run) -> None:
    async def scenario() -> None:
        wait: asyncio.Future[Reply | NoReply] = asyncio.get_running_loop().create_future()
        async with (
            serving(answering(lambda c, p: Later(wait))) as listener,
            client(listener) as peer,
        ):
            peer.send(request(1))
            await until(lambda: any(c._order.slots for c in listener.connections))
            await listener.stop(grace_s=0.02)
            assert await peer.closed() == b""
            assert wait.cancelled()

    run(scenario())


def test_a_port_in_use_is_an_error_and_a_stopped_listeners_port_is_free(run: Run) -> None:
    async def scenario() -> None:
        async with serving(answering(echo)) as listener:
            second = Listener(
                "SECOND", "127.0.0.1", listener.port, answering(echo), Budget(Limits())
            )
            with pytest.raises(OSError, match="in use"):
                await second.start()
            async with client(listener) as peer:
                peer.send(request(1))
                await peer.reply()
                await listener.stop(grace_s=0)
            await second.start()
            async with client(second) as peer:
                peer.send(request(2, b"again"))
                assert await peer.reply() == (2, b"again")
            await second.stop(grace_s=0)

    run(scenario())


def test_idle_connections_are_cheap(run: Run, record_property: Callable[..., None]) -> None:
    count = 1_000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 2 * count + 200:
        wanted = 2 * count + 200
        if hard != resource.RLIM_INFINITY and hard < wanted:
            pytest.skip("too few descriptors allowed")
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))

    async def scenario() -> None:
        async with serving(answering(echo)) as listener:
            gc.collect()
            before = rss_bytes()
            peers = [socket.create_connection(("127.0.0.1", listener.port)) for _ in range(count)]
            for peer in peers:
                peer.sendall(request(1, b"hello"))
            await until(lambda: len(listener.connections) == count)
            for peer in peers:
                peer.setblocking(False)
                assert await asyncio.get_running_loop().sock_recv(peer, 100)
            gc.collect()
            each = (rss_bytes() - before) / count
            record_property("bytes_per_idle_connection", each)
            print(f"{each:.0f} bytes per idle connection, both ends")
            assert each < 40_000
            for peer in peers:
                peer.close()

    run(scenario())


class FixedContext(NamedTuple):
    context: ssl.SSLContext

    def current(self) -> ssl.SSLContext:
        return self.context


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[FixedContext, ssl.SSLContext]:
    """A server's and a client's context that trust each other."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl command")
    folder: Path = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    subprocess.run(
        f"{openssl} req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost "
        f"-addext subjectAltName=DNS:localhost -keyout {key} -out {certificate}".split(),
        check=True,
        capture_output=True,
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    return FixedContext(server), ssl.create_default_context(cafile=str(certificate))


def test_tls_carries_requests_large_replies_and_files(
    run: Run, tls: tuple[FixedContext, ssl.SSLContext]
) -> None:
    server, trusting = tls
    data = bytes(range(256)) * 20_000

    async def scenario() -> None:
        memory = Region(data)

        def answer(correlation_id: int, payload: memoryview) -> Answer:
            return Reply([bytes(payload), memory.region(), bytes(payload)])

        async with (
            serving(answering(answer), tls=server) as listener,
            client(listener, ssl=trusting, server_hostname="localhost") as peer,
        ):
            payloads = [b"", b"small", bytes(1_500_000)]
            for _ in range(2):
                peer.send(*(request(i, payload) for i, payload in enumerate(payloads)))
                for i, payload in enumerate(payloads):
                    assert await peer.reply() == (i, payload + data + payload)

    run(scenario())


def test_a_slow_reader_over_tls_is_held_back_too(
    run: Run, tls: tuple[FixedContext, ssl.SSLContext]
) -> None:
    server, trusting = tls

    async def scenario() -> None:
        limits = Limits(in_flight_bytes_max=1_000_000)
        served = 0

        def answer(correlation_id: int, payload: memoryview) -> Answer:
            nonlocal served
            served += 1
            return Reply([bytes(100_000)])

        async with serving(answering(answer), limits, tls=server) as listener:
            options = {"ssl": trusting, "server_hostname": "localhost", "limit": 10_000}
            async with client(listener, **options) as peer:
                peer.send(*(request(i) for i in range(500)))
                await until(lambda: any(not c._reading for c in listener.connections))
                [connection] = listener.connections
                assert connection._output.queued_bytes <= 1_200_000
                assert served < 400
                for i in range(500):
                    assert await peer.reply() == (i, bytes(100_000))

    run(scenario())


def test_over_tls_too_turns_are_taken_and_a_peer_that_has_closed_is_noticed(
    run: Run, tls: tuple[FixedContext, ssl.SSLContext]
) -> None:
    server, trusting = tls

    async def scenario() -> None:
        served = 0

        def answer(correlation_id: int, payload: memoryview) -> Answer:
            nonlocal served
            served += 1
            if served == 505:
                peer.writer.transport.abort()  # with thousands of its requests at hand
            return Reply([b""])

        limits = Limits(turn_requests_max=10, turn_ms_max=1e9)
        async with serving(answering(answer), limits, tls=server) as listener:
            options = {"ssl": trusting, "server_hostname": "localhost"}
            async with client(listener, **options) as peer:
                peer.send(*(request(i, api_key=32) for i in range(20_000)))
                await until(lambda: served >= 505)
                assert served < 1_000
                await until(lambda: not listener.connections)
                assert served <= 530, "a turn or two, until the loop has closed the socket"

    run(scenario())


def test_tls_handshakes_of_many_peers_at_once_begin_one_by_one(
    run: Run, tls: tuple[FixedContext, ssl.SSLContext]
) -> None:
    begun = 0

    class Counting(NamedTuple):
        context: ssl.SSLContext

        def current(self) -> ssl.SSLContext:
            nonlocal begun
            begun += 1
            return self.context

    async def scenario() -> None:
        budget = Budget(Limits())
        listener = Listener(
            "TEST", "127.0.0.1", 0, answering(echo), budget, tls=Counting(tls[0].context)
        )
        await listener.start()
        peers = [socket.create_connection(("127.0.0.1", listener.port)) for _ in range(40)]
        seen = [0]
        while begun < 20:
            await asyncio.sleep(0)
            seen.append(begun)
        assert max(after - before for before, after in pairwise(seen)) == 1
        await listener.stop(0)
        assert begun < 40
        await until(lambda: budget.connections == 0)
        for peer in peers:
            peer.settimeout(60)
            with suppress(ConnectionError):
                assert peer.recv(1) == b""
            peer.close()

    run(scenario())
