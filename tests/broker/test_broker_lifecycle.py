"""Broker registration: when it succeeds, when it is lost, and that it is renewed."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from suwi.broker.broker_lifecycle import (
    BrokerLifecycle,
    IdInUse,
    decode_registration,
    encode_registration,
)
from suwi.metadata.image import BrokerInfo, Endpoint
from suwi.metadata.memory import MemoryStore, MemoryView
from suwi.metadata.store import Registration, Session
from suwi.model.ids import NodeId
from suwi.replica.leader_state import UNKNOWN_EPOCH
from suwi.sim import Simulation
from tests.supervision import tasks_that_must_not_fail

B1 = NodeId(1)
SESSION_S = 6.0


def broker_at(host: str) -> BrokerInfo:
    return BrokerInfo(B1, (Endpoint("PLAINTEXT", host, 9092),))


class World:
    """A store, and two brokers with id 1: an earlier one on machine `old`, a later one on `new`."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.store = MemoryStore(simulation.random.stream("store"), session_timeout_s=SESSION_S)
        self.epochs: list[int] = []
        self.old = simulation.machine("old")
        self.new = simulation.machine("new")

    async def begin_old(self) -> tuple[MemoryView, Session]:
        self.old.start()

        async def listen() -> None:
            loop = asyncio.get_running_loop()
            await loop.create_server(asyncio.Protocol, "old", 9092)

        await self.old.spawn(listen())
        view = self.store.view()
        session = await view.open_session()
        value = encode_registration(broker_at("old"), was_unclean_shutdown=False)
        await session.register("brokers/1", value)
        return view, session

    def broker_lifecycle(self, view: MemoryView, host: str = "new") -> BrokerLifecycle:
        return BrokerLifecycle(
            B1,
            view,
            lambda: broker_at(host),
            lambda: False,
            self.epochs.append,
            tasks_that_must_not_fail(),
        )


def run(scenario: Callable[[World], Awaitable[None]], seed: int = 1) -> None:
    simulation = Simulation(seed)

    async def main() -> None:
        await scenario(World(simulation))

    simulation.run(main())


def test_an_id_in_use_by_a_listening_broker_cannot_be_registered() -> None:
    async def scenario(world: World) -> None:
        await world.begin_old()
        world.new.start()
        broker_lifecycle = world.broker_lifecycle(world.store.view())
        with pytest.raises(IdInUse, match="broker id 1 is in use: a broker with it listens on old"):
            await world.new.spawn(broker_lifecycle.join())
        assert world.store.ledger.registrations["brokers/1"].session_id == 1
        await broker_lifecycle.stop()

    run(scenario)


def test_an_id_whose_broker_refuses_connections_is_registered_at_once() -> None:
    async def scenario(world: World) -> None:
        view, _ = await world.begin_old()
        before = world.store.ledger.registrations["brokers/1"].epoch
        world.old.kill()
        view.kill()
        world.new.start()
        broker_lifecycle = world.broker_lifecycle(world.store.view())
        began_s = world.simulation.loop.time()
        epoch = await world.new.spawn(broker_lifecycle.join())
        assert epoch > before
        assert world.simulation.loop.time() - began_s < SESSION_S / 2
        assert world.epochs == [epoch]
        await broker_lifecycle.stop()

    run(scenario)


def test_registration_waits_for_the_other_session_while_its_broker_is_unreachable() -> None:
    async def scenario(world: World) -> None:
        view, _ = await world.begin_old()
        world.old.power_off()
        view.kill()
        world.new.start()
        broker_lifecycle = world.broker_lifecycle(world.store.view())
        began_s = world.simulation.loop.time()
        await world.new.spawn(broker_lifecycle.join())
        assert world.simulation.loop.time() - began_s > SESSION_S / 2
        await broker_lifecycle.stop()

    run(scenario)


def test_a_registration_with_the_brokers_own_address_is_stale() -> None:
    async def scenario(world: World) -> None:
        view, _ = await world.begin_old()
        view.kill()
        broker_lifecycle = world.broker_lifecycle(world.store.view(), host="old")
        epoch = await world.old.spawn(broker_lifecycle.join())
        assert world.store.ledger.registrations["brokers/1"].epoch == epoch
        await broker_lifecycle.stop()

    run(scenario)


def test_a_lost_session_ends_the_registration_and_a_new_one_follows() -> None:
    async def scenario(world: World) -> None:
        world.new.start()
        view = world.store.view()
        broker_lifecycle = world.broker_lifecycle(view)
        first = await world.new.spawn(broker_lifecycle.join())
        view.expire()
        await asyncio.sleep(3)
        assert world.epochs[:2] == [first, UNKNOWN_EPOCH]
        assert world.epochs[2] > first
        assert broker_lifecycle.epoch == world.epochs[2]
        await broker_lifecycle.stop()
        assert not world.store.ledger.registrations

    run(scenario)


def test_a_disconnected_session_that_is_not_lost_keeps_the_registration() -> None:
    async def scenario(world: World) -> None:
        world.new.start()
        view = world.store.view()
        broker_lifecycle = world.broker_lifecycle(view)
        epoch = await world.new.spawn(broker_lifecycle.join())
        view.disconnect()
        await asyncio.sleep(SESSION_S - 1)
        view.reconnect()
        await asyncio.sleep(5)
        assert world.epochs == [epoch]
        await broker_lifecycle.stop()

    run(scenario)


def test_stale_reads_do_not_end_a_registration() -> None:
    async def scenario(world: World) -> None:
        world.new.start()
        view = world.store.view()
        view.faults.read_lag_max = 20
        other = world.store.view()
        broker_lifecycle = world.broker_lifecycle(view)
        epoch = await world.new.spawn(broker_lifecycle.join())
        for _ in range(30):  # so that reads can be stale
            await (await other.open_session()).close()
            await asyncio.sleep(0.3)
        assert world.epochs == [epoch]
        await broker_lifecycle.stop()

    run(scenario)


def test_a_registration_is_decoded_with_its_epoch() -> None:
    value = encode_registration(broker_at("new"), was_unclean_shutdown=True)
    found = decode_registration(B1, Registration("brokers/1", value, 42, 1))
    assert found.was_unclean_shutdown
    assert (found.broker.epoch, found.broker.endpoints) == (42, broker_at("new").endpoints)
