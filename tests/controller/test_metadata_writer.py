"""The controller's pen: decisions one after another, whoever waits for them."""

import asyncio
import gc
from functools import partial

import pytest

from suwi.controller.metadata_writer import MetadataWriter
from suwi.metadata.follower import MetadataFollower
from suwi.metadata.memory import MemoryStore
from suwi.model.errors import UnknownTopicOrPartition
from suwi.sim.random import SimRandom


def test_a_decision_whose_client_has_gone_is_finished_before_the_next_begins() -> None:
    events: list[str] = []

    async def scenario() -> None:
        store = MemoryStore(SimRandom(1)).view()
        writer = MetadataWriter(store, MetadataFollower(store, lambda old, new: None), 1)
        written = asyncio.Event()

        async def delete() -> None:
            events.append("delete begins")
            await written.wait()
            events.append("delete is in the image")

        async def alter() -> None:
            events.append("alter looks at the image")

        client = asyncio.create_task(writer.alone(delete))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        client.cancel()
        await asyncio.gather(client, return_exceptions=True)
        other = asyncio.create_task(writer.alone(alter))
        for _ in range(5):
            await asyncio.sleep(0)
        assert events == ["delete begins"]
        written.set()
        await other

    asyncio.run(scenario())
    assert events == ["delete begins", "delete is in the image", "alter looks at the image"]


def test_a_refusal_that_nobody_waits_for_any_more_is_no_error_of_ours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        store = MemoryStore(SimRandom(1)).view()
        writer = MetadataWriter(store, MetadataFollower(store, lambda old, new: None), 1)
        go_on = asyncio.Event()

        async def fail(error: Exception) -> None:
            await go_on.wait()
            raise error

        clients = [
            asyncio.create_task(writer.alone(partial(fail, error)))
            for error in (UnknownTopicOrPartition("gone"), RuntimeError("a bug"))
        ]
        await asyncio.sleep(0)
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        go_on.set()
        for _ in range(10):
            await asyncio.sleep(0)
        gc.collect()  # where an exception that nobody looked at would be complained about

    asyncio.run(scenario())
    assert [record.message for record in caplog.records] == ["unexpected error in a decision"]
