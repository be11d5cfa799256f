"""The connection to ZooKeeper: credentials, TLS, silent and unreachable servers (hazards Z7, Z10),
large packets (hazard Z12), sessions (hazards Z5, Z9)."""

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from suwi.env import local_env
from suwi.metadata import zookeeper_connection
from suwi.metadata.store import Applied, Put, SessionLost, Unavailable
from suwi.metadata.zookeeper import ZookeeperSession, ZookeeperStore
from suwi.metadata.zookeeper_connection import AccessDenied, Connection, Sockets, ZookeeperSettings
from suwi.metadata.zookeeper_format import Paths, encode_entry, encode_number
from suwi.metadata.zookeeper_settings import zookeeper_settings
from suwi.model.broker_config import parse_broker_config
from suwi.model.config_kinds import BadConfig
from suwi.model.ids import NodeId
from tests.metadata.worlds import PATIENCE_S, Proxy, ZookeeperWorld, until
from tests.security.certificates import Authority

PACKET_BYTES_MAX = 1024 * 1024
"""ZooKeeper's jute.maxbuffer."""


def run(scenario: Callable[[], Awaitable[None]], limit_s: float = 2 * PATIENCE_S) -> None:
    async def limited() -> None:
        async with asyncio.timeout(limit_s):
            await scenario()

    asyncio.run(limited())


def settings_of(**given: str) -> ZookeeperSettings:
    properties = {name.replace("_", "."): value for name, value in given.items()}
    return zookeeper_settings(parse_broker_config(properties).config, local_env())


# -- settings --------------------------------------------------------------------------------------


def test_hosts_and_path_are_taken_apart() -> None:
    settings = settings_of(zookeeper_connect="zk1:2181, zk2:2182/prod/")
    assert (settings.hosts, settings.root) == ("zk1:2181,zk2:2182", "/prod/suwi")
    assert settings_of(zookeeper_connect="zk1:2181").root == "/suwi"


def test_a_server_without_a_port_has_zookeepers() -> None:
    settings = settings_of(zookeeper_connect="zk1,zk2:2182/chroot")
    assert (settings.hosts, settings.root) == ("zk1:2181,zk2:2182", "/chroot/suwi")


@pytest.mark.parametrize("given", ["zk1:", "zk1:x", ":2181", "zk1:70000", "zk1:2181,,zk2:2181"])
def test_an_address_without_host_or_port_is_refused(given: str) -> None:
    with pytest.raises(BadConfig, match="give it as HOST:PORT"):
        settings_of(zookeeper_connect=given)


def test_credentials_come_from_a_value_or_a_file_and_are_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "auth"
    file.write_text("digest:suwi:se:cret\n")
    settings = settings_of(zookeeper_connect="zk1:2181", zookeeper_auth_file=str(file))
    assert settings.auth == ("digest", "suwi:se:cret")
    assert "se:cret" not in repr(settings)
    with pytest.raises(BadConfig, match="digest:USER:PASSWORD") as error:
        settings_of(zookeeper_connect="zk1:2181", zookeeper_auth="secret")
    assert "secret" not in str(error.value)


def test_one_unreachable_host_costs_only_its_part_of_the_session() -> None:
    settings = ZookeeperSettings("a:1,b:1,c:1", session_timeout_s=6.0)
    assert settings.connect_timeout_s == 2.0


# -- credentials and TLS ---------------------------------------------------------------------------


@pytest.mark.zookeeper
def test_znodes_made_with_credentials_are_closed_to_others(
    zookeeper: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        opened = await ZookeeperStore.open(ZookeeperSettings(zookeeper, "/test-open"))
        await opened.close()
        assert "anybody can change the metadata" in caplog.text
        caplog.clear()
        root = "/test-digest"
        own = ZookeeperSettings(zookeeper, root, auth=("digest", "suwi:secret"))
        store = await ZookeeperStore.open(own)
        assert await store.write([Put("a", b"1")]) == Applied(1)
        for auth in (None, ("digest", "suwi:wrong")):
            with pytest.raises(AccessDenied, match=r"zookeeper\.auth"):
                await ZookeeperStore.open(ZookeeperSettings(zookeeper, root, auth=auth))
        again = await ZookeeperStore.open(own)
        assert (await again.read("a")) is not None
        await store.close()
        await again.close()
        assert "anybody can change the metadata" not in caplog.text

    run(scenario)


@pytest.mark.zookeeper
def test_zookeeper_is_reached_by_tls_and_only_with_a_trusted_certificate(
    zookeeper: str, tmp_path: Path
) -> None:
    async def scenario() -> None:
        authority = Authority(tmp_path / "ca")
        server, client = authority.issue("zookeeper"), authority.issue("broker")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(server.certificate, server.key)
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(authority.certificate)
        host, port = zookeeper.split(":")
        proxy = Proxy(host, int(port), context)
        await proxy.open()

        given = {
            "zookeeper_connect": f"127.0.0.1:{proxy.port}/test-tls",
            "zookeeper_ssl_client_enable": "true",
            "zookeeper_ssl_keystore_location": str(client.both),
        }
        trusting = {"zookeeper_ssl_truststore_location": str(authority.certificate)}
        store = await ZookeeperStore.open(settings_of(**given, **trusting))
        assert await store.write([Put("a", bytes(100_000))]) == Applied(1)
        await store.close()
        with pytest.raises(Unavailable):
            await ZookeeperStore.open(settings_of(**given), connect_timeout_s=1.0)
        await proxy.cut()

    run(scenario)


# -- silent and unreachable servers ----------------------------------------------------------------


@pytest.mark.zookeeper
def test_a_host_that_does_not_answer_does_not_prevent_the_connection(zookeeper: str) -> None:
    async def scenario() -> None:
        with socket.socket() as silent:  # Its backlog takes connections; nobody answers.
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            hosts = f"127.0.0.1:{silent.getsockname()[1]},{zookeeper}"
            for _ in range(4):  # kazoo tries the hosts in random order.
                store = await ZookeeperStore.open(
                    ZookeeperSettings(hosts, "/test-silent", session_timeout_s=6.0),
                    connect_timeout_s=PATIENCE_S,
                )
                await store.close()

    run(scenario)


@pytest.mark.zookeeper
def test_a_session_that_a_silent_server_does_not_confirm_is_overdue(zookeeper: str) -> None:
    async def scenario() -> None:
        world = ZookeeperWorld(zookeeper, session_timeout_s=8.0)
        store = await world.connect()
        session = await store.open_session()
        assert not session.is_overdue
        world.proxy(store).swallows_answers = True

        began_s = time.monotonic()
        while not session.is_overdue:
            assert time.monotonic() - began_s < PATIENCE_S
            await asyncio.sleep(0.05)
        await world.proxy(store).cut()
        world.proxy(store).swallows_answers = False
        await world.reconnect(store)
        await until(store, lambda: _answers(store))
        assert session.is_overdue == session.lost.is_set()
        await world.close()

    run(scenario)


@pytest.mark.zookeeper
def test_a_reconnected_session_goes_on_with_its_registration_and_election(zookeeper: str) -> None:
    async def scenario() -> None:
        world = ZookeeperWorld(zookeeper)
        store = await world.connect()
        session = await store.open_session()
        epoch = await session.register("brokers/1", b"")
        controller = await session.campaign(NodeId(1))
        await world.disconnect(store)
        await world.reconnect(store)
        await until(store, lambda: _answers(store))
        assert not session.lost.is_set()
        assert await session.register("brokers/1", b"") == epoch
        assert await session.campaign(NodeId(1)) == controller
        await world.close()

    run(scenario)


@pytest.mark.zookeeper
def test_closing_is_bounded_while_the_server_is_silent(zookeeper: str) -> None:
    async def scenario() -> None:
        world = ZookeeperWorld(zookeeper, session_timeout_s=60.0)
        store = await world.connect()
        session = await store.open_session()
        world.proxy(store).swallows_answers = True
        async with asyncio.timeout(60):  # kazoo alone would wait for the session timeout, twice.
            await session.close()
            await store.close()
        await world.close()

    run(scenario)


@pytest.mark.zookeeper
def test_after_the_end_of_its_session_a_broker_does_not_connect_again(
    zookeeper: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        world = ZookeeperWorld(zookeeper)
        for _ in range(5):
            store = await world.connect()
            session = await store.open_session()
            caplog.clear()
            await session.close()
            await store.close()
            assert [record.message for record in caplog.records] == []
        await world.close()

    with caplog.at_level(logging.INFO, "suwi.metadata"):
        run(scenario)


async def _answers(store: ZookeeperStore) -> bool:
    try:
        await store.sync()
    except Unavailable:
        return False
    return True


# -- packets (hazard Z12) --------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.zookeeper
@pytest.mark.parametrize("count", [5_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_thousands_of_topics_with_long_names_are_listed_in_small_packets(
    zookeeper: str, count: int
) -> None:
    async def scenario() -> None:
        root = f"/test-many-{count}"
        store = await ZookeeperStore.open(ZookeeperSettings(zookeeper, root, session_timeout_s=60))
        keys = [f"topics/{number:0249d}" for number in range(count)]
        assert sum(map(len, keys)) > PACKET_BYTES_MAX
        for first in range(0, len(keys), 1000):
            puts = [Put(key, b"state") for key in keys[first : first + 1000]]
            assert isinstance(await store.write(puts), Applied)
        found = None
        while found is None:
            await asyncio.sleep(0.1)
            with contextlib.suppress(Unavailable):  # a busy machine may lose the connection
                found = await store.read_all()
        assert sorted(found.entries) == keys
        lists = await store._connection.children(*Paths(root).buckets())
        for names, _ in lists:
            assert sum(len(name) + 4 for name in names) < PACKET_BYTES_MAX / 2
        await store.close()

    run(scenario, 10 * PATIENCE_S)


class _TwoSessions:
    """A connection that goes on in a new session after the head was read; the new one reads older
    entries until it is synced."""

    def __init__(self) -> None:
        self.session_id, self.head_seen = 1, 0
        self._head, self._value = 5, encode_entry(b"new", 5)

    def saw(self, head: int) -> None:
        self.head_seen = head

    async def sync(self) -> None:
        self._head, self._value = 5, encode_entry(b"new", 5)

    async def get(self, *paths: str) -> list[tuple[bytes, None]]:
        return [
            (encode_number(self._head) if path == "/suwi/head" else self._value, None)
            for path in paths
        ]

    async def children(self, *paths: str) -> list[tuple[list[str], None]]:
        if self.session_id == 1:
            self.session_id = 2
            self._head, self._value = 1, encode_entry(b"old", 1)
        own = Paths("/suwi").entry("a")
        return [(["a"] if own.startswith(path) else [], None) for path in paths]


def test_a_snapshot_is_read_in_one_session() -> None:
    """Entries that a new session read were taken to be as new as the head that the last one
    read."""

    async def scenario() -> None:
        store: Any = ZookeeperStore(ZookeeperSettings("127.0.0.1:1"))
        await store._connection.close()
        store._connection = _TwoSessions()
        snapshot = await store.read_all()
        assert snapshot.sequence == 5
        assert snapshot.entries["a"].value == b"new"

    run(scenario)


def test_a_host_that_was_left_because_it_was_silent_is_tried_last() -> None:
    sockets = Sockets(1.0, None)
    hosts = [(f"zk{n}", f"127.0.0.{n}", 2181) for n in (1, 2, 3)]
    assert sockets.with_silent_last(hosts) == hosts
    with contextlib.suppress(OSError):
        sockets.create_connection(("127.0.0.1", 1))
    sockets.disconnect()
    others = [("zk1", "127.0.0.1", 1), *hosts[1:]]
    assert sockets.with_silent_last(others) == [*hosts[1:], ("zk1", "127.0.0.1", 1)]


# -- sessions and lost data, without a server ------------------------------------------------------


class _Elsewhere:
    """A connection that has gone on in another session by itself."""

    session_id = 8


def test_a_session_that_was_replaced_is_lost_at_once() -> None:
    """What says so may still be on its way: whoever tries again at once must not try for ever."""

    async def scenario() -> None:
        store: Any = SimpleNamespace(subscribe=lambda _: lambda: None)
        connection: Any = _Elsewhere()
        session = ZookeeperSession(7, store, connection, Paths("/suwi"))
        with pytest.raises(SessionLost):
            await session.campaign(NodeId(1))
        assert session.lost.is_set()

    run(scenario)


@pytest.mark.parametrize(("head", "is_lost"), [(100, False), (99, True)])
def test_data_is_lost_if_the_ensemble_has_less_than_was_seen_before_it_was_asked(
    monkeypatch: pytest.MonkeyPatch, head: int, is_lost: bool
) -> None:
    async def scenario() -> None:
        connection = Connection(ZookeeperSettings("127.0.0.1:1"), lambda *_: None)
        connection.saw(100)

        def read(_path: str) -> tuple[bytes, None]:
            connection.saw(101)  # The other client has reconnected, and has written.
            return encode_number(head), None

        probe = SimpleNamespace(
            start=lambda _: None, sync=lambda _: None, get=read, stop=bool, close=bool
        )
        monkeypatch.setattr(zookeeper_connection, "_make_client", lambda *_: probe)
        connection._probe()
        assert bool(connection._rolled_back) is is_lost
        await connection.close()

    run(scenario)
