"""Requests during start: the ports are open at once, but requests are served only later."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from suwi.broker.broker import Broker
from suwi.client.connection import ConnectionLost, PeerConnection
from suwi.controller.registration import decode_incarnation
from suwi.metadata.image import BrokerInfo, Endpoint
from suwi.metadata.memory import MemoryStore, MemoryView
from suwi.metadata.store import Session
from suwi.model.broker_config import parse_broker_config
from suwi.model.ids import NodeId
from suwi.net.dispatch import Dispatcher
from suwi.sim import Machine, Simulation
from suwi.wire.versions import ApiKey
from tests.broker.simulated import create_topic, produce

PORT = 9092
B1, B2 = NodeId(1), NodeId(2)
_NAMES = {"client_software_name": "test", "client_software_version": "1"}
_ALL_TOPICS = {
    "topics": None,
    "allow_auto_topic_creation": False,
    "include_cluster_authorized_operations": False,
    "include_topic_authorized_operations": False,
}


class SlowView:
    """A view of the store that opens no session before `may_join` is set, so that the broker does
    not register."""

    def __init__(self, view: MemoryView) -> None:
        self._view = view
        self.may_join = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)

    async def open_session(self) -> Session:
        await self.may_join.wait()
        return await self._view.open_session()


class StartingBroker:
    def __init__(
        self,
        simulation: Simulation,
        store: MemoryStore,
        node: NodeId,
        start_together: list[NodeId],
        *,
        adopts: bool = False,
        joining: asyncio.Barrier | None = None,
    ) -> None:
        self.node = node
        name = f"b{node}"
        known = simulation.machines.get(name)
        self.machine: Machine = simulation.machine(name) if known is None else known
        env = self.machine.start()
        self.view = SlowView(self.machine.call(store.view))
        properties = {
            "node.id": str(node),
            "listeners": f"PLAINTEXT://b{node}:{PORT}",
            "log.dirs": "/data",
        }
        config = parse_broker_config(properties).config
        self.broker = Broker(
            env,
            config,
            self.view,  # type: ignore[arg-type]
            adopts=adopts,
            start_together=start_together,
        )
        self.starting = self.machine.spawn(self.broker.start(joining))

    async def connect(self) -> PeerConnection:
        """Connect as soon as its port is open."""
        while True:
            try:
                return await PeerConnection.open(f"b{self.node}", PORT)
            except OSError:
                await asyncio.sleep(0.01)

    async def stop(self) -> None:
        await self.machine.spawn(self.broker.stop())


class World:
    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._store = MemoryStore(simulation.random.stream("store"))

    def start(
        self,
        node: NodeId = B1,
        start_together: list[NodeId] | None = None,
        joining: asyncio.Barrier | None = None,
    ) -> StartingBroker:
        together = start_together or []
        return StartingBroker(self._simulation, self._store, node, together, joining=joining)

    def adopt(self) -> StartingBroker:
        """Start the broker with its data and new metadata."""
        self._store = MemoryStore(self._simulation.random.stream("other store"))
        return StartingBroker(self._simulation, self._store, B1, [], adopts=True)


def run(scenario: Callable[[World], Awaitable[None]], seed: int = 1) -> None:
    simulation = Simulation(seed)

    async def main() -> None:
        await scenario(World(simulation))

    simulation.run(main())


async def metadata(client: PeerConnection) -> tuple[list[int], int]:
    """The brokers and the controller in a metadata response."""
    answer = await client.call(ApiKey.METADATA, 9, _ALL_TOPICS)
    return [broker.node_id for broker in answer.brokers], answer.controller_id


@pytest.mark.parametrize("seed", range(5))
def test_an_early_client_waits_until_the_metadata_is_complete(seed: int) -> None:
    async def scenario(world: World) -> None:
        starting = world.start()
        client = await starting.connect()
        answer = await client.call(ApiKey.API_VERSIONS, 3, _NAMES)
        assert answer.error_code == 0
        asked = [asyncio.ensure_future(metadata(client)) for _ in range(3)]
        await asyncio.sleep(5)
        assert not any(each.done() for each in asked)
        starting.view.may_join.set()
        assert await asyncio.gather(*asked) == 3 * [([1], 1)]
        await starting.starting
        await starting.stop()

    run(scenario, seed)


def test_an_early_client_is_disconnected_before_its_request_timeout() -> None:
    async def scenario(world: World) -> None:
        starting = world.start()
        client = await starting.connect()
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(ConnectionLost):
            await metadata(client)
        assert 7.9 < asyncio.get_running_loop().time() - began_s < 8.5
        # A client that connects after that waits again, and is served in time.
        client = await starting.connect()
        asked = asyncio.ensure_future(metadata(client))
        await asyncio.sleep(1)
        starting.view.may_join.set()
        assert await asked == ([1], 1)
        await starting.starting
        await starting.stop()

    run(scenario)


@pytest.mark.parametrize("acks", [1, -1])
def test_early_requests_are_served_when_the_broker_is_ready(acks: int) -> None:
    async def scenario(world: World) -> None:
        first = world.start()
        first.view.may_join.set()
        client = await first.connect()
        await create_topic(client, "orders")
        await first.stop()
        first.machine.kill()
        again = world.start()
        client = await again.connect()
        produced = asyncio.ensure_future(produce(client, "orders", [b"x"], acks=acks))
        await asyncio.sleep(1)
        assert not produced.done()
        again.view.may_join.set()
        assert (await produced).error_code == 0
        await again.starting
        await again.stop()

    run(scenario)


def test_an_early_client_that_disconnects_leaves_nothing_behind() -> None:
    async def scenario(world: World) -> None:
        starting = world.start()
        client = await starting.connect()
        asked = asyncio.ensure_future(metadata(client))
        await asyncio.sleep(1)
        gate = starting.broker._socket_server.start_gate
        assert gate is not None
        assert gate._waiting_bytes > 0
        client.abort()
        await asyncio.wait([asked])
        await asyncio.sleep(1)
        assert gate._waiting_bytes == 0
        assert isinstance(asked.exception(), ConnectionLost)
        starting.view.may_join.set()
        await starting.starting
        await starting.stop()

    run(scenario)


def test_an_early_request_beyond_the_memory_limit_closes_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("suwi.net.start_gate._WAITING_BYTES_MAX", 10_000)

    async def scenario(world: World) -> None:
        starting = world.start()
        client = await starting.connect()
        with pytest.raises(ConnectionLost):
            await client.send(ApiKey.PRODUCE, 9, [bytes(10_000)])
        assert (asyncio.get_running_loop().time()) < 8
        starting.view.may_join.set()
        await starting.starting
        await starting.stop()

    run(scenario)


def test_other_brokers_are_served_from_the_start() -> None:
    async def scenario(world: World) -> None:
        first = world.start()
        first.view.may_join.set()
        await first.starting
        second = world.start(B2)
        await (await second.connect()).close()
        address = BrokerInfo(B2, (Endpoint("PLAINTEXT", "b2", PORT),))
        peer = await first.broker.peers.connect_to(address)
        answer = await peer.send(ApiKey.DESCRIBE_BROKER, 0, [b"{}"])
        found = decode_incarnation(bytes(answer))
        assert (found.node, found.epoch, found.stopping) == (2, -1, False)
        await peer.close()
        second.view.may_join.set()
        await second.starting
        await asyncio.gather(first.stop(), second.stop())

    run(scenario)


def test_brokers_that_start_together_serve_together() -> None:
    async def scenario(world: World) -> None:
        first, second = (world.start(node, [B1, B2]) for node in (B1, B2))
        client = await first.connect()
        asked = asyncio.ensure_future(metadata(client))
        first.view.may_join.set()
        await first.starting
        await asyncio.sleep(2)
        assert not asked.done()
        second.view.may_join.set()
        brokers, _ = await asked
        assert brokers == [1, 2]
        await second.starting
        await asyncio.gather(first.stop(), second.stop())

    run(scenario)


def test_brokers_that_start_together_keep_their_isrs() -> None:
    """A regression: the first one was elected controller and left the others out of every ISR."""

    async def scenario(world: World) -> None:
        for restarts in (False, True):
            joining = asyncio.Barrier(2)
            first, second = (world.start(node, [B1, B2], joining) for node in (B1, B2))
            first.view.may_join.set()
            await asyncio.sleep(2)
            second.view.may_join.set()
            await asyncio.gather(first.starting, second.starting)
            if not restarts:
                await create_topic(await first.connect(), "orders", replicas=2)
            (partition,) = first.broker.replicas.image.topics["orders"].partitions
            assert set(partition.isr) == {B1, B2}
            assert partition.leader_epoch == int(restarts)
            first.machine.kill()
            second.machine.kill()
            await asyncio.sleep(30)  # until their sessions have ended

    run(scenario)


def test_the_others_start_without_a_broker_that_fails() -> None:
    async def scenario(world: World) -> None:
        joining = asyncio.Barrier(2)
        first = world.start(B1, [], joining)
        first.view.may_join.set()
        await asyncio.sleep(2)
        assert not first.starting.done()
        await joining.abort()
        await first.starting
        assert await metadata(await first.connect()) == ([1], 1)
        await first.stop()

    run(scenario)


def test_the_start_gate_is_removed_when_the_broker_is_ready() -> None:
    async def scenario(world: World) -> None:
        starting = world.start()
        early = await starting.connect()
        await early.call(ApiKey.API_VERSIONS, 3, _NAMES)
        starting.view.may_join.set()
        await starting.starting
        late = await starting.connect()
        for client in (early, late):
            assert await metadata(client) == ([1], 1)
        (listener,) = starting.broker.listeners
        assert len(listener.connections) == 2
        for connection in listener.connections:
            assert isinstance(connection._dispatch, Dispatcher)
        await starting.stop()

    run(scenario)


@pytest.mark.parametrize("seed", range(3))
def test_clients_are_served_when_all_topics_are_adopted(seed: int) -> None:
    """Before that they could create topics and get producer ids that the adopted data has."""

    async def scenario(world: World) -> None:
        first = world.start()
        first.view.may_join.set()
        client = await first.connect()
        await create_topic(client, "orders")
        await produce(client, "orders", [b"x"])
        await first.stop()
        first.machine.kill()
        again = world.adopt()
        again.view.may_join.set()
        client = await again.connect()
        answer = await client.call(ApiKey.METADATA, 9, _ALL_TOPICS)
        assert [topic.name for topic in answer.topics] == ["orders"]
        await again.starting
        await again.stop()

    run(scenario, seed)
