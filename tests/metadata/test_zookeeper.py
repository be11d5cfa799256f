"""Behaviour of the ZooKeeper store alone: lost responses, hanging event loops, several roots
(hazard Z8)."""

import asyncio
import time

import pytest

from suwi.metadata.store import Applied, Change, Put, Unavailable, Unknown, values_of
from suwi.metadata.zookeeper import ZookeeperStore
from suwi.metadata.zookeeper_connection import ZookeeperSettings
from suwi.metadata.zookeeper_format import decode_change, encode_change
from suwi.model.ids import NodeId
from tests.metadata.worlds import PATIENCE_S, ZookeeperWorld, until


@pytest.mark.zookeeper
def test_a_write_whose_response_is_lost_is_unknown_and_found_by_comparing(zookeeper: str) -> None:
    async def scenario() -> None:
        world = ZookeeperWorld(zookeeper)
        store, other = await world.connect(), await world.connect()
        operations = [Put("a", b"mine")]
        # The reads before the multi get responses, the multi does not.
        connection = store._connection
        multi = connection.multi

        async def multi_unanswered(steps: object) -> object:
            world.proxy(store).swallows_answers = True
            return await multi(steps)

        connection.multi = multi_unanswered
        writing = asyncio.ensure_future(store.write(operations))

        async def applied() -> bool:
            return (await other.read("a")) is not None

        await until(other, applied)
        assert not writing.done()
        await world.proxy(store).cut()
        assert await writing == Unknown()

        world.proxy(store).swallows_answers = False
        await world.reconnect(store)

        async def found() -> bool:
            try:
                await store.sync()
                changes = await store.changes_after(0)
            except Unavailable:
                return False
            assert changes == [Change(1, values_of(operations))]
            return True

        await until(store, found)
        await world.close()

    asyncio.run(scenario())


@pytest.mark.zookeeper
def test_an_event_loop_that_hangs_loses_its_session(zookeeper: str) -> None:
    async def scenario() -> None:
        root, timeout_s = "/test-hang", 5.0
        store = await ZookeeperStore.open(
            ZookeeperSettings(zookeeper, root=root, session_timeout_s=timeout_s)
        )
        session = await store.open_session()
        epoch = await session.register("brokers/1", b"")
        await session.campaign(NodeId(1))

        gone_at = time.monotonic() + PATIENCE_S
        client = store._client
        while client.connected and time.monotonic() < gone_at:
            time.sleep(0.01)  # noqa: ASYNC251 - the loop is meant to hang
        assert not client.connected

        async with asyncio.timeout(PATIENCE_S):
            await session.lost.wait()

        async def registered_anew() -> bool:
            try:
                again = await store.open_session()
            except Unavailable:
                return False
            assert again.id != session.id
            assert await again.register("brokers/1", b"") > epoch
            return True

        await until(store, registered_anew)
        await store.close()

    asyncio.run(scenario())


@pytest.mark.zookeeper
def test_roots_are_separate_and_data_survives_connections(zookeeper: str) -> None:
    async def scenario() -> None:
        one = await ZookeeperStore.open(ZookeeperSettings(zookeeper, root="/test-roots/one"))
        two = await ZookeeperStore.open(ZookeeperSettings(zookeeper, root="/test-roots/two"))
        assert await one.write([Put("a", b"1")]) == Applied(1)
        assert (await two.read_all()).entries == {}
        await one.close()
        await two.close()
        again = await ZookeeperStore.open(ZookeeperSettings(zookeeper, root="/test-roots/one"))
        assert (await again.read_all()).sequence == 1
        assert await again.write([Put("a", b"2")]) == Applied(2)
        await again.close()

    asyncio.run(scenario())


def test_opening_without_a_zookeeper_server_raises_unavailable() -> None:
    async def scenario() -> None:
        with pytest.raises(Unavailable, match="no ZooKeeper at"):
            await ZookeeperStore.open(ZookeeperSettings("127.0.0.1:1"), connect_timeout_s=0.2)

    asyncio.run(scenario())


def test_a_change_is_decoded_as_it_was_encoded() -> None:
    values = {"a": b"", "topics/ü": bytes(range(256)), "gone": None}
    assert decode_change(encode_change(7, values)) == Change(7, values)
