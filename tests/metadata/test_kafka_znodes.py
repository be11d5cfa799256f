"""The copy at the znodes of Apache Kafka, on a real ZooKeeper: what anybody can read there."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NoNodeError

from suwi.controller.registration import OwnRegistration, encode_registration
from suwi.env import local_env
from suwi.env.tasks import cancel_and_wait
from suwi.metadata.image import CLUSTER, BrokerInfo, Endpoint
from suwi.metadata.store import ForeignZnodes, Put, Session
from suwi.metadata.zookeeper import ZookeeperStore
from suwi.metadata.zookeeper_connection import ZookeeperSettings
from suwi.metadata.zookeeper_settings import zookeeper_settings
from suwi.model.broker_config import parse_broker_config
from suwi.model.config_kinds import BadConfig
from suwi.model.ids import NodeId
from tests.metadata.worlds import PATIENCE_S

pytestmark = pytest.mark.zookeeper
_roots = itertools.count(1)
_LISTENERS = {"INSIDE": "SSL", "PLAIN": "PLAINTEXT"}
ID = "an-id-of-22-characters"


class World:
    """A path of its own in ZooKeeper, and somebody without credentials who looks at it."""

    def __init__(self, hosts: str) -> None:
        self.base = f"/books-{next(_roots)}"
        self._settings = ZookeeperSettings(
            hosts,
            f"{self.base}/suwi",
            auth=("digest", "suwi:secret"),
            copied_listeners=_LISTENERS,
        )
        self.anybody = KazooClient(hosts)
        self.anybody.start(PATIENCE_S)

    async def store(self) -> ZookeeperStore:
        store = await ZookeeperStore.open(self._settings)
        await store.write([Put(CLUSTER, ID.encode())])
        return store

    @asynccontextmanager
    async def broker(self, number: int) -> AsyncIterator[tuple[ZookeeperStore, Session]]:
        """A broker that is registered and keeps its copy."""
        store = await self.store()
        assert store.readable_copy is not None
        await store.readable_copy.prepare()
        session = await store.open_session()
        endpoints = (Endpoint("INSIDE", "::1", 9093), Endpoint("PLAIN", "host", 9092))
        info = BrokerInfo(NodeId(number), endpoints, "a" if number == 1 else None)
        key = f"brokers/{number}"
        await session.register(key, encode_registration(OwnRegistration(info, False)))
        copying = asyncio.create_task(store.readable_copy.keep(key))
        try:
            yield store, session
        finally:
            await cancel_and_wait(copying)
            await store.close()

    def read(self, path: str) -> Any:
        try:
            return json.loads(self.anybody.get(self.base + path)[0])
        except NoNodeError:
            return None

    async def until(self, path: str, is_right: Callable[[Any], bool]) -> Any:
        async with asyncio.timeout(PATIENCE_S):
            while not is_right(self.read(path)):  # noqa: ASYNC110 - ZooKeeper tells nobody
                await asyncio.sleep(0.05)
        return self.read(path)

    def close(self) -> None:
        self.anybody.stop()
        self.anybody.close()


def play(hosts: str, scenario: Callable[[World], Awaitable[None]]) -> None:
    async def run() -> None:
        world = World(hosts)
        try:
            await scenario(world)
        finally:
            world.close()

    asyncio.run(run())


def test_anybody_reads_brokers_controller_and_cluster_as_kafka_writes_them(zookeeper: str) -> None:
    async def scenario(world: World) -> None:
        async with world.broker(1) as (_, session), world.broker(2):
            controller = await session.campaign(NodeId(1))
            found = await world.until("/brokers/ids/1", bool)
            assert found.pop("timestamp").isdigit()
            assert found == {
                "version": 5,
                "host": "host",
                "port": 9092,
                "endpoints": ["INSIDE://[::1]:9093", "PLAIN://host:9092"],
                "jmx_port": -1,
                "listener_security_protocol_map": _LISTENERS,
                "features": {},
                "rack": "a",
            }
            assert "rack" not in await world.until("/brokers/ids/2", bool)
            elected = await world.until("/controller", bool)
            assert elected.pop("timestamp").isdigit()
            assert elected == {"version": 1, "brokerid": 1}
            assert world.read("/controller_epoch") == controller.epoch
            assert world.read("/cluster/id") == {"version": "1", "id": ID}
            assert sorted(world.anybody.get_children(f"{world.base}/brokers/ids")) == ["1", "2"]

    play(zookeeper, scenario)


def test_nobody_else_can_change_the_copy_or_create_below_it(zookeeper: str) -> None:
    async def scenario(world: World) -> None:
        async with world.broker(1) as (_, session):
            await session.campaign(NodeId(1))
            await world.until("/controller", bool)
            await world.until("/brokers/ids/1", bool)
            anybody, base = world.anybody, world.base
            for parent in ("/brokers", "/brokers/ids", "/cluster", "/cluster/id"):
                with pytest.raises(NoAuthError):
                    anybody.create(f"{base}{parent}/mine", b"")
            for path in ("/brokers/ids/1", "/controller", "/controller_epoch", "/cluster/id"):
                with pytest.raises(NoAuthError):
                    anybody.set(base + path, b"")
            with pytest.raises(NoAuthError):
                anybody.delete(f"{base}/brokers/ids/1")

    play(zookeeper, scenario)


def test_the_copy_of_a_broker_ends_with_its_session(zookeeper: str) -> None:
    async def scenario(world: World) -> None:
        async with world.broker(1) as (_, session):
            controller = await session.campaign(NodeId(1))
            await world.until("/controller", bool)
            await world.until("/brokers/ids/1", bool)
        await world.until("/brokers/ids/1", lambda found: found is None)
        await world.until("/controller", lambda found: found is None)
        assert world.read("/controller_epoch") == controller.epoch
        async with world.broker(1):
            await world.until("/brokers/ids/1", bool)

    play(zookeeper, scenario)


def test_the_copy_follows_to_the_next_controller(zookeeper: str) -> None:
    async def scenario(world: World) -> None:
        async with world.broker(1) as (first, session), world.broker(2) as (_, other):
            controller = await session.campaign(NodeId(1))
            await world.until("/controller", bool)
            await first.depose(controller.epoch)
            await world.until("/controller", lambda found: found is None)
            after = await other.campaign(NodeId(2))
            await world.until("/controller", lambda found: found and found["brokerid"] == 2)
            assert world.read("/controller_epoch") == after.epoch > controller.epoch

    play(zookeeper, scenario)


@pytest.mark.parametrize(
    ("tree", "reason"),
    [
        ({"/cluster/id": b'{"version":"1","id":"other"}'}, "belongs to cluster other"),
        ({"/brokers/ids/1": b"{}"}, "has no /cluster/id"),
        ({"/controller": b"{}"}, "has no /cluster/id"),
        (
            {"/cluster/id": b'{"id":"%s"}' % ID.encode(), "/brokers/topics/t": b""},
            "has /brokers/topics",
        ),
        ({"/cluster/id": b'{"id":"%s"}' % ID.encode()}, "can be changed by anybody"),
    ],
)
def test_a_tree_of_another_cluster_is_refused_and_left_as_it_is(
    zookeeper: str, tree: dict[str, bytes], reason: str
) -> None:
    async def scenario(world: World) -> None:
        world.anybody.ensure_path(world.base)
        for path, value in tree.items():
            world.anybody.create(world.base + path, value, makepath=True)
        store = await world.store()
        assert store.readable_copy is not None
        with pytest.raises(ForeignZnodes, match=reason):
            await store.readable_copy.prepare()
        for path, value in tree.items():
            assert world.anybody.get(world.base + path)[0] == value
        await store.close()

    play(zookeeper, scenario)


def test_a_copy_needs_credentials() -> None:
    properties = {"zookeeper.connect": "zk:2181", "zookeeper.copy.enable": "true"}
    with pytest.raises(BadConfig, match=r"zookeeper\.copy\.enable needs zookeeper\.auth"):
        zookeeper_settings(parse_broker_config(properties).config, local_env())
    properties["zookeeper.auth"] = "digest:suwi:secret"
    properties["listeners"] = "A://127.0.0.1:1"
    properties["listener.security.protocol.map"] = "A:PLAINTEXT"
    settings = zookeeper_settings(parse_broker_config(properties).config, local_env())
    assert settings.copied_listeners == {"A": "PLAINTEXT"}
