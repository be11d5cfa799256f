"""Peers that read or write slowly, open many connections or stay idle do not harm other clients.

Memory is the resident memory of a separate broker process.
"""

import asyncio
import os
import resource
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

from suwi.records.builder import build_batch
from suwi.records.record import Record
from suwi.sim import Simulation
from suwi.wire.codec import encode_request
from suwi.wire.headers import request_header
from suwi.wire.versions import ApiKey
from tests.broker.simulated import PORT, SimBroker
from tests.broker_process import BrokerProcess
from tests.raw_client import RawClient, fetch_fields

MIB = 1 << 20
IDLE_CONNECTIONS = 5_000
PATIENCE_S = 120
_numbers = count()

needs_proc = pytest.mark.skipif(
    not os.path.exists("/proc/self/statm"), reason="needs Linux's /proc"
)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as process:
        yield process
        assert_serves(process)
        assert "Traceback" not in process.log


def assert_serves(broker: BrokerProcess) -> None:
    name = f"served-{next(_numbers)}"
    with RawClient(broker.address) as client:
        client.create_topic(name)
        assert client.produce(name, bytes(build_batch([Record(value=b"alive")]))) == (0, 0)
        assert b"alive" in client.fetch(name, 0).records


def memory_bytes(broker: BrokerProcess) -> int:
    with open(f"/proc/{broker.pid}/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_descriptors(broker: BrokerProcess) -> int:
    return len(os.listdir(f"/proc/{broker.pid}/fd"))


def connect(broker: BrokerProcess) -> socket.socket:
    return socket.create_connection(("127.0.0.1", broker.port), timeout=PATIENCE_S)


def framed(
    api_key: int, version: int, correlation_id: int, body: bytes, client_id: str = "peer"
) -> bytes:
    frame = request_header(api_key, version, correlation_id, client_id) + body
    return struct.pack(">i", len(frame)) + frame


def api_versions(correlation_id: int) -> bytes:
    return framed(ApiKey.API_VERSIONS, 0, correlation_id, b"")


def read_exactly(peer: socket.socket, size_bytes: int) -> bytes:
    data = bytearray()
    while len(data) < size_bytes:
        more = peer.recv(min(size_bytes - len(data), MIB))
        assert more, "the broker closed the connection"
        data += more
    return bytes(data)


def read_reply(peer: socket.socket) -> tuple[int, bytes]:
    """The correlation id and the rest of the next response."""
    (size_bytes,) = struct.unpack(">i", read_exactly(peer, 4))
    reply = read_exactly(peer, size_bytes)
    return struct.unpack_from(">i", reply)[0], reply[4:]


def is_closed(peer: socket.socket) -> bool:
    """Wait until the broker closes the connection without sending anything."""
    try:
        return peer.recv(1) == b""
    except ConnectionResetError:
        return True


def send_until_refused(peer: socket.socket, data: bytes, quiet_s: float = 1.0) -> int:
    """Send until the other side has not read for a while; returns the number of bytes sent."""
    sent = 0
    view = memoryview(data)
    peer.setblocking(False)
    while sent < len(data) and select.select([], [peer], [], quiet_s)[1]:
        sent += peer.send(view[sent : sent + MIB])
    peer.settimeout(PATIENCE_S)
    return sent


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for something that the broker does in the background."""
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.02)


# -- readers ---------------------------------------------------------------------------------------


@needs_proc
def test_clients_that_do_not_read_fetch_responses_use_no_memory(
    broker: BrokerProcess,
) -> None:
    batch = bytes(build_batch([Record(value=os.urandom(1000 * 1000))]))
    with ExitStack() as stack:
        client = stack.enter_context(RawClient(broker.address))
        client.create_topic("large")
        for _ in range(40):
            assert client.produce("large", batch).error == 0
        before = memory_bytes(broker)
        body = encode_request(ApiKey.FETCH, 12, fetch_fields(12, "large", 0, max_bytes=50 * MIB))
        asked = b"".join(framed(ApiKey.FETCH, 12, n, body) for n in range(500))
        greedy = [stack.enter_context(connect(broker)) for _ in range(10)]
        for peer in greedy:
            peer.sendall(asked)  # 5,000 requests for about 5 GB
        for _ in range(20):  # while others are served
            assert client.produce("large", batch).error == 0
            assert client.fetch("large", 0).records
        assert memory_bytes(broker) - before < 64 * MIB


@needs_proc
def test_requests_wait_while_responses_are_not_read_and_are_answered_in_order(
    broker: BrokerProcess,
) -> None:
    requests = 8_000
    with RawClient(broker.address) as client, connect(broker) as peer:
        client.create_topic("hundred", partitions=100)
        body = encode_request(ApiKey.METADATA, 1, {"topics": [{"name": "hundred"}]})
        # Long client ids, so that the requests do not fit into the kernel's buffers.
        data = b"".join(
            framed(ApiKey.METADATA, 1, n, body, client_id="c" * 5000) for n in range(requests)
        )
        before = memory_bytes(broker)
        sent = send_until_refused(peer, data)
        assert sent < len(data), "the broker keeps reading although its responses are not read"
        assert memory_bytes(broker) - before < 32 * MIB
        assert_serves(broker)
        for answered in range(requests):
            assert read_reply(peer)[0] == answered
            if sent < len(data):
                sent += send_until_refused(peer, data[sent : sent + MIB], quiet_s=0)


@needs_proc
def test_repeated_requests_for_a_large_response_use_bounded_memory(
    broker: BrokerProcess,
) -> None:
    with RawClient(broker.address) as client, connect(broker) as peer:
        client.create_topic("wide", partitions=2000)
        fields = {"topics": None, "include_topic_authorized_operations": False}
        body = encode_request(ApiKey.METADATA, 12, {**fields, "allow_auto_topic_creation": False})
        before = memory_bytes(broker)
        asked = b"".join(framed(ApiKey.METADATA, 12, n, body) for n in range(300))
        peer.sendall(asked)  # about 30 MB of responses
        assert_serves(broker)
        assert memory_bytes(broker) - before < 64 * MIB
        for n in range(300):
            assert read_reply(peer)[0] == n


# -- senders ---------------------------------------------------------------------------------------


@needs_proc
def test_memory_grows_with_bytes_received_and_not_with_bytes_announced(
    broker: BrokerProcess,
) -> None:
    with ExitStack() as stack:
        before = memory_bytes(broker)
        for _ in range(300):  # 30 GB
            peer = stack.enter_context(connect(broker))
            peer.sendall(struct.pack(">i", 100 * 1000 * 1000) + bytes(10_000))
        assert_serves(broker)
        assert memory_bytes(broker) - before < 40 * MIB


def test_a_frame_that_arrives_too_slowly_closes_the_connection() -> None:
    simulation = Simulation(1)

    async def scenario() -> None:
        broker = SimBroker(simulation)
        await broker.start()
        loop = asyncio.get_running_loop()
        closed = loop.create_future()
        peer = _Peer(closed)
        transport, _ = await loop.create_connection(lambda: peer, broker.machine.name, PORT)
        began_s = loop.time()
        transport.write(struct.pack(">i", 1000))
        while not closed.done():
            transport.write(b"\0")
            await asyncio.sleep(1)
        assert 60 <= loop.time() - began_s < 120

    simulation.run(scenario())


def test_a_slow_but_steady_sender_is_served() -> None:
    simulation = Simulation(2)

    async def scenario() -> None:
        broker = SimBroker(simulation)
        await broker.start()
        loop = asyncio.get_running_loop()
        closed = loop.create_future()
        peer = _Peer(closed)
        transport, _ = await loop.create_connection(lambda: peer, broker.machine.name, PORT)
        for byte in api_versions(7):  # one byte per second: slow, but complete within a minute
            transport.write(bytes([byte]))
            await asyncio.sleep(1)
        assert struct.unpack_from(">i", peer.received, 4) == (7,)
        assert not closed.done()

    simulation.run(scenario())


class _Peer(asyncio.Protocol):
    def __init__(self, closed: asyncio.Future[None]) -> None:
        self.received = bytearray()
        self._closed = closed

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, error: Exception | None) -> None:
        if not self._closed.done():
            self._closed.set_result(None)


# -- many connections ------------------------------------------------------------------------------


@needs_proc
def test_thousands_of_idle_connections_cost_little_each(
    broker: BrokerProcess, record_property: Callable[[str, object], None]
) -> None:
    wanted = IDLE_CONNECTIONS * 3
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"at most {hard} open files are allowed here")
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    with ExitStack() as stack:
        assert_serves(broker)
        before = memory_bytes(broker)
        peers = [stack.enter_context(connect(broker)) for _ in range(IDLE_CONNECTIONS)]
        for peer in peers[::100]:
            peer.sendall(api_versions(1))
            assert read_reply(peer)[0] == 1
        each = (memory_bytes(broker) - before) / IDLE_CONNECTIONS
        record_property("bytes_per_idle_connection", round(each))
        print(f"{each:.0f} bytes for each idle connection")
        assert each < 20_000
        assert_serves(broker)


@needs_proc
def test_a_storm_of_connections_leaves_nothing_behind(broker: BrokerProcess) -> None:
    with RawClient(broker.address) as client:
        client.create_topic("calm")
        assert_serves(broker)
        before = open_descriptors(broker)
        for round_number in range(20):
            storm = [connect(broker) for _ in range(100)]
            for number, peer in enumerate(storm):
                match number % 4:
                    case 0:
                        peer.sendall(api_versions(1))
                    case 1:
                        peer.sendall(b"\0\0\1")
                    case 2:  # a reset instead of an orderly close
                        linger = struct.pack("ii", 1, 0)
                        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                peer.close()
            batch = bytes(build_batch([Record(value=b"x")]))
            assert client.produce("calm", batch) == (0, round_number)
        wait_until(lambda: open_descriptors(broker) <= before + 10)


@needs_proc
def test_a_half_closed_connection_gets_its_responses_and_is_closed(
    broker: BrokerProcess,
) -> None:
    with RawClient(broker.address) as client, ExitStack() as stack:
        client.create_topic("quiet")
        before = open_descriptors(broker)
        for n in range(50):
            peer = stack.enter_context(connect(broker))
            peer.sendall(api_versions(n))
            assert read_reply(peer)[0] == n
            peer.shutdown(socket.SHUT_WR)
            assert is_closed(peer)
        wait_for_ever = fetch_fields(12, "quiet", 0, max_wait_ms=2**31 - 1)
        body = encode_request(ApiKey.FETCH, 12, wait_for_ever)
        for n in range(50):
            peer = stack.enter_context(connect(broker))
            peer.sendall(framed(ApiKey.FETCH, 12, n, body))
            peer.shutdown(socket.SHUT_WR)
        wait_until(lambda: open_descriptors(broker) <= before + 10)


# -- configured limits -----------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["max.connections", "max.connections.per.ip"])
def test_connections_beyond_a_limit_are_closed_until_others_close(tmp_path: Path, key: str) -> None:
    with BrokerProcess(tmp_path / "data", f"{key}=3") as broker, ExitStack() as stack:
        peers = [stack.enter_context(connect(broker)) for _ in range(3)]
        for n, peer in enumerate(peers):
            peer.sendall(api_versions(n))
            assert read_reply(peer)[0] == n
        assert is_closed(stack.enter_context(connect(broker)))
        peers.pop().close()
        wait_until(lambda: _is_accepted(broker))


def _is_accepted(broker: BrokerProcess) -> bool:
    with connect(broker) as peer:
        return _is_answered(peer)


def _is_answered(peer: socket.socket) -> bool:
    try:
        peer.sendall(api_versions(1))
        return peer.recv(4) != b""
    except ConnectionError:
        return False


@pytest.mark.slow
def test_idle_connections_are_closed_and_busy_ones_are_not(
    tmp_path: Path,
) -> None:
    setting = "connections.max.idle.ms=12000"
    with BrokerProcess(tmp_path / "data", setting) as broker, RawClient(broker.address) as busy:
        busy.create_topic("waited-for")
        with connect(broker) as idle, connect(broker) as waiting:
            fields = fetch_fields(12, "waited-for", 0, max_wait_ms=20_000)
            body = encode_request(ApiKey.FETCH, 12, fields)
            waiting.sendall(framed(ApiKey.FETCH, 12, 9, body))
            idle.settimeout(0.2)
            closed = False
            while not closed:
                busy.ask(ApiKey.API_VERSIONS, 0, {})
                try:
                    closed = is_closed(idle)
                except TimeoutError:
                    pass
            busy.ask(ApiKey.API_VERSIONS, 0, {})
            # A connection with a waiting fetch is not idle.
            assert read_reply(waiting)[0] == 9


@pytest.mark.slow
@needs_proc
def test_connections_cannot_use_up_the_open_files_that_logs_need(tmp_path: Path) -> None:
    def few_files() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

    data = tmp_path / "data"
    with BrokerProcess(data, in_child=few_files) as broker, ExitStack() as stack:
        client = stack.enter_context(RawClient(broker.address))
        let_in = 0
        for _ in range(400):
            peer = stack.enter_context(connect(broker))
            let_in += _is_answered(peer)
        assert 50 < let_in < 150
        batch = bytes(build_batch([Record(value=b"x")]))
        for number in range(60):
            client.create_topic(f"topic-{number}")
            assert client.produce(f"topic-{number}", batch) == (0, 0)
        assert "offline" not in broker.log
        assert "Traceback" not in broker.log
