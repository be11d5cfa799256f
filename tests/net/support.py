"""A transport without a socket, a broker of one trick, and a client for them."""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from suwi.env import FileRegion
from suwi.net.answers import Answer, Exclusive, Later, NoReply, Reply
from suwi.net.connection import Connection, Dispatch
from suwi.net.dispatch import Dispatcher, Handler
from suwi.net.limits import Limits
from suwi.net.listener import Budget, Listener
from suwi.wire.versions import APIS


def request(correlation_id: int, payload: bytes = b"", api_key: int = 0) -> bytes:
    """A frame with its size: API key, version 0, correlation id, payload."""
    return struct.pack(">ihhi", 8 + len(payload), api_key, 0, correlation_id) + payload


def replies(stream: bytes) -> list[tuple[int, bytes]]:
    """Correlation id and body of every reply in a stream, which must end with a whole one."""
    found = []
    at = 0
    while at < len(stream):
        size, correlation_id = struct.unpack_from(">ii", stream, at)
        found.append((correlation_id, stream[at + 8 : at + 4 + size]))
        at += 4 + size
    assert at == len(stream)
    return found


def answering(answer: Callable[[int, memoryview], Answer]) -> Dispatch:
    """A dispatch that answers by correlation id and payload."""

    def dispatch(connection: Connection, frame: memoryview) -> tuple[bytes, Answer]:
        (correlation_id,) = struct.unpack_from(">i", frame, 4)
        return bytes(frame[4:8]), answer(correlation_id, frame[8:])

    return dispatch


def echo(correlation_id: int, payload: memoryview) -> Answer:
    return Reply([bytes(payload)])


class Waits:
    """Answers that the test ends one by one."""

    def __init__(self, kind: type[Later] | type[Exclusive] = Later) -> None:
        self.kind = kind
        self.futures: dict[int, asyncio.Future[Reply | NoReply]] = {}

    def __call__(self, correlation_id: int, payload: memoryview) -> Answer:
        future = self.futures[correlation_id] = asyncio.get_running_loop().create_future()
        return self.kind(future)

    def end(self, correlation_id: int, body: bytes = b"done") -> None:
        self.futures[correlation_id].set_result(Reply([body]))


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario())


class Wire(asyncio.Transport):
    """A transport without a socket, as a simulated network has it; the test plays the peer."""

    def __init__(self, room_bytes: int = 1 << 40) -> None:
        super().__init__({"peername": ("10.0.0.1", 4711)})
        self.sent = bytearray()
        self.writes = 0
        self.buffered_bytes_max = 0
        self.reading = True
        self.lost = False
        self._loop = asyncio.get_running_loop()
        self._protocol: asyncio.BufferedProtocol
        self._room_bytes = room_bytes  # what the peer's kernel still takes
        self._buffer = bytearray()
        self._incoming = bytearray()
        self._closing = False

    def connect(self, protocol: asyncio.BufferedProtocol) -> None:
        self._protocol = protocol
        protocol.connection_made(self)

    # The peer's side

    def deliver(self, data: bytes) -> None:
        """The peer sends; what the connection does not read now waits."""
        self._incoming += data
        self._pump()

    def take(self, room_bytes: int) -> None:
        """The peer reads so many bytes more."""
        self._room_bytes += room_bytes
        if self._buffer:
            self._transmit()
            if not self._buffer:
                self._protocol.resume_writing()

    @property
    def unread_bytes(self) -> int:
        return len(self._incoming)

    def _pump(self) -> None:
        while self._incoming and self.reading and not self._closing:
            buffer = self._protocol.get_buffer(-1)
            assert len(buffer) > 0
            size = min(len(buffer), len(self._incoming))
            buffer[:size] = self._incoming[:size]
            del self._incoming[:size]
            self._protocol.buffer_updated(size)

    def _transmit(self) -> None:
        size = min(self._room_bytes, len(self._buffer))
        self.sent += self._buffer[:size]
        del self._buffer[:size]
        self._room_bytes -= size

    # What the connection calls

    def write(self, data: Any) -> None:
        assert len(data) > 0
        if self._closing:
            return
        self.writes += 1
        was_empty = not self._buffer
        self._buffer += data
        self._transmit()
        self.buffered_bytes_max = max(self.buffered_bytes_max, len(self._buffer))
        if was_empty and self._buffer:
            self._protocol.pause_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == 0

    def get_write_buffer_size(self) -> int:
        return len(self._buffer)

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True
        self._loop.call_soon(self._pump)

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._end()

    def abort(self) -> None:
        self._end()

    def _end(self) -> None:
        if not self._closing:
            self._closing = True
            self._loop.call_soon(self._lose)

    def _lose(self) -> None:
        self.lost = True
        self._protocol.connection_lost(None)


class AcceptAll:
    """Lets every connection in."""

    def opened(self, connection: Connection) -> str | None:
        return None

    def closed(self, connection: Connection) -> None:
        pass


def timeless_budget(limits: Limits | None = None) -> Budget:
    """In which a turn lasts as long as it takes, however slow the machine is."""
    return Budget((limits or Limits())._replace(turn_ms_max=1e9), poison=True)


def connect(
    dispatch: Dispatch,
    limits: Limits | None = None,
    *,
    room_bytes: int = 1 << 40,
    budget: Budget | None = None,
) -> tuple[Connection, Wire]:
    """A connection at the end of a wire; kept views are found out by poison."""
    if budget is None:
        budget = timeless_budget(limits)
    loop = asyncio.get_running_loop()
    connection = Connection(
        loop,
        "TEST",
        dispatch,
        budget.limits,
        budget.buffer_pool,
        budget.unsent_budget,
        budget.turns,
        AcceptAll(),
    )
    wire = Wire(room_bytes)
    wire.connect(connection)
    return connection, wire


async def loaded(handlers: Mapping[int, Handler]) -> Dispatcher:
    """None of its requests waits for a schema."""
    dispatcher = Dispatcher(handlers)
    for api_key in handlers:
        for version in range(APIS[api_key].min_version, APIS[api_key].max_version + 1):
            await dispatcher.load(api_key, version)
    return dispatcher


async def settle() -> None:
    """Let everything run that is ready to run."""
    for _ in range(20):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that happens by itself; the test's time limit is the limit."""
    while not condition():  # noqa: ASYNC110 (nothing tells us)
        await asyncio.sleep(0.001)


@asynccontextmanager
async def serving(
    dispatch: Dispatch, limits: Limits | None = None, **options: Any
) -> AsyncIterator[Listener]:
    """A listener on a free port of this machine."""
    listener = Listener("TEST", "127.0.0.1", 0, dispatch, Budget(limits or Limits()), **options)
    await listener.start()
    try:
        yield listener
    finally:
        await listener.stop(grace_s=0)


class Client:
    """A peer on a real socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, *frames: bytes) -> None:
        self.writer.write(b"".join(frames))

    async def reply(self) -> tuple[int, bytes]:
        size = int.from_bytes(await self.reader.readexactly(4), "big")
        body = await self.reader.readexactly(size)
        return int.from_bytes(body[:4], "big"), body[4:]

    async def closed(self) -> bytes:
        """What still comes until the other side closes."""
        try:
            return await self.reader.read()
        except ConnectionError:
            return b""


@asynccontextmanager
async def client(listener: Listener, **options: Any) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port, **options)
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()


class Region:
    """A file in memory, without a descriptor, that may be cold or shorter than promised."""

    path = "memory"

    def __init__(self, data: bytes, *, cold: bool = False) -> None:
        self.data = data
        self.cold = cold
        self.reads = 0

    def region(self, position: int = 0, size_bytes: int | None = None) -> FileRegion:
        size_bytes = len(self.data) - position if size_bytes is None else size_bytes
        return FileRegion(self, position, size_bytes)  # type: ignore[arg-type]

    def fileno(self) -> int:
        return -1

    def pread(self, size_bytes: int, position: int) -> bytes:
        self.reads += 1
        self.cold = False
        return self.data[position : position + size_bytes]

    def is_cached(self, position: int, size_bytes: int) -> bool:
        return not self.cold

    def drop_cached(self, position: int, size_bytes: int) -> None:
        """There is no page cache."""

    def pread_cached(self, size_bytes: int, position: int) -> bytes | None:
        if self.cold:
            return None
        data = self.pread(size_bytes, position)
        return data if len(data) == size_bytes else None


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


def burst(count: int, payload: bytes = b"", api_key: int = 0) -> bytes:
    return b"".join(request(i, payload, api_key) for i in range(count))


def limits(requests: int, **others: int) -> Limits:
    return Limits(turn_requests_max=requests, turn_ms_max=1e9, **others)


class Served:
    """Echoes, and remembers which connection's requests were served in which order."""

    def __init__(self, answer: Callable[[int, memoryview], Answer] = echo) -> None:
        self.order: list[tuple[str, int]] = []
        self._answer = answer

    def by(self, name: str) -> Dispatch:
        def answer(correlation_id: int, payload: memoryview) -> Answer:
            self.order.append((name, correlation_id))
            return self._answer(correlation_id, payload)

        return answering(answer)

    def runs(self) -> list[tuple[str, int]]:
        """Who was served, and how many requests in a row."""
        found: list[tuple[str, int]] = []
        for name, _ in self.order:
            in_a_row = found.pop()[1] if found and found[-1][0] == name else 0
            found.append((name, in_a_row + 1))
        return found


async def all_turns(budget: Budget) -> None:
    while budget.turns.waiting or budget.turns.senders.waiting:  # noqa: ASYNC110 (nothing tells us)
        await asyncio.sleep(0)
    await settle()
