"""The contract of store.py for the controller and for sessions, tested with every store
(hazard Z1)."""

import asyncio

import pytest

from suwi.metadata.store import (
    CONTROLLER_KEY,
    Applied,
    Change,
    Closed,
    Conflict,
    Put,
    SessionLost,
    SessionState,
    Unavailable,
)
from suwi.model.ids import NodeId
from tests.metadata.conftest import Run, needs_cut
from tests.metadata.worlds import PATIENCE_S, World, until

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)


class TestController:
    def test_each_election_has_a_greater_epoch(self, run: Run) -> None:
        async def scenario(world: World) -> None:
            store = await world.connect()
            assert await store.current_controller() is None
            session = await store.open_session()
            first = await session.campaign(ONE)
            assert first.node_id == ONE
            assert await session.campaign(ONE) == first
            assert await store.current_controller() == first
            await session.resign()
            await session.resign()
            assert await store.current_controller() is None
            second = await session.campaign(ONE)
            assert second.epoch > first.epoch

        run(scenario)

    def test_of_concurrent_candidates_one_is_elected_at_a_time(self, run: Run) -> None:
        async def scenario(world: World) -> None:
            stores = [await world.connect() for _ in range(3)]
            sessions = [await store.open_session() for store in stores]
            epochs: list[int] = []

            async def serve(node_id: NodeId, at: int) -> None:
                controller = await sessions[at].campaign(node_id)
                await stores[at].sync()
                assert await stores[at].current_controller() == controller
                epochs.append(controller.epoch)
                await sessions[at].close()

            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(serve(ONE, 0), serve(TWO, 1), serve(THREE, 2))
            assert len(epochs) == 3
            assert epochs == sorted(set(epochs))

        run(scenario)

    def test_a_deposed_controller_writes_nothing_even_before_the_next_election(
        self, run: Run
    ) -> None:
        async def scenario(world: World) -> None:
            store, other = await world.connect(), await world.connect()
            session, rival = await store.open_session(), await other.open_session()
            old = await session.campaign(ONE)
            registered = await rival.register("brokers/2", b"")
            assert await store.write([Put("a", b"1")], controller_epoch=old.epoch) == Applied(1)
            await other.depose(old.epoch)
            refused = Conflict(CONTROLLER_KEY)
            assert await store.write([Put("a", b"2")], controller_epoch=old.epoch) == refused
            new = await rival.campaign(TWO)
            assert await store.write([Put("a", b"3")], controller_epoch=old.epoch) == refused
            assert await store.write([], controller_epoch=old.epoch) == refused
            assert await other.write([Put("a", b"4")], controller_epoch=new.epoch) == Applied(2)
            await other.deregister("brokers/2", registered)
            await other.sync()
            assert await other.registrations() == {}

        run(scenario)

    def test_deposing_a_former_controller_does_not_affect_the_current_one(self, run: Run) -> None:
        async def scenario(world: World) -> None:
            store, other = await world.connect(), await world.connect()
            session, rival = await store.open_session(), await other.open_session()
            old = await session.campaign(ONE)
            await session.resign()
            new = await rival.campaign(TWO)
            await store.depose(old.epoch)
            await session.resign()
            await store.sync()
            assert await store.current_controller() == new

        run(scenario)

    def test_another_candidate_is_elected_when_the_controllers_session_ends(self, run: Run) -> None:
        async def scenario(world: World) -> None:
            store, other = await world.connect(), await world.connect()
            session, rival = await store.open_session(), await other.open_session()
            old = await session.campaign(ONE)
            waiting = asyncio.ensure_future(rival.campaign(TWO))
            await world.expire(store)
            async with asyncio.timeout(PATIENCE_S):
                new = await waiting
                await session.lost.wait()
            assert new.node_id == TWO
            assert new.epoch > old.epoch

            async def back() -> bool:
                try:
                    result = await store.write([Put("a", b"")], controller_epoch=old.epoch)
                except Unavailable:
                    return False
                assert result == Conflict(CONTROLLER_KEY)
                return True

            await until(store, back)

        run(scenario)

    def test_a_cancelled_campaign_leaves_nothing_behind_after_resigning(self, run: Run) -> None:
        async def scenario(world: World) -> None:
            store, other = await world.connect(), await world.connect()
            session, rival = await store.open_session(), await other.open_session()
            await session.campaign(ONE)
            waiting = asyncio.ensure_future(rival.campaign(TWO))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await rival.resign()
            await session.resign()
            await store.sync()
            assert await store.current_controller() is None

        run(scenario)


class TestSessions:
    def test_an_expired_session_loses_its_registrations(self, run: Run) -> None:
        async def scenario(world: World) -> None:
            store, other = await world.connect(), await world.connect()
            session = await store.open_session()
            old_epoch = await session.register("brokers/1", b"")
            await world.expire(store)
            async with asyncio.timeout(PATIENCE_S):
                await session.lost.wait()
            assert session.state is SessionState.EXPIRED
            await other.sync()
            assert await other.registrations() == {}
            with pytest.raises(SessionLost):
                await session.register("brokers/1", b"")
            with pytest.raises(SessionLost):
                await session.campaign(ONE)

            async def reopened() -> bool:
                try:
                    again = await store.open_session()
                    assert again.id != session.id
                    assert await again.register("brokers/1", b"") > old_epoch
                except Unavailable:
                    return False
                return True

            await until(store, reopened)

        run(scenario)

    def test_a_disconnected_session_reconnects_with_its_registrations(self, run: Run) -> None:
        @needs_cut
        async def scenario(world: World) -> None:
            store, other = await world.connect(), await world.connect()
            session = await store.open_session()
            epoch = await session.register("brokers/1", b"")
            controller = await session.campaign(ONE)
            await world.disconnect(store)

            async def in_state(state: SessionState) -> bool:
                return session.state is state

            await until(store, lambda: in_state(SessionState.DISCONNECTED))
            with pytest.raises(Unavailable):
                await store.read("a")
            with pytest.raises(Unavailable):
                await store.write([Put("a", b"")])
            await other.write([Put("a", b"meanwhile")])
            await world.reconnect(store)
            await until(store, lambda: in_state(SessionState.CONNECTED))
            assert not session.lost.is_set()
            await store.sync()
            assert (await store.registrations())["brokers/1"].epoch == epoch
            assert await store.current_controller() == controller
            assert await store.changes_after(0) == [Change(1, {"a": b"meanwhile"})]
            assert await store.write([Put("a", b"")], controller_epoch=controller.epoch) == Applied(
                2
            )

        run(scenario)

    def test_expiry_while_disconnected_is_noticed_after_reconnecting(self, run: Run) -> None:
        @needs_cut
        async def scenario(world: World) -> None:
            store, other = await world.connect(), await world.connect()
            session = await store.open_session()
            await session.register("brokers/1", b"")
            await world.disconnect(store)

            async def gone() -> bool:
                return await other.registrations() == {}

            await asyncio.gather(until(other, gone), world.expire(store))
            assert not session.lost.is_set()
            await world.reconnect(store)
            async with asyncio.timeout(PATIENCE_S):
                await session.lost.wait()

        run(scenario)

    def test_registering_and_campaigning_wait_for_the_connection(self, run: Run) -> None:
        @needs_cut
        async def scenario(world: World) -> None:
            store = await world.connect()
            session = await store.open_session()
            await world.disconnect(store)
            registering = asyncio.ensure_future(session.register("brokers/1", b""))
            campaigning = asyncio.ensure_future(session.campaign(ONE))
            await asyncio.sleep(0)
            assert not registering.done()
            assert not campaigning.done()
            await world.reconnect(store)
            async with asyncio.timeout(PATIENCE_S):
                assert await registering > 0
                assert (await campaigning).node_id == ONE

        run(scenario)

    def test_a_closed_connection_raises_closed_and_has_ended_its_session(self, run: Run) -> None:
        async def scenario(world: World) -> None:
            store, other = await world.connect(), await world.connect()
            session = await store.open_session()
            await session.register("brokers/1", b"")
            await store.close()
            await store.close()
            assert session.lost.is_set()
            with pytest.raises(Closed):
                await store.read("a")
            with pytest.raises(Closed):
                await store.write([Put("a", b"")])
            await other.sync()
            assert await other.registrations() == {}

        run(scenario)
