"""One connection to a broker: requests are sent in order, and each gets its response.

`PeerConnection.open` connects; `call` encodes and sends a request, `send` sends an encoded one.
Requests are pipelined; during an exclusive exchange (`alone`) they are held back.
Invariants: after the connection is lost every pending and later request fails with ConnectionLost;
memory grows with the bytes received, not with announced lengths; no view of the receive buffer,
which all connections of a thread share, is kept after `buffer_updated`.
"""

import asyncio
import errno
import mmap
import ssl
import struct
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from suwi.env.hang_up import has_hung_up
from suwi.wire.codec import encode_request, read_response
from suwi.wire.errors import MalformedResponse
from suwi.wire.headers import read_response_header, request_header

_LENGTH = struct.Struct(">i")
# Far more than any request asks for: a peer that announces more does not use Kafka's protocol.
_FRAME_BYTES_MAX = 1 << 30
_SHARED_BYTES = 256 * 1024
# The first allocation for an incomplete frame, and by how much received bytes may be exceeded.
_FRAME_BYTES_FIRST = 64 * 1024
_GROWTH = 8
# A connection keeps at most this for its next large response, while its responses are large.
_KEPT_BYTES_MAX = 16 * 1024 * 1024


class ConnectionLost(ConnectionError):
    """The connection was lost; the outcome of pending requests is unknown."""


def is_refusal(error: OSError) -> bool:
    """Whether the connection was refused, at every address that the host resolves to."""
    if isinstance(error, ConnectionRefusedError):
        return True
    # With several addresses asyncio raises one error that quotes all of them.
    text = str(error)
    return 0 < text.count("[Errno ") == text.count(f"[Errno {errno.ECONNREFUSED}]")


class _Shared(threading.local):
    """The receive buffer of an event loop. Its pages use memory after they are first written."""

    def __init__(self) -> None:
        # Private: a forked process has a buffer of its own.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self.buffer = memoryview(mmap.mmap(-1, _SHARED_BYTES, flags=flags))


_shared = _Shared()


class _FrameMemory:
    """The memory of the incomplete frame of one connection, into which the socket is read.

    It is used again for the next frame, unless somebody still views the last one.
    """

    __slots__ = ("_memory",)

    def __init__(self) -> None:
        self._memory = bytearray()

    def first(self, size_bytes: int) -> memoryview:
        try:
            # A bytearray that is viewed cannot be resized.
            self._memory.append(0)
            self._memory.pop()
        except BufferError:
            self._memory = bytearray()
        return self.grow(memoryview(b""), size_bytes)

    def grow(self, frame: memoryview, size_bytes: int) -> memoryview:
        """More memory for the frame. The size does not depend on what is reused."""
        if size_bytes > len(self._memory):
            self._memory = bytearray(size_bytes)
            self._memory[: len(frame)] = frame
        return memoryview(self._memory)[:size_bytes]

    def complete(self) -> None:
        if len(self._memory) > _KEPT_BYTES_MAX:
            self._memory = bytearray()

    def release(self) -> None:
        if self._memory:
            self._memory = bytearray()


class _Pending(NamedTuple):
    api_key: int
    version: int
    correlation_id: int
    answer: asyncio.Future[memoryview]


class _Unsent(NamedTuple):
    api_key: int
    version: int
    body: Sequence[bytes | bytearray | memoryview]
    answer: asyncio.Future[memoryview] | None


class PeerConnection(asyncio.BufferedProtocol):
    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._transport: asyncio.Transport | None = None
        self._pending: deque[_Pending] = deque()
        self._head = b""  # the first bytes of a frame length
        self._memory = _FrameMemory()
        self._partial: memoryview | None = None  # an incomplete frame
        self._filled = 0  # bytes of it received
        self._frame_bytes = 0  # its total size
        self._next_correlation_id = 0
        self._lost: ConnectionLost | None = None
        self._closed = asyncio.get_running_loop().create_future()
        self._is_closed_here = False
        self._on_end: Callable[[bool], None] = lambda _broke: None
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._held_back: list[_Unsent] | None = None  # during an exclusive exchange

    @classmethod
    async def open(
        cls, host: str, port: int, *, client_id: str = "suwi", tls: ssl.SSLContext | None = None
    ) -> "PeerConnection":
        """Raises OSError, which includes TLS errors."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: cls(client_id), host, port, ssl=tls)
        return connection

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent: not once this side has begun to close it."""
        return self._lost is None and not self._is_closed_here

    @property
    def is_closed_here(self) -> bool:
        """Whether this side has closed it, or has begun to."""
        return self._is_closed_here

    async def call(self, api_key: int, version: int, fields: Mapping[str, Any]) -> Any:
        """Send a request and return the response as kio's entity."""
        body = encode_request(api_key, version, fields)
        return self._read(api_key, version, await self.send(api_key, version, [body]))

    async def _call_at_once(self, api_key: int, version: int, fields: Mapping[str, Any]) -> Any:
        if self._lost is not None:
            raise self._lost
        answer: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        self._write(_Unsent(api_key, version, [encode_request(api_key, version, fields)], answer))
        return self._read(api_key, version, await answer)

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[Callable[..., Awaitable[Any]]]:
        """Use the connection exclusively, with the function that it gives instead of `call`;
        requests made in the meantime are sent afterwards."""
        assert self._held_back is None
        self._held_back = []
        try:
            yield self._call_at_once
        finally:
            held_back, self._held_back = self._held_back, None
            for unsent in held_back:
                self._submit(unsent)

    def send(
        self, api_key: int, version: int, body: Sequence[bytes | bytearray | memoryview]
    ) -> asyncio.Future[memoryview]:
        """Send an encoded request; the result is the body of the response."""
        answer: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        self._submit(_Unsent(api_key, version, body, answer))
        return answer

    def send_unanswered(
        self, api_key: int, version: int, body: Sequence[bytes | bytearray | memoryview]
    ) -> None:
        """Send a request that gets no response (Produce with acks=0)."""
        if self._lost is not None:
            raise self._lost
        self._submit(_Unsent(api_key, version, body, None))

    def _submit(self, unsent: _Unsent) -> None:
        if self._lost is not None:
            if unsent.answer is not None and not unsent.answer.done():
                unsent.answer.set_exception(self._lost)
        elif self._held_back is not None:
            self._held_back.append(unsent)
        else:
            self._write(unsent)

    def _write(self, unsent: _Unsent) -> None:
        api_key, version, body, answer = unsent
        assert self._transport is not None
        self._next_correlation_id = (self._next_correlation_id + 1) & 0x7FFF_FFFF
        header = request_header(api_key, version, self._next_correlation_id, self._client_id)
        size_bytes = len(header) + sum(len(piece) for piece in body)
        self._transport.writelines([_LENGTH.pack(size_bytes), header, *body])
        if answer is not None:
            self._pending.append(_Pending(api_key, version, self._next_correlation_id, answer))

    def _read(self, api_key: int, version: int, answer: memoryview) -> Any:
        try:
            return read_response(api_key, version, answer)
        except MalformedResponse:
            self.abort()
            raise

    async def drained(self) -> None:
        """Return when most of the sent bytes have left, or the connection is lost."""
        await self._may_write.wait()

    async def lost(self) -> None:
        """Return when the connection has ended, whichever side closed it."""
        await asyncio.shield(self._closed)

    @property
    def is_hung_up(self) -> bool:
        """Whether the peer has disconnected, even if the event loop has not noticed yet."""
        if self._lost is not None:
            return True
        return self._transport is not None and has_hung_up(self._transport)

    def when_ended(self, callback: Callable[[bool], None]) -> None:
        """Set a callback for the end of the connection; its argument: not closed by this side."""
        self._on_end = callback

    async def close(self) -> None:
        self._is_closed_here = True
        if self._transport is not None:
            self._transport.close()
            await self._closed

    def abort(self) -> None:
        self._is_closed_here = True
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio.BufferedProtocol ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        who = "this side" if self._is_closed_here else "the broker"
        self._lost = ConnectionLost(str(error) if error else f"{who} closed the connection")
        for pending in self._pending:
            if not pending.answer.done():
                pending.answer.set_exception(self._lost)
        self._pending.clear()
        self._may_write.set()
        if not self._closed.done():
            self._closed.set_result(None)
        self._on_end(not self._is_closed_here)

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        frame = self._partial
        return _shared.buffer if frame is None else frame[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        frame = self._partial
        if frame is None:
            self._split(_shared.buffer[:nbytes])
            return
        self._filled = filled = self._filled + nbytes
        if filled == self._frame_bytes:
            self._partial = None
            self._memory.complete()
            self._frame_received(frame)
        elif filled == len(frame):
            self._partial = self._memory.grow(frame, min(self._frame_bytes, _GROWTH * filled))

    def _split(self, received: memoryview) -> None:
        """Copy the frames out of the shared buffer. The rest of an incomplete one is read into
        memory of its own."""
        while received:
            if self._head or len(received) < _LENGTH.size:
                wanted = _LENGTH.size - len(self._head)
                self._head += received[:wanted]
                received = received[wanted:]
                if len(self._head) < _LENGTH.size:
                    return
                (size_bytes,) = _LENGTH.unpack(self._head)
                self._head = b""
            else:
                (size_bytes,) = _LENGTH.unpack_from(received)
                received = received[_LENGTH.size :]
            if not 0 <= size_bytes <= _FRAME_BYTES_MAX:
                self.abort()
                return
            if len(received) < size_bytes:
                self._begin_frame(received, size_bytes)
                return
            self._frame_received(memoryview(bytes(received[:size_bytes])))
            received = received[size_bytes:]
        self._memory.release()

    def _begin_frame(self, received: memoryview, size_bytes: int) -> None:
        filled = len(received)
        frame = self._memory.first(min(size_bytes, max(_FRAME_BYTES_FIRST, _GROWTH * filled)))
        frame[:filled] = received
        self._partial, self._filled, self._frame_bytes = frame, filled, size_bytes

    def _frame_received(self, frame: memoryview) -> None:
        if not self._pending:
            self.abort()
            return
        pending = self._pending.popleft()
        try:
            correlation_id, body_at = read_response_header(pending.api_key, pending.version, frame)
        except MalformedResponse:
            correlation_id, body_at = -1, 0
        if correlation_id != pending.correlation_id:
            if not pending.answer.done():
                pending.answer.set_exception(
                    ConnectionLost("a response has a wrong correlation id")
                )
            self.abort()
        elif not pending.answer.done():
            pending.answer.set_result(frame[body_at:])
