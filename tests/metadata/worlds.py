"""Test environments for each kind of store: connections that can be disconnected or expired."""

import asyncio
import contextlib
import itertools
import random
import ssl
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

from kazoo.client import KazooClient

from suwi.metadata.embedded import EmbeddedStore
from suwi.metadata.memory import MemoryStore
from suwi.metadata.store import MetadataStore
from suwi.metadata.zookeeper import ZookeeperStore
from suwi.metadata.zookeeper_connection import ZookeeperSettings

PATIENCE_S = 120
"""Time limit for waiting."""


class SeededRandom:
    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)

    def below(self, bound: int) -> int:
        return self._random.randrange(bound)

    def token(self, size_bytes: int) -> bytes:
        return self._random.randbytes(size_bytes)

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self._random.getrandbits(128))


class World(Protocol):
    can_disconnect: bool

    async def connect(self) -> Any:
        """Another broker's connection to the same store."""

    async def disconnect(self, store: Any) -> None: ...

    async def reconnect(self, store: Any) -> None: ...

    async def expire(self, store: Any) -> None:
        """Have the store end this connection's session."""

    async def close(self) -> None: ...


async def until(store: MetadataStore, condition: Callable[[], Awaitable[bool]]) -> None:
    """Return when the condition holds; checks it only after notifications of the store."""
    woken = asyncio.Event()
    unsubscribe = store.subscribe(woken.set)
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not await condition():
                await woken.wait()
                woken.clear()
    finally:
        unsubscribe()


class MemoryWorld:
    can_disconnect = True

    def __init__(self) -> None:
        self.store = MemoryStore(SeededRandom(), session_timeout_s=60.0)

    async def connect(self) -> Any:
        return self.store.view()

    async def disconnect(self, store: Any) -> None:
        store.disconnect()

    async def reconnect(self, store: Any) -> None:
        store.reconnect()

    async def expire(self, store: Any) -> None:
        store.expire()

    async def close(self) -> None:
        pass


class EmbeddedWorld:
    can_disconnect = False

    def __init__(self, folder: Path) -> None:
        self._path = str(folder / "metadata.db")
        self._store: EmbeddedStore | None = None

    async def connect(self) -> Any:
        if self._store is None:
            self._store = await EmbeddedStore.open(self._path)
        return self._store.view()

    async def disconnect(self, store: Any) -> None:
        raise NotImplementedError

    async def reconnect(self, store: Any) -> None:
        raise NotImplementedError

    async def expire(self, store: Any) -> None:
        await store.expire()

    async def close(self) -> None:
        if self._store is not None:
            await self._store.close()


class Proxy:
    """A proxy between one client and the server; `cut` breaks and refuses its connections."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        """`tls`: what clients connect with; the server is reached without."""
        self._target = (host, port)
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._pumps: set[asyncio.Task[None]] = set()
        self.port = 0
        self.swallows_answers = False

    async def open(self) -> None:
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, ssl=self._tls
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for pump in list(self._pumps):
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._pumps.add(task)
        try:
            up_reader, up_writer = await asyncio.open_connection(*self._target)
            try:
                async with asyncio.TaskGroup() as pumps:
                    pumps.create_task(self._pump(reader, up_writer, is_answer=False))
                    pumps.create_task(self._pump(up_reader, writer, is_answer=True))
            finally:
                up_writer.transport.abort()
        except asyncio.CancelledError:
            pass  # The connection was cut.
        finally:
            writer.transport.abort()
            self._pumps.discard(task)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_answer: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if not (is_answer and self.swallows_answers):
                    writer.write(data)
                    await writer.drain()
        writer.transport.abort()


class ZookeeperWorld:
    can_disconnect = True
    _roots = itertools.count(1)

    def __init__(self, hosts: str, session_timeout_s: float = 30.0) -> None:
        self._hosts = hosts
        self._root = f"/test-{next(self._roots)}"
        self._session_timeout_s = session_timeout_s
        self._stores: dict[ZookeeperStore, tuple[Proxy, Any]] = {}

    async def connect(self) -> Any:
        host, port = self._hosts.split(":")
        proxy = Proxy(host, int(port))
        await proxy.open()
        store = await ZookeeperStore.open(
            ZookeeperSettings(
                f"127.0.0.1:{proxy.port}",
                root=self._root,
                session_timeout_s=self._session_timeout_s,
            )
        )
        self._stores[store] = (proxy, store._client.client_id)
        return store

    def proxy(self, store: Any) -> Proxy:
        return self._stores[store][0]

    async def disconnect(self, store: Any) -> None:
        await self._stores[store][0].cut()
        await until(store, lambda: _answer(not store._client.connected))

    async def reconnect(self, store: Any) -> None:
        await self._stores[store][0].open()

    async def expire(self, store: Any) -> None:
        """Attach another client to the session and close it there."""
        client = KazooClient(self._hosts, client_id=self._stores[store][1], timeout=8.0)

        def take_over() -> None:
            client.start(PATIENCE_S)
            client.stop()
            client.close()

        await asyncio.get_running_loop().run_in_executor(None, take_over)

    async def close(self) -> None:
        for store, (proxy, _) in self._stores.items():
            await store.close()
            await proxy.cut()


async def _answer(value: bool) -> bool:
    return value
