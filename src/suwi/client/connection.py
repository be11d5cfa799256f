"""One connection to a broker: requests go out in order, each gets its own answer.

`PeerConnection.open` connects; `call` sends any message by its fields, `send` one that is encoded
already. Requests may be sent before earlier ones are answered; while one exchange has the
connection for itself (`alone`), they wait.
Invariants: after the connection is lost every pending and later request fails with ConnectionLost;
memory grows with the bytes that a broker has sent, not with those it announces.
"""

import asyncio
import errno
import ssl
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from suwi.env.hang_up import has_hung_up
from suwi.wire.codec import encode_request, read_response
from suwi.wire.errors import MalformedResponse
from suwi.wire.headers import read_response_header, request_header

_LENGTH = struct.Struct(">i")
# Far more than anybody asks for: whoever announces more does not speak Kafka's protocol.
_FRAME_BYTES_MAX = 1 << 30
# A frame that has begun gets this much, and then as much again as it has brought.
_FRAME_BYTES_FIRST = 64 * 1024


class ConnectionLost(ConnectionError):
    """The broker is gone; whether the requests under way were carried out is not known."""


def is_refusal(error: OSError) -> bool:
    """Whether nobody listens at an address, whatever it resolves to."""
    if isinstance(error, ConnectionRefusedError):
        return True
    # With several addresses asyncio gives one error that quotes those of all.
    text = str(error)
    return 0 < text.count("[Errno ") == text.count(f"[Errno {errno.ECONNREFUSED}]")


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


class PeerConnection(asyncio.Protocol):
    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._transport: asyncio.Transport | None = None
        self._pending: deque[_Pending] = deque()
        self._head = b""  # the first bytes of a length
        self._partial: bytearray | None = None  # a frame that is not complete yet
        self._filled = 0  # of it
        self._frame_bytes = 0  # its size
        self._next_correlation_id = 0
        self._lost: ConnectionLost | None = None
        self._closed = asyncio.get_running_loop().create_future()
        self._is_ended_here = False
        self._on_end: Callable[[bool], None] = lambda _broke: None
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._held: list[_Unsent] | None = None  # while an exchange has the connection for itself

    @classmethod
    async def open(
        cls, host: str, port: int, *, client_id: str = "suwi", tls: ssl.SSLContext | None = None
    ) -> "PeerConnection":
        """Raises OSError, of which errors of TLS are a kind."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: cls(client_id), host, port, ssl=tls)
        return connection

    @property
    def is_open(self) -> bool:
        return self._lost is None

    async def call(self, api_key: int, version: int, fields: Mapping[str, Any]) -> Any:
        """Send a message and return kio's entity of the answer."""
        body = encode_request(api_key, version, fields)
        return self._read(api_key, version, await self.send(api_key, version, [body]))

    @asynccontextmanager
    async def alone(self) -> AsyncIterator["Exchange"]:
        """Have the connection for one exchange; requests made meanwhile are sent after it."""
        assert self._held is None
        self._held = []
        try:
            yield Exchange(self)
        finally:
            held, self._held = self._held, None
            for unsent in held:
                self._submit(unsent)

    def send(
        self, api_key: int, version: int, body: Sequence[bytes | bytearray | memoryview]
    ) -> asyncio.Future[memoryview]:
        """Send an encoded request; the body of its answer."""
        answer: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        self._submit(_Unsent(api_key, version, body, answer))
        return answer

    def send_unanswered(
        self, api_key: int, version: int, body: Sequence[bytes | bytearray | memoryview]
    ) -> None:
        """Send a request that gets no answer (Produce with acks=0)."""
        if self._lost is not None:
            raise self._lost
        self._submit(_Unsent(api_key, version, body, None))

    def _submit(self, unsent: _Unsent) -> None:
        if self._lost is not None:
            if unsent.answer is not None and not unsent.answer.done():
                unsent.answer.set_exception(self._lost)
        elif self._held is not None:
            self._held.append(unsent)
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
        """Return when the broker has taken most of what was sent, or is gone."""
        await self._may_write.wait()

    async def lost(self) -> None:
        """Return when the connection is gone, whoever ended it."""
        await asyncio.shield(self._closed)

    @property
    def is_hung_up(self) -> bool:
        """Whether the peer is gone, also where the loop has not come to hear of it yet."""
        if self._lost is not None:
            return True
        return self._transport is not None and has_hung_up(self._transport)

    def when_ended(self, callback: Callable[[bool], None]) -> None:
        """Call that when the connection is gone, with whether it broke: was not ended here."""
        self._on_end = callback

    async def close(self) -> None:
        self._is_ended_here = True
        if self._transport is not None:
            self._transport.close()
            await self._closed

    def abort(self) -> None:
        self._is_ended_here = True
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio.Protocol ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._lost = ConnectionLost(str(error) if error else "the broker closed the connection")
        for pending in self._pending:
            if not pending.answer.done():
                pending.answer.set_exception(self._lost)
        self._pending.clear()
        self._may_write.set()
        if not self._closed.done():
            self._closed.set_result(None)
        self._on_end(not self._is_ended_here)

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def data_received(self, data: bytes) -> None:
        """Take frames out of what arrives. One that lies in it whole is not copied; of any other
        the pieces are gathered where they will stay."""
        rest = memoryview(data)
        while rest:
            if self._partial is not None:
                rest = self._go_on(self._partial, rest)
                continue
            if self._head or len(rest) < _LENGTH.size:
                wanted = _LENGTH.size - len(self._head)
                self._head += rest[:wanted]
                rest = rest[wanted:]
                if len(self._head) < _LENGTH.size:
                    return
                (size_bytes,) = _LENGTH.unpack(self._head)
                self._head = b""
            else:
                (size_bytes,) = _LENGTH.unpack_from(rest)
                rest = rest[_LENGTH.size :]
            if not 0 <= size_bytes <= _FRAME_BYTES_MAX:
                self.abort()
                return
            if len(rest) >= size_bytes:
                self._answered(rest[:size_bytes])
                rest = rest[size_bytes:]
            else:
                first = min(size_bytes, max(_FRAME_BYTES_FIRST, 2 * len(rest)))
                self._partial, self._filled, self._frame_bytes = bytearray(first), 0, size_bytes

    def _go_on(self, partial: bytearray, rest: memoryview) -> memoryview:
        """Fill up an incomplete frame; what is left for the next."""
        end = min(self._filled + len(rest), self._frame_bytes)
        if end > len(partial):
            partial.extend(bytes(min(self._frame_bytes, 2 * end) - len(partial)))
        taken = end - self._filled
        partial[self._filled : end] = rest[:taken]
        self._filled = end
        if end == self._frame_bytes:
            self._partial = None
            self._answered(memoryview(partial))
        return rest[taken:]

    def _answered(self, frame: memoryview) -> None:
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
                pending.answer.set_exception(ConnectionLost("an answer that belongs to no request"))
            self.abort()
        elif not pending.answer.done():
            pending.answer.set_result(frame[body_at:])


class Exchange:
    """A connection while it is somebody's alone; see `PeerConnection.alone`."""

    def __init__(self, connection: PeerConnection) -> None:
        self._connection = connection

    async def call(self, api_key: int, version: int, fields: Mapping[str, Any]) -> Any:
        """Send a message and return kio's entity of the answer."""
        connection = self._connection
        if connection._lost is not None:
            raise connection._lost
        answer: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        body = encode_request(api_key, version, fields)
        connection._write(_Unsent(api_key, version, [body], answer))
        return connection._read(api_key, version, await answer)
