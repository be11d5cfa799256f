"""The controller's pen: decisions one after another, whoever waits for them."""

import asyncio

from suwi.controller.metadata_writer import MetadataWriter
from suwi.metadata.follower import MetadataFollower
from suwi.metadata.memory import MemoryStore
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

        client = asyncio.create_task(writer.alone(delete()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        client.cancel()
        await asyncio.gather(client, return_exceptions=True)
        other = asyncio.create_task(writer.alone(alter()))
        for _ in range(5):
            await asyncio.sleep(0)
        assert events == ["delete begins"]
        written.set()
        await other

    asyncio.run(scenario())
    assert events == ["delete begins", "delete is in the image", "alter looks at the image"]
