"""A link between a client and a server of this test."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from suwi.env.tasks import cancel_and_wait
from suwi.local_cluster.layout import ClusterState, Layout, is_free, write_state
from suwi.local_cluster.links import Cuts, Link, run
from suwi.local_cluster.zookeeper import HOST
from tests.local_cluster.ports import free_ports

_LIMIT_S = 120
_SILENCE_S = 0.2
_CUT = [("1", "2"), ("2", "1")]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


class World:
    """A server that echoes, behind a link from broker 1 to broker 2."""

    def __init__(self) -> None:
        self.cuts = Cuts()
        self.port, self.target = free_port(), free_port()
        self.server: asyncio.Server | None = None
        self.accepted: list[asyncio.StreamWriter] = []
        self.clients: list[asyncio.StreamWriter] = []

    async def start_server(self) -> None:
        self.server = await asyncio.start_server(self._echo, HOST, self.target)

    def kill_server(self) -> None:
        """As the end of its process."""
        assert self.server is not None
        self.server.close()
        for writer in self.accepted:
            writer.transport.abort()

    async def _echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted.append(writer)
        try:
            with suppress(ConnectionError):
                while data := await reader.read(1024):
                    writer.write(data)
        finally:
            writer.close()

    def take_port(self) -> socket.socket:
        """The link's port, as another program that listens on it."""
        return socket.create_server((HOST, self.port))

    async def wait_until_refused(self) -> None:
        async with asyncio.timeout(_LIMIT_S):
            while not is_free(self.port):  # noqa: ASYNC110 - the link tells nobody
                await asyncio.sleep(0.01)

    def close(self) -> None:
        for writer in self.clients:
            writer.close()
        self.kill_server()

    @asynccontextmanager
    async def link(self, start: str | None = "1") -> AsyncIterator[None]:
        link = Link(self.cuts, self.port, (HOST, self.target), "2", start)
        task = asyncio.create_task(link.run())
        try:
            yield
        finally:
            self.close()
            await cancel_and_wait(task)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """As soon as the link accepts connections."""
        async with asyncio.timeout(_LIMIT_S):
            while True:
                try:
                    reader, writer = await asyncio.open_connection(HOST, self.port)
                    self.clients.append(writer)
                    return reader, writer
                except ConnectionRefusedError:
                    await asyncio.sleep(0.01)

    async def connect_and_talk(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection whose first bytes were answered."""
        reader, writer = await self.connect()
        writer.write(b"one")
        assert await answer(reader, 3) == b"one"
        return reader, writer


async def is_silent(reader: asyncio.StreamReader) -> bool:
    try:
        await asyncio.wait_for(reader.read(1), _SILENCE_S)
    except TimeoutError:
        return True
    return False


async def answer(reader: asyncio.StreamReader, size: int) -> bytes:
    async with asyncio.timeout(_LIMIT_S):
        return await reader.readexactly(size)


def play(scenario: Callable[[World], Awaitable[None]]) -> None:
    async def run() -> None:
        await scenario(World())

    asyncio.run(run())


def test_bytes_of_a_cut_link_arrive_after_it_is_healed() -> None:
    async def scenario(world: World) -> None:
        await world.start_server()
        async with world.link():
            reader, writer = await world.connect_and_talk()
            world.cuts.replace(_CUT)
            writer.write(b"two")
            assert await is_silent(reader)
            world.cuts.replace([])
            assert await answer(reader, 3) == b"two"

    play(scenario)


def test_a_slow_link_delays_what_it_forwards_until_it_is_healed() -> None:
    async def scenario(world: World) -> None:
        await world.start_server()
        async with world.link():
            reader, writer = await world.connect()
            sent = b"." * 100_000
            world.cuts.replace([], slow=["2"])
            writer.write(sent)
            assert await is_silent(reader)
            world.cuts.replace([])
            assert await answer(reader, len(sent)) == sent

    play(scenario)


def test_a_one_way_cut_stops_the_responses_only() -> None:
    async def scenario(world: World) -> None:
        await world.start_server()
        async with world.link():
            reader, writer = await world.connect_and_talk()
            world.cuts.replace([("2", "1")])
            writer.write(b"two")
            assert await is_silent(reader)
            world.cuts.replace([("1", "2")])
            assert await answer(reader, 3) == b"two"

    play(scenario)


def test_a_cut_link_accepts_no_data_of_new_connections_and_refuses_none() -> None:
    async def scenario(world: World) -> None:
        await world.start_server()
        world.cuts.replace(_CUT)
        async with world.link():
            reader, writer = await world.connect()
            writer.write(b"one")
            assert await is_silent(reader)
            world.cuts.replace([])
            assert await answer(reader, 3) == b"one"

    play(scenario)


def test_the_client_id_tells_whose_connection_it_is() -> None:
    def request(client_id: bytes) -> bytes:
        rest = struct.pack(">hhih", 18, 0, 1, len(client_id)) + client_id
        return struct.pack(">i", len(rest)) + rest

    async def scenario(world: World) -> None:
        await world.start_server()
        world.cuts.replace(_CUT)
        async with world.link(start=None):
            cut, to_cut = await world.connect()
            other, to_other = await world.connect()
            to_cut.write(request(b"suwi-1"))
            to_other.write(request(b"suwi-3"))
            assert await answer(other, len(request(b"suwi-3"))) == request(b"suwi-3")
            assert await is_silent(cut)

    play(scenario)


def test_where_the_target_has_ended_the_link_refuses_before_its_connections_break() -> None:
    async def scenario(world: World) -> None:
        await world.start_server()
        async with world.link():
            reader, _ = await world.connect_and_talk()
            world.kill_server()
            async with asyncio.timeout(_LIMIT_S):
                with suppress(ConnectionError):
                    assert await reader.read(1) == b""
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(HOST, world.port)
            await world.start_server()
            back, to_back = await world.connect()
            to_back.write(b"again")
            assert await answer(back, 5) == b"again"

    play(scenario)


def test_a_link_listens_as_soon_as_its_port_is_no_longer_taken(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(world: World) -> None:
        await world.start_server()
        taken = world.take_port()
        async with world.link():
            async with asyncio.timeout(_LIMIT_S):
                while not caplog.messages:  # noqa: ASYNC110 - the link tells nobody else
                    await asyncio.sleep(0.01)
            taken.close()
            await world.connect_and_talk()

    play(scenario)
    (said,) = [r.message for r in caplog.records if r.name == "suwi.local_cluster.links"]
    assert "is taken by another program" in said


def test_links_of_a_removed_broker_no_longer_listen(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start_server()
        layout = Layout(2, 0, f"{HOST}:{world.target}", free_ports(), has_links=True)
        write_state(str(tmp_path), ClusterState(layout))
        task = asyncio.create_task(run(str(tmp_path)))
        try:
            world.port = layout.ensemble_link_port(2, 0)
            await world.connect_and_talk()
            write_state(str(tmp_path), ClusterState(layout.without(2)))
            await world.wait_until_refused()
            world.port = layout.ensemble_link_port(1, 0)
            await world.connect_and_talk()
        finally:
            world.close()
            await cancel_and_wait(task)

    play(scenario)
