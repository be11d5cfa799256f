"""Broker registration: when it succeeds (hazard Z4), when it is lost, and that it is renewed."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from suwi.client.connection import PeerConnection
from suwi.controller.broker_lifecycle import BrokerLifecycle
from suwi.controller.registration import (
    IdInUse,
    Origin,
    OwnRegistration,
    decode_origin,
    decode_registration,
    encode_registration,
)
from suwi.env.problems import Problems
from suwi.handlers.describe_broker import BrokerIncarnation, DescribeBroker
from suwi.metadata.image import BrokerInfo, Endpoint
from suwi.metadata.memory import MemoryStore, MemoryView
from suwi.metadata.store import Registration, Session
from suwi.model.ids import NodeId
from suwi.net.dispatch import Dispatcher
from suwi.net.limits import Limits
from suwi.net.listener import Budget, Listener
from suwi.replica.leader_state import UNKNOWN_EPOCH
from suwi.sim import ManualClock, Simulation
from suwi.wire.versions import ApiKey
from tests.supervision import tasks_that_must_not_fail

B1 = NodeId(1)
SESSION_S = 6.0


OLD = Origin(("old-dir",), "boot-1", int(SESSION_S * 1000), "old-process")
NEW = Origin(("new-dir",), "boot-1", int(SESSION_S * 1000), "new-process")


def broker_at(host: str, origin: Origin) -> OwnRegistration:
    return OwnRegistration(BrokerInfo(B1, (Endpoint("PLAINTEXT", host, 9092),)), False, origin)


class World:
    """A store, and two brokers with id 1: an earlier one on machine `old`, a later one on `new`."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.store = MemoryStore(simulation.random.stream("store"), session_timeout_s=SESSION_S)
        self.epochs: list[int] = []
        self.old = simulation.machine("old")
        self.new = simulation.machine("new")

    async def begin_old(self, answers_as: Origin | None = OLD) -> tuple[MemoryView, Session]:
        """A registered broker on `old`; it listens, and answers as what is there."""
        self.old.start()
        await self.old.spawn(listen("old", answers_as))
        view = self.store.view()
        session = await view.open_session()
        await session.register("brokers/1", encode_registration(broker_at("old", OLD)))
        return view, session

    def broker_lifecycle(
        self, view: MemoryView, host: str = "new", origin: Origin = NEW
    ) -> BrokerLifecycle:
        return BrokerLifecycle(
            B1,
            view,
            lambda: broker_at(host, origin),
            lambda endpoint: PeerConnection.open(endpoint.host, endpoint.port),
            self.note_epoch,
            tasks_that_must_not_fail(),
        )

    async def note_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)


async def listen(host: str, answers_as: Origin | None) -> None:
    if answers_as is None:
        loop = asyncio.get_running_loop()
        await loop.create_server(asyncio.Protocol, host, 9092)
        return
    incarnation = BrokerIncarnation(B1, False, answers_as.directory_ids, process=answers_as.process)
    describe = DescribeBroker(
        lambda: incarnation, ManualClock(), "memory", lambda: "connected", Problems(ManualClock())
    )
    dispatcher = Dispatcher({ApiKey.DESCRIBE_BROKER: describe})
    listener = Listener("PLAINTEXT", host, 9092, dispatcher, Budget(Limits()))
    await listener.start()


def run(scenario: Callable[[World], Awaitable[None]], seed: int = 1) -> None:
    simulation = Simulation(seed)

    async def main() -> None:
        await scenario(World(simulation))

    simulation.run(main())


def test_an_id_whose_broker_answers_cannot_be_registered_and_the_other_is_named() -> None:
    async def scenario(world: World) -> None:
        await world.begin_old()
        world.new.start()
        broker_lifecycle = world.broker_lifecycle(world.store.view())
        with pytest.raises(IdInUse, match="data directory old-dir answers at old:9092"):
            await world.new.spawn(broker_lifecycle.join())
        assert world.store.ledger.registrations["brokers/1"].session_id == 1
        await broker_lifecycle.stop()

    run(scenario)


def test_a_broker_with_the_same_address_is_refused_and_never_removes_the_other() -> None:
    """Both advertise one address, and what answers there is the later one itself."""

    async def scenario(world: World) -> None:
        await world.begin_old(answers_as=NEW)
        before = world.store.ledger.registrations["brokers/1"]
        broker_lifecycle = world.broker_lifecycle(world.store.view(), host="old")
        with pytest.raises(IdInUse, match=r"old-dir .* old:9092 keeps its session alive"):
            await world.old.spawn(broker_lifecycle.join())
        assert world.store.ledger.registrations["brokers/1"] == before
        await broker_lifecycle.stop()

    run(scenario)


def test_a_broker_that_restarts_on_its_directory_takes_over_its_registration_at_once() -> None:
    async def scenario(world: World) -> None:
        view, session = await world.begin_old()
        before = world.store.ledger.registrations["brokers/1"].epoch
        await session.campaign(B1)
        world.old.kill()
        view.kill()
        world.new.start()
        origin = OLD._replace(process="new-process")
        broker_lifecycle = world.broker_lifecycle(world.store.view(), origin=origin)
        began_s = world.simulation.loop.time()
        epoch = await world.new.spawn(broker_lifecycle.join())
        assert epoch > before
        assert world.simulation.loop.time() - began_s < SESSION_S / 2
        assert world.epochs == [epoch]
        assert world.store.ledger.controller is None, "it was the earlier process"
        await broker_lifecycle.stop()

    run(scenario)


@pytest.mark.parametrize(
    ("how", "origin"),
    [
        ("refused", NEW),
        ("silent", NEW),
        ("unreachable", NEW),
        ("refused", OLD._replace(boot_id="boot-2", process="new-process")),
        ("refused", OLD._replace(boot_id="", process="new-process")),
    ],
)
def test_a_registration_that_may_be_another_brokers_is_left_to_its_session(
    how: str, origin: Origin
) -> None:
    async def scenario(world: World) -> None:
        view, _ = await world.begin_old(answers_as=None if how == "silent" else OLD)
        if how == "refused":
            world.old.kill()
        elif how == "unreachable":
            world.old.power_off()
        view.kill()
        world.new.start()
        broker_lifecycle = world.broker_lifecycle(world.store.view(), origin=origin)
        began_s = world.simulation.loop.time()
        await world.new.spawn(broker_lifecycle.join())
        assert world.simulation.loop.time() - began_s > SESSION_S / 2
        await broker_lifecycle.stop()

    run(scenario)


def test_a_broker_on_a_copy_of_the_data_directory_is_refused_while_the_other_answers() -> None:
    """Each took the other's registration for its own, for ever."""

    async def scenario(world: World) -> None:
        await world.begin_old()
        before = world.store.ledger.registrations["brokers/1"]
        world.new.start()
        copied = OLD._replace(process="new-process")
        broker_lifecycle = world.broker_lifecycle(world.store.view(), origin=copied)
        with pytest.raises(IdInUse, match="data directory old-dir answers at old:9092"):
            await world.new.spawn(broker_lifecycle.join())
        assert world.store.ledger.registrations["brokers/1"] == before
        await broker_lifecycle.stop()

    run(scenario)


def test_a_broker_waits_for_the_session_timeout_that_the_store_has_granted() -> None:
    """ZooKeeper may grant more than was asked for: the id was said to be in use."""

    async def scenario(world: World) -> None:
        world.store.session_timeout_s = 10 * SESSION_S
        view, _ = await world.begin_old()
        world.old.kill()
        view.kill()
        world.new.start()
        broker_lifecycle = world.broker_lifecycle(world.store.view())
        epoch = await world.new.spawn(broker_lifecycle.join())
        held = world.store.ledger.registrations["brokers/1"]
        assert held.epoch == epoch
        assert decode_origin(held).session_timeout_ms == int(10 * SESSION_S * 1000)
        await broker_lifecycle.stop()

    run(scenario)


def test_a_broker_joins_once_its_store_is_available() -> None:
    async def scenario(world: World) -> None:
        world.new.start()
        view = world.store.view()
        view.disconnect()
        broker_lifecycle = world.broker_lifecycle(view)
        joining = asyncio.ensure_future(world.new.spawn(broker_lifecycle.join()))
        await asyncio.sleep(5)
        assert not joining.done()
        view.reconnect()
        assert await joining == broker_lifecycle.epoch
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


def test_a_registration_is_decoded_with_its_epoch_and_origin() -> None:
    value = encode_registration(broker_at("new", NEW)._replace(was_unclean_shutdown=True))
    registration = Registration("brokers/1", value, 42, 1)
    found = decode_registration(B1, registration)
    assert found.was_unclean_shutdown
    assert (found.broker.epoch, found.broker.endpoints[0].host) == (42, "new")
    assert decode_origin(registration) == NEW
