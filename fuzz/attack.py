"""One hostile peer: it sends case after case and checks the outcome of each.

After a case with an open outcome the peer sends an honest request on the same connection: its
response, or the end of the connection, shows that the broker has finished the case.
"""

import asyncio
import random
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Final

from fuzz.cases import Case, Ending, Expected
from fuzz.requests import frame
from suwi.wire.codec import read_response
from suwi.wire.errors import MalformedMessage
from suwi.wire.headers import read_response_header
from suwi.wire.versions import APIS, ApiKey

_SENTINEL_ID: Final = 0x7EAD_BEEF
_SENTINEL: Final = frame(ApiKey.API_VERSIONS, 0, _SENTINEL_ID, b"")
# A frame announced longer than it is swallows the honest request: then no response is correct.
_OPEN_OUTCOME_S: Final = 0.2
_ANSWER_S: Final = 120.0
_SLOW_ANSWER_S: Final = 300.0
_ABANDONED_MAX: Final = 20
_RESET: Final = struct.pack("ii", 1, 0)


class Attacker:
    def __init__(
        self, address: Callable[[], tuple[str, int]], on_finding: Callable[[str, Case], None]
    ) -> None:
        self.sent = 0
        self.recent: deque[Case] = deque(maxlen=8)
        self.ports: deque[tuple[int, Case]] = deque(maxlen=64)
        """Local ports and the cases sent through them, to find the cause of a log line."""
        self._address = address
        self._on_finding = on_finding
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._abandoned: deque[asyncio.StreamWriter] = deque()
        self._open: set[asyncio.StreamWriter] = set()
        """All that were not aborted: Python warns about connections that are not closed."""

    async def run(self, case: Case) -> None:
        """Send one case; findings are reported. A lost connection alone is none."""
        self.recent.append(case)
        try:
            await self._run(case)
        except (OSError, EOFError, TimeoutError) as error:
            if case.answers is not None:
                self._on_finding(f"no response to a good request: {error!r}", case)
            self._drop()
        self.sent += 1

    async def _run(self, case: Case) -> None:
        reader, writer = await self._connected()
        self.ports.append((writer.get_extra_info("sockname")[1], case))
        await self._send(writer, case)
        if case.answers is not None:
            limit_s = _SLOW_ANSWER_S if case.is_slow else _ANSWER_S
            async with asyncio.timeout(limit_s):
                for expected in case.answers:
                    self._check(case, expected, await _read_frame(reader))
            return
        if case.ending is Ending.STAY:
            writer.write(_SENTINEL)
            await self._await_outcome(reader, writer)
        else:
            await self._end(reader, writer, case.ending)
            self._drop()

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._reader is None or self._writer is None or self._reader.at_eof():
            self._drop()
            self._reader, self._writer = await asyncio.open_connection(*self._address())
            self._open.add(self._writer)
        return self._reader, self._writer

    async def _send(self, writer: asyncio.StreamWriter, case: Case) -> None:
        chance = random.Random(case.number)
        cuts = sorted(chance.randrange(len(case.data) + 1) for _ in range(case.pieces - 1))
        for start, end in zip([0, *cuts], [*cuts, len(case.data)], strict=True):
            writer.write(case.data[start:end])
            if len(cuts):
                await asyncio.sleep(0)
        await writer.drain()

    def _check(self, case: Case, expected: Expected, answer: bytes) -> None:
        api_key, version, correlation_id = expected
        name = f"{APIS[api_key].name} v{version}"
        try:
            found_id, body_at = read_response_header(api_key, version, memoryview(answer))
            if found_id != correlation_id:
                self._on_finding(f"{name}: response {found_id} instead of {correlation_id}", case)
            read_response(api_key, version, answer, body_at)
        except MalformedMessage as error:
            self._on_finding(f"{name}: its response does not parse: {error}", case)

    async def _await_outcome(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            async with asyncio.timeout(_OPEN_OUTCOME_S):
                while int.from_bytes((await _read_frame(reader))[:4], "big") != _SENTINEL_ID:
                    pass
        except (ConnectionError, asyncio.IncompleteReadError):
            self._drop()
        except TimeoutError:
            # Still waiting for the rest of a frame, or for a fetch: leave it so.
            self._abandoned.append(writer)
            self._reader = self._writer = None
            if len(self._abandoned) > _ABANDONED_MAX:
                self._abort(self._abandoned.popleft())

    async def _end(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ending: Ending
    ) -> None:
        if ending is Ending.HALF_CLOSE:
            writer.write_eof()
            async with asyncio.timeout(_ANSWER_S):
                await reader.read()
        elif ending is Ending.RESET:
            connection = writer.get_extra_info("socket")
            if connection is not None:  # a simulated one is reset anyway
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)

    def _drop(self) -> None:
        if self._writer is not None:
            self._abort(self._writer)
        self._reader = self._writer = None

    def _abort(self, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()
        self._open.discard(writer)

    def close(self) -> None:
        for writer in list(self._open):
            self._abort(writer)
        self._abandoned.clear()
        self._reader = self._writer = None


async def _read_frame(reader: asyncio.StreamReader) -> bytes:
    size = int.from_bytes(await reader.readexactly(4), "big")
    return await reader.readexactly(size)
