"""While a broker starts: connections are accepted, but client requests wait.

A client that gets incomplete metadata (no brokers, no controller) keeps it for minutes. So a
`StartGate` wraps the dispatcher until the broker is unfenced. ApiVersions, SASL, DescribeBroker and
other brokers pass. The first other request of a client waits, for a limited time, and its
connection is not read meanwhile. After `open` the gate is removed: see `Listener.serve_with`.
"""

import asyncio
import struct
from typing import Final

from suwi.net.answers import Answer, CloseConnection, Exclusive, NoReply, Reply, reply_of
from suwi.net.client_quota_manager import BEFORE_LOG_IN
from suwi.net.connection import Connection, Dispatch
from suwi.wire.versions import ApiKey

# This broker asks itself with DescribeBroker before it registers.
_AT_ONCE: Final = BEFORE_LOG_IN | {ApiKey.DESCRIBE_BROKER}
# librdkafka times out after 10 s.
_WAIT_S_MAX: Final = 8.0
# Of all waiting requests; a connection has at most one.
_WAITING_BYTES_MAX: Final = 64 * 1024 * 1024
_read_api_key = struct.Struct(">h").unpack_from


class StartGate:
    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch = dispatch
        self._opened = asyncio.Event()
        self._waiting_bytes = 0

    def open(self) -> None:
        self._opened.set()

    def __call__(self, connection: Connection, frame: memoryview) -> tuple[bytes, Answer]:
        api_key = _read_api_key(frame)[0] if len(frame) >= 2 else -1
        if api_key in _AT_ONCE or connection.client.is_peer or self._opened.is_set():
            return self._dispatch(connection, frame)
        if self._waiting_bytes + len(frame) > _WAITING_BYTES_MAX:
            raise CloseConnection("the broker is starting and too many requests are waiting")
        # The frame is valid only until this returns. The header follows with the reply.
        return b"", Exclusive(self._serve_later(connection, bytearray(frame)))

    async def _serve_later(self, connection: Connection, frame: bytearray) -> Reply | NoReply:
        self._waiting_bytes += len(frame)
        try:
            async with asyncio.timeout(_WAIT_S_MAX):
                await self._opened.wait()
        except TimeoutError:
            raise CloseConnection("the broker is still starting") from None
        finally:
            self._waiting_bytes -= len(frame)
        connection.began_s = connection.time_s()  # The wait is not the client's.
        header, answer = self._dispatch(connection, memoryview(frame))
        reply = await reply_of(answer)
        if isinstance(reply, NoReply):
            return reply
        return Reply([header, *reply.chunks], reply.release)
