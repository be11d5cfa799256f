"""One connection to a broker: requests go out in order, each gets its own answer.

`PeerConnection.open` connects; `call` sends any message by its fields, `send` one that is encoded
already. Requests may be sent before earlier ones are answered.
Invariant: after the connection is lost every pending and later request fails with ConnectionLost.
"""

import asyncio
import struct
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from suwi.wire.codec import encode_request, read_response
from suwi.wire.errors import MalformedResponse
from suwi.wire.headers import read_response_header, request_header

_LENGTH = struct.Struct(">i")


class ConnectionLost(ConnectionError):
    """The broker is gone; whether the requests under way were carried out is not known."""


class _Pending(NamedTuple):
    api_key: int
    version: int
    correlation_id: int
    answer: asyncio.Future[memoryview]


class PeerConnection(asyncio.Protocol):
    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._transport: asyncio.Transport | None = None
        self._pending: deque[_Pending] = deque()
        self._received = bytearray()
        self._next_correlation_id = 0
        self._lost: ConnectionLost | None = None
        self._closed = asyncio.get_running_loop().create_future()
        self._may_write = asyncio.Event()
        self._may_write.set()

    @classmethod
    async def open(cls, host: str, port: int, *, client_id: str = "suwi") -> "PeerConnection":
        """Raises OSError."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: cls(client_id), host, port)
        return connection

    @property
    def is_open(self) -> bool:
        return self._lost is None

    async def call(self, api_key: int, version: int, fields: Mapping[str, Any]) -> Any:
        """Send a message and return kio's entity of the answer."""
        body = encode_request(api_key, version, fields)
        answer = await self.send(api_key, version, [body])
        try:
            return read_response(api_key, version, answer)
        except MalformedResponse:
            self.abort()
            raise

    def send(
        self, api_key: int, version: int, body: Sequence[bytes | bytearray | memoryview]
    ) -> asyncio.Future[memoryview]:
        """Send an encoded request; the body of its answer."""
        answer: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        if self._lost is not None:
            answer.set_exception(self._lost)
            return answer
        correlation_id = self.send_unanswered(api_key, version, body)
        self._pending.append(_Pending(api_key, version, correlation_id, answer))
        return answer

    def send_unanswered(
        self, api_key: int, version: int, body: Sequence[bytes | bytearray | memoryview]
    ) -> int:
        """Send a request that gets no answer (Produce with acks=0); its correlation id."""
        if self._lost is not None:
            raise self._lost
        assert self._transport is not None
        self._next_correlation_id = (self._next_correlation_id + 1) & 0x7FFF_FFFF
        header = request_header(api_key, version, self._next_correlation_id, self._client_id)
        size_bytes = len(header) + sum(len(piece) for piece in body)
        self._transport.writelines([_LENGTH.pack(size_bytes), header, *body])
        return self._next_correlation_id

    async def drained(self) -> None:
        """Return when the broker has taken most of what was sent, or is gone."""
        await self._may_write.wait()

    async def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
            await self._closed

    def abort(self) -> None:
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

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        at = 0
        while len(received) - at >= 4:
            (size_bytes,) = _LENGTH.unpack_from(received, at)
            if size_bytes < 0:
                self.abort()
                return
            if len(received) - at - 4 < size_bytes:
                break
            frame = bytes(received[at + 4 : at + 4 + size_bytes])
            at += 4 + size_bytes
            self._answered(memoryview(frame))
        del received[:at]

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
