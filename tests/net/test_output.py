"""File regions on their way out: by sendfile, by copying, cold, truncated."""

import asyncio
import errno
import logging
import os
import socket
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from suwi.env import FileRegion, LocalDisk
from suwi.env.local_disk import LocalFile
from suwi.net.answers import Answer, Chunk, Exclusive, Later, NoReply, Reply
from suwi.net.output import SMALL_REGION_BYTES
from tests.net.support import (
    Region,
    Wire,
    answering,
    client,
    connect,
    replies,
    request,
    serving,
    settle,
    until,
)

DATA = bytes(range(256)) * 40_000  # 10 MB, more than a socket's buffers hold
Open = Callable[[bytes], LocalFile]


@pytest.fixture
def open_file(tmp_path: Path) -> Open:
    def open_with(data: bytes) -> LocalFile:
        path = tmp_path / "file"
        path.write_bytes(data)
        return LocalDisk().open(str(path))

    return open_with


class NoDescriptor(LocalFile):
    """A file that can only be read."""

    def fileno(self) -> int:
        return -1


def mixed_reply(file: LocalFile, release: Callable[[], None] | None = None) -> Reply:
    """Bytes and regions of all sizes, none at the beginning of the file."""
    small = SMALL_REGION_BYTES
    return Reply(
        [
            b"head",
            FileRegion(file, 3, 5_000_000),
            b"",
            FileRegion(file, 17, 0),
            memoryview(b"between"),
            FileRegion(file, 1_000, 10),
            FileRegion(file, 2_000, small),
            FileRegion(file, 2_000, small + 1),
            bytearray(b"tail" * 100_000),
        ],
        release,
    )


EXPECTED = (
    b"head"
    + DATA[3:5_000_003]
    + b"between"
    + DATA[1_000:1_010]
    + DATA[2_000 : 2_000 + SMALL_REGION_BYTES]
    + DATA[2_000 : 2_001 + SMALL_REGION_BYTES]
    + b"tail" * 100_000
)


@pytest.mark.parametrize("way", ["sendfile", "no descriptor", "sendfile unsupported"])
def test_every_way_sends_the_same_bytes(
    way: str, open_file: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent_by_kernel = 0
    sendfile = os.sendfile

    def counting_sendfile(out_fd: int, in_fd: int, offset: int, count: int) -> int:
        nonlocal sent_by_kernel
        if way == "sendfile unsupported":
            raise OSError(22, "Invalid argument")
        # Partial on purpose: the kernel may take any part.
        sent = sendfile(out_fd, in_fd, offset, min(count, 300_001))
        sent_by_kernel += sent
        return sent

    monkeypatch.setattr(os, "sendfile", counting_sendfile)

    async def scenario() -> None:
        file = open_file(DATA)
        if way == "no descriptor":
            file = NoDescriptor(file.path, file._fd)
        released = []
        answer = mixed_reply(file, lambda: released.append(1))
        async with serving(answering(lambda c, p: answer)) as listener, client(listener) as peer:
            peer.send(request(1), request(2))
            assert await peer.reply() == (1, EXPECTED)
            assert await peer.reply() == (2, EXPECTED)
            await until(lambda: released == [1, 1])
        os.close(file._fd)

    asyncio.run(scenario())
    assert (sent_by_kernel > 0) == (way == "sendfile")


def test_a_slow_reader_of_a_file_costs_neither_memory_nor_a_busy_loop(
    open_file: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    sendfile = os.sendfile

    def counting_sendfile(out_fd: int, in_fd: int, offset: int, count: int) -> int:
        nonlocal calls
        calls += 1
        return sendfile(out_fd, in_fd, offset, count)

    monkeypatch.setattr(os, "sendfile", counting_sendfile)

    async def scenario() -> None:
        file = open_file(DATA)
        loop = asyncio.get_running_loop()
        answer = answering(lambda c, p: Reply([FileRegion(file, 0, len(DATA))]))
        async with serving(answer) as listener:
            with socket.create_connection(("127.0.0.1", listener.port)) as peer:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
                peer.setblocking(False)
                await loop.sock_sendall(peer, b"".join(request(i) for i in range(3)))
                await until(lambda: any(c._output._waiting for c in listener.connections))
                [connection] = listener.connections
                seen = calls
                await settle()
                assert calls == seen, "while the peer does not read, nothing happens"
                assert connection._output.queued_bytes < 100
                assert connection._transport.get_write_buffer_size() == 0
                received = bytearray()
                while len(received) < 3 * (8 + len(DATA)):
                    received += await loop.sock_recv(peer, 1 << 20)
                assert replies(bytes(received)) == [(i, DATA) for i in range(3)]
                assert connection._output._dup_fd == -1
        file.close()

    asyncio.run(scenario())


class ColdLater(LocalFile):
    """A file of which the page cache lacks what lies from `COLD_FROM` on, until read."""

    COLD_FROM = 9 << 20  # Sockets hold less: before this, the sender was told to wait for room.

    def __init__(self, file: LocalFile) -> None:
        super().__init__(file.path, file._fd)
        self.may_read = threading.Event()
        self.reads = 0

    def is_cached(self, position: int, size_bytes: int) -> bool:
        return position < self.COLD_FROM or self.may_read.is_set()

    def pread(self, size_bytes: int, position: int) -> bytes:
        self.reads += 1
        assert self.may_read.wait(60)
        return super().pread(size_bytes, position)


def test_a_reader_that_waits_for_the_device_is_not_asked_again_and_again(open_file: Open) -> None:
    """Its socket has room meanwhile, which is no news."""

    async def scenario() -> None:
        file = ColdLater(open_file(DATA))
        cold_from = file.COLD_FROM
        reply = Reply([FileRegion(file, 0, len(DATA))])
        dispatch = answering(lambda c, p: reply)
        async with serving(dispatch) as listener, client(listener, limit=1024) as peer:
            peer.send(request(1))
            await peer.reader.readexactly(8 + cold_from)
            await until(lambda: file.reads > 0)
            await settle()
            assert file.reads == 1
            file.may_read.set()
            assert await peer.reader.readexactly(len(DATA) - cold_from) == DATA[cold_from:]
        os.close(file._fd)

    asyncio.run(scenario())


@pytest.mark.parametrize("size_bytes", [100, 10 * SMALL_REGION_BYTES])
def test_a_reply_that_was_sent_releases_its_file(size_bytes: int) -> None:
    async def scenario() -> None:
        released: list[int] = []
        memory = Region(DATA)
        reply = Reply([memory.region(0, size_bytes)], lambda: released.append(1))
        _, wire = connect(answering(lambda c, p: reply))
        wire.deliver(request(1))
        assert replies(wire.sent) == [(1, DATA[:size_bytes])]
        assert released == [1]

    asyncio.run(scenario())


def test_a_lost_connection_releases_the_file_it_was_sending(open_file: Open) -> None:
    async def scenario() -> None:
        file = open_file(DATA)
        released = asyncio.Event()
        reply = Reply([FileRegion(file, 0, len(DATA))], released.set)
        async with serving(answering(lambda c, p: reply)) as listener:
            async with client(listener, limit=1024) as peer:
                peer.send(request(1))
                await peer.reader.readexactly(1000)
                assert not released.is_set()
            await released.wait()
        file.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("has_descriptor", [True, False])
def test_a_region_that_was_truncated_aborts_the_connection(
    has_descriptor: bool, open_file: Open
) -> None:
    async def scenario() -> None:
        file = open_file(DATA)
        if not has_descriptor:
            file = NoDescriptor(file.path, file._fd)
        promised = FileRegion(file, 0, len(DATA))
        released = asyncio.Event()
        file.truncate(1_000_000)
        reply = Reply([promised], released.set)
        async with serving(answering(lambda c, p: reply)) as listener, client(listener) as peer:
            peer.send(request(1))
            received = await peer.closed()
            assert len(received) <= 8 + 1_000_000
            assert received[8:] == DATA[: len(received) - 8]
            await released.wait()
        os.close(file._fd)

    asyncio.run(scenario())


@pytest.mark.parametrize("size_bytes", [100, 10 * SMALL_REGION_BYTES])
def test_a_region_whose_log_changed_under_it_aborts_the_connection(size_bytes: int) -> None:
    async def scenario() -> None:
        memory = Region(DATA)
        region = memory.region(0, size_bytes)
        region.is_current = lambda: False
        _, wire = connect(answering(lambda c, p: Reply([region])))
        wire.deliver(request(1))
        await settle()
        assert wire.lost

    asyncio.run(scenario())


def test_a_small_region_that_was_truncated_aborts_the_connection() -> None:
    async def scenario() -> None:
        memory = Region(b"short")
        _, wire = connect(answering(lambda c, p: Reply([memory.region(0, 100)])))
        wire.deliver(request(1))
        await settle()
        assert wire.lost

    asyncio.run(scenario())


@pytest.mark.parametrize("size", [1_000, 3_000_000])
def test_a_cold_region_is_read_in_a_thread_first(size: int) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        jobs: list[tuple[Callable[[], None], asyncio.Future[None]]] = []

        def run_in_executor(executor: object, job: Callable[[], None]) -> asyncio.Future[None]:
            future: asyncio.Future[None] = loop.create_future()
            jobs.append((job, future))
            return future

        loop.run_in_executor = run_in_executor  # type: ignore[method-assign, assignment]
        memory = Region(DATA[:size], cold=True)
        _, wire = connect(answering(lambda c, p: Reply([memory.region()])))
        wire.deliver(request(1))
        wire.deliver(request(2))
        await settle()
        assert memory.reads == 0
        assert len(wire.sent) <= 8
        while jobs:
            job, future = jobs.pop()
            job()
            future.set_result(None)
            await settle()
        assert replies(wire.sent) == [(1, DATA[:size]), (2, DATA[:size])]

    asyncio.run(scenario())


def test_a_file_stays_pinned_while_a_thread_reads_it() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        job: asyncio.Future[None] = loop.create_future()
        loop.run_in_executor = lambda *_: job  # type: ignore[method-assign, assignment]
        released: list[int] = []
        memory = Region(DATA, cold=True)
        reply = Reply([memory.region()], lambda: released.append(1))
        _, wire = connect(answering(lambda c, p: reply))
        wire.deliver(request(1))
        wire.abort()
        await settle()
        assert wire.lost
        assert released == []
        job.set_result(None)
        await settle()
        assert released == [1]

    asyncio.run(scenario())


def test_a_device_error_aborts_the_connection() -> None:
    async def scenario() -> None:
        class Broken(Region):
            def pread(self, size_bytes: int, position: int) -> bytes:
                raise OSError(5, "Input/output error")

        for cold in (False, True):
            memory = Broken(DATA, cold=cold)
            _, wire = connect(answering(lambda c, p, m=memory: Reply([m.region()])))  # type: ignore[misc]
            wire.deliver(request(1))
            await until(lambda w=wire: w.lost)  # type: ignore[misc]

    asyncio.run(scenario())


def test_a_file_reply_waits_its_turn_behind_later_ones(open_file: Open) -> None:
    async def scenario() -> None:
        file = open_file(DATA)
        first: asyncio.Future[Reply | NoReply] = asyncio.get_running_loop().create_future()

        def answer(correlation_id: int, payload: memoryview) -> Answer:
            return Later(first) if correlation_id == 1 else Reply([FileRegion(file, 0, 1_000_000)])

        async with serving(answering(answer)) as listener, client(listener) as peer:
            peer.send(request(1), request(2), request(3))
            await until(lambda: any(len(c._order.slots) == 3 for c in listener.connections))
            first.set_result(Reply([b"first"]))
            assert await peer.reply() == (1, b"first")
            assert await peer.reply() == (2, DATA[:1_000_000])
            assert await peer.reply() == (3, DATA[:1_000_000])
        file.close()

    asyncio.run(scenario())


def test_regions_are_copied_in_pieces_as_the_peer_reads() -> None:
    async def scenario() -> None:
        memory = Region(DATA)
        _, wire = connect(answering(lambda c, p: Reply([memory.region()])), room_bytes=0)
        wire.deliver(request(1))
        while len(wire.sent) < 8 + len(DATA):
            wire.take(1_000_000)
            await settle()
        assert replies(wire.sent) == [(1, DATA)]
        assert wire.buffered_bytes_max <= 1 << 20

    asyncio.run(scenario())


def test_a_reply_that_is_added_inside_a_write_leaves_too() -> None:
    """TLS may pause and resume us inside a write."""

    class Restless(Wire):
        def write(self, data: bytes | bytearray | memoryview) -> None:
            super().write(data)
            self._protocol.pause_writing()
            self._protocol.resume_writing()

    async def scenario() -> None:
        first: asyncio.Future[Reply | NoReply] = asyncio.get_running_loop().create_future()

        def answer(correlation_id: int, payload: memoryview) -> Answer:
            return Exclusive(first) if correlation_id == 0 else Reply([b"r1"])

        connection, _ = connect(answering(answer))
        wire = Restless()
        wire.connect(connection)
        wire.deliver(request(0) + request(1))
        first.set_result(Reply([b"r0"]))
        await settle()
        assert replies(wire.sent) == [(0, b"r0"), (1, b"r1")]

    asyncio.run(scenario())


def test_empty_pieces_are_no_obstacle() -> None:
    async def scenario() -> None:
        memory = Region(DATA)
        bodies: list[list[Chunk]] = [[], [b""], [b"", memory.region(0, 100_000), b""], [b"end"]]
        _, wire = connect(answering(lambda c, p: Reply(bodies[c])))
        for number in range(len(bodies)):
            wire.deliver(request(number))
        expected = [b"", b"", DATA[:100_000], b"end"]
        assert replies(wire.sent) == list(enumerate(expected))

    asyncio.run(scenario())


def test_a_reply_of_very_many_small_regions_leaves_in_turns() -> None:
    async def scenario() -> None:
        memory = Region(bytes(range(256)))
        regions = [memory.region(n % 250, 5) for n in range(20_000)]
        _, wire = connect(answering(lambda c, p: Reply(regions)))
        wire.deliver(request(1))
        read = [0]
        while memory.reads > read[-1]:
            read.append(memory.reads)
            await asyncio.sleep(0)
        assert read[-1] == 20_000
        assert max(after - before for before, after in pairwise(read)) <= 600
        await settle()
        expected = b"".join(memory.data[n % 250 : n % 250 + 5] for n in range(20_000))
        assert replies(bytes(wire.sent)) == [(1, expected)]

    asyncio.run(scenario())


@pytest.mark.parametrize("number", [errno.EPIPE, errno.ECONNRESET, errno.EIO])
def test_the_log_blames_the_side_that_failed_while_a_file_was_sent(
    number: int,
    open_file: Open,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def failing_sendfile(*_: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "sendfile", failing_sendfile)
    file = open_file(DATA)

    async def scenario() -> None:
        answer = answering(lambda c, p: Reply([FileRegion(file, 0, len(DATA))]))
        async with serving(answer) as listener, client(listener) as peer:
            peer.send(request(1))
            await peer.closed()

    with caplog.at_level(logging.DEBUG, "suwi.net.connection"):
        asyncio.run(scenario())
    (said,) = [r for r in caplog.records if r.message == "connection closed"]
    if number == errno.EIO:
        assert said.levelno == logging.INFO
        assert vars(said)["reason"].startswith(f"cannot send {file.path}: ")
    else:
        assert said.levelno == logging.DEBUG
        assert vars(said)["reason"] == "the peer hung up before it had the whole reply"
    os.close(file._fd)
