"""The controller's writes: one decision at a time, even if its caller is cancelled."""

import asyncio
import gc
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import pytest

from suwi.controller.metadata_writer import MetadataWriter
from suwi.metadata.memory import MemoryStore, MemoryView
from suwi.metadata.metadata_follower import MetadataFollower
from suwi.metadata.store import (
    Change,
    Gap,
    MetadataStore,
    Operation,
    Put,
    Unavailable,
    Unknown,
    WriteResult,
)
from suwi.model.errors import NotController, RequestTimedOut, UnknownTopicOrPartition
from suwi.model.ids import NodeId
from suwi.sim.random import SimRandom
from tests.supervision import tasks_that_must_not_fail


def test_a_decision_of_a_cancelled_caller_finishes_before_the_next_one() -> None:
    events: list[str] = []

    async def scenario() -> None:
        store = MemoryStore(SimRandom(1)).view()
        writer = MetadataWriter(store, MetadataFollower(store, tasks_that_must_not_fail()), 1)
        written = asyncio.Event()

        async def delete() -> None:
            events.append("delete begins")
            await written.wait()
            events.append("delete is in the image")

        async def alter() -> None:
            events.append("alter looks at the image")

        client = asyncio.create_task(writer.run_exclusively(delete))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        client.cancel()
        await asyncio.gather(client, return_exceptions=True)
        other = asyncio.create_task(writer.run_exclusively(alter))
        for _ in range(5):
            await asyncio.sleep(0)
        assert events == ["delete begins"]
        written.set()
        await other

    asyncio.run(scenario())
    assert events == ["delete begins", "delete is in the image", "alter looks at the image"]


def test_decisions_that_wait_when_the_controller_resigns_are_refused() -> None:
    """Hazard Z13; the one that runs ends before this broker may be elected again."""

    async def scenario() -> None:
        store = MemoryStore(SimRandom(1)).view()
        writer = MetadataWriter(store, MetadataFollower(store, tasks_that_must_not_fail()), 1)
        go_on = asyncio.Event()

        async def write_late() -> None:
            await go_on.wait()
            await writer.write([Put("a", b"")])

        async def never() -> None:
            raise AssertionError

        running = asyncio.create_task(writer.run_exclusively(write_late))
        await asyncio.sleep(0)
        waiting = asyncio.create_task(writer.run_exclusively(never))
        await asyncio.sleep(0)
        writer.close()
        idle = asyncio.create_task(writer.wait_idle())
        await asyncio.sleep(0)
        assert not idle.done()
        go_on.set()
        outcomes = await asyncio.gather(running, waiting, idle, return_exceptions=True)
        assert [type(each) for each in outcomes] == [NotController, NotController, type(None)]
        assert await store.read("a") is None

    asyncio.run(scenario())


def test_a_refusal_after_the_caller_was_cancelled_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        store = MemoryStore(SimRandom(1)).view()
        writer = MetadataWriter(store, MetadataFollower(store, tasks_that_must_not_fail()), 1)
        go_on = asyncio.Event()

        async def fail(error: Exception) -> None:
            await go_on.wait()
            raise error

        clients = [
            asyncio.create_task(writer.run_exclusively(partial(fail, error)))
            for error in (UnknownTopicOrPartition("gone"), RuntimeError("a bug"))
        ]
        await asyncio.sleep(0)
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        go_on.set()
        for _ in range(10):
            await asyncio.sleep(0)
        gc.collect()  # would report exceptions that were never retrieved

    asyncio.run(scenario())
    assert [record.message for record in caplog.records] == ["unexpected error in a decision"]


class Forgetful:
    """A store that applies a write, loses the response, and then is unavailable for a while."""

    def __init__(self, store: MemoryView) -> None:
        self._store = store
        self.is_away = False
        self.forgets = False

    async def write(self, operations: Sequence[Operation], **given: int) -> WriteResult:
        result = await self._store.write(operations, **given)
        if not self.forgets:
            return result
        self.is_away = True
        return Unknown()

    async def sync(self) -> None:
        if self.is_away:
            raise Unavailable("away")
        await self._store.sync()

    async def changes_after(self, sequence: int) -> list[Change] | Gap:
        if self.is_away:
            raise Unavailable("away")
        return await self._store.changes_after(sequence)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_no_decision_while_the_result_of_the_last_write_is_unknown() -> None:
    """Found by the simulation (seed 29940): an election was written, the response was lost, and the
    store was unavailable. The next decision used the image from before, and reverted the
    election."""

    async def scenario() -> None:
        store = Forgetful(MemoryStore(SimRandom(1)).view())
        controller = await (await store.open_session()).campaign(NodeId(1))
        follower = MetadataFollower(cast(MetadataStore, store), tasks_that_must_not_fail())
        await follower.start()
        writer = MetadataWriter(cast(MetadataStore, store), follower, controller.epoch)
        seen: list[int] = []

        async def decide() -> None:
            seen.append(follower.image.sequence)
            await writer.write([Put("notes/decision", str(len(seen)).encode())])

        store.forgets = True
        for _ in range(2):
            with pytest.raises(RequestTimedOut):
                await writer.run_exclusively(decide)
        assert len(seen) == 1, "the second must not run while the result of the first is unknown"
        store.forgets = store.is_away = False
        await writer.run_exclusively(decide)
        assert seen[1] > seen[0]
        await follower.stop()

    asyncio.run(scenario())
