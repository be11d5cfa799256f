"""The links of a local cluster: proxies between brokers, and from brokers to ZooKeeper.

`python -m suwi.local_cluster.links DIR` runs all of them and follows `cluster.json`. A cut link
forwards nothing and closes nothing, as a network that drops packets: peers see a timeout. A slow
one delays what it forwards. Where the target refuses connections, because its process has ended,
the link does so too. A link whose port another program has taken waits until the port is free.
Invariant: the bytes of a connection arrive complete and in order, or not at all.
"""

import asyncio
import contextlib
import errno
import logging
import os
import re
import struct
import sys
from collections.abc import Iterable

from suwi.env import LocalDisk
from suwi.env.tasks import wait_for_event
from suwi.local_cluster.layout import (
    FOLLOWED,
    ZOOKEEPER,
    ClusterState,
    Cut,
    read_state,
    version_of_state,
)
from suwi.local_cluster.zookeeper import HOST

log = logging.getLogger(__name__)

_CHUNK_BYTES = 1 << 18
_POLL_S = 0.05
_SLOW_S, _SLOW_BYTES_PER_S = 0.1, 50_000
# Length, API key, version, correlation id and the length of the client id.
_REQUEST_START = struct.Struct(">ihhih")
_PEER = re.compile(rb"suwi-(\d+)")
"""The client id of a broker's connections to other brokers."""
_UNKNOWN = "?"

Address = tuple[str, int]


class Cuts:
    def __init__(self) -> None:
        self._pairs: frozenset[Cut] = frozenset()
        self._slow: frozenset[str] = frozenset()
        self._changed = asyncio.Event()

    def replace(self, pairs: Iterable[Cut], slow: Iterable[str] = ()) -> None:
        self._pairs = frozenset(pairs)
        self._slow = frozenset(slow)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def passes(self, start: str, to: str, size_bytes: int = 0) -> None:
        """Wait while the way from `start` to `to` is cut, and as long as it takes if it is slow."""
        if size_bytes and not self._slow.isdisjoint((start, to)):
            await wait_for_event(self._changed, _SLOW_S + size_bytes / _SLOW_BYTES_PER_S)
        while (start, to) in self._pairs:
            await self._changed.wait()


class Link:
    def __init__(self, cuts: Cuts, port: int, target: Address, to: str, start: str | None) -> None:
        """`start` is None if several brokers share it: each connection tells whose it is."""
        self._cuts = cuts
        self._port = port
        self._target = target
        self._to = to
        self._start = start
        self._server: asyncio.Server | None = None
        self._refused = asyncio.Event()

    async def run(self) -> None:
        """Listen whenever the target does."""
        while True:
            while not await self._target_accepts():  # noqa: ASYNC110 - another process
                await asyncio.sleep(_POLL_S)
            self._refused.clear()
            self._server = await self._listen()
            try:
                await self._refused.wait()
            finally:
                self._refuse()

    async def _listen(self) -> asyncio.Server:
        """As soon as the port is free."""
        is_told = False
        while True:
            try:
                return await asyncio.start_server(self._serve, HOST, self._port, limit=_CHUNK_BYTES)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                if not is_told:
                    log.warning(
                        "port %d is taken by another program: the link to %s:%d waits for it",
                        self._port,
                        *self._target,
                    )
                    is_told = True
            await asyncio.sleep(_POLL_S)

    async def _target_accepts(self) -> bool:
        try:
            _, writer = await asyncio.open_connection(*self._target)
        except OSError:
            return False
        writer.close()
        return True

    async def _stop_listening_if_refused(self) -> None:
        if self._server is not None and not await self._target_accepts():
            self._refuse()

    def _refuse(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
            self._refused.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError, EOFError):
                start, request = await self._read_start(reader)
                await self._cuts.passes(start, self._to)
                await self._cuts.passes(self._to, start)
                await self._forward(start, request, reader, writer)
        finally:
            writer.transport.abort()

    async def _read_start(self, reader: asyncio.StreamReader) -> tuple[str, bytes]:
        """Whose connection it is, and the bytes that told it."""
        if self._start is not None:
            return self._start, b""
        head = await reader.readexactly(_REQUEST_START.size)
        *_, size_bytes = _REQUEST_START.unpack(head)
        client_id = await reader.readexactly(max(size_bytes, 0))
        peer = _PEER.fullmatch(client_id)
        return peer[1].decode() if peer else _UNKNOWN, head + client_id

    async def _forward(
        self,
        start: str,
        request: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        try:
            from_target, to_target = await asyncio.open_connection(
                *self._target, limit=_CHUNK_BYTES
            )
        except ConnectionRefusedError:
            self._refuse()
            return
        to_target.write(request)
        requests = asyncio.create_task(  # owner: this function
            self._pump(reader, to_target, start, self._to)
        )
        responses = asyncio.create_task(  # owner: this function
            self._pump(from_target, writer, self._to, start)
        )
        try:
            done, _ = await asyncio.wait([requests, responses], return_when=asyncio.FIRST_COMPLETED)
            if responses in done:
                # Before the other side notices: its next connection has to be refused as well.
                await self._stop_listening_if_refused()
        finally:
            requests.cancel()
            responses.cancel()
            to_target.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, start: str, to: str
    ) -> None:
        """Returns when the sender has closed the connection, and the receiver may notice it."""
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                await self._cuts.passes(start, to, len(data))
                writer.write(data)
                await writer.drain()
        await self._cuts.passes(start, to)


def links_of(state: ClusterState, cuts: Cuts) -> dict[int, Link]:
    """By the port on which each listens."""
    layout = state.layout
    found = {}
    for broker in layout.broker_ids:
        port, target = layout.peer_link_port(broker), (HOST, layout.peer_port(broker))
        found[port] = Link(cuts, port, target, str(broker), None)
        for at, server in enumerate(layout.ensemble()):
            port = layout.ensemble_link_port(broker, at)
            found[port] = Link(cuts, port, server, ZOOKEEPER, str(broker))
    return found


async def run(directory: str) -> None:
    cuts = Cuts()
    running: dict[int, asyncio.Task[None]] = {}
    read = None
    async with asyncio.TaskGroup() as group:
        while True:
            if (found := version_of_state(directory)) != read:
                read = found
                state = read_state(directory)
                assert state is not None
                cuts.replace(state.cuts, state.slow)
                links = links_of(state, cuts)
                for port, link in links.items():
                    if port not in running:
                        running[port] = group.create_task(link.run())  # owner: the task group
                for port in running.keys() - links.keys():  # of a broker that was removed
                    running.pop(port).cancel()
                LocalDisk().write_atomically(os.path.join(directory, FOLLOWED), read.encode())
            await asyncio.sleep(_POLL_S)


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    asyncio.run(run(sys.argv[1]))
