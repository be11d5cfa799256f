"""A broker fetches when its image has its registration: before that every leader refuses it."""

import asyncio
from typing import Any

from suwi.replica.partition import Partition
from tests.handlers import world as worlds
from tests.handlers.world import EPOCHS, HERE, World, followed


class Fetchers:
    """Instead of a `ReplicaFetcherManager`."""

    def __init__(self) -> None:
        self.fetched: list[Partition] = []

    def add_fetcher_for(self, partition: Partition) -> None:
        self.fetched.append(partition)

    def remove_fetcher_for(self, partition: Partition) -> None:
        if partition in self.fetched:
            self.fetched.remove(partition)

    def has(self, partition: Partition) -> bool:
        return partition in self.fetched

    def partitions_added(self) -> None:
        pass

    async def stop(self) -> None:
        pass


def test_a_broker_fetches_nothing_before_the_image_has_its_registration(monkeypatch: Any) -> None:
    """Else it would back off while its leaders do not know it yet."""

    async def scenario() -> None:
        world = World()
        fetchers: Any = Fetchers()
        world.replicas.start_replication(fetchers, fetchers)
        world.set_broker_epoch(EPOCHS[HERE] + 1)
        world.add("t", [followed()] * 3)
        assert not fetchers.fetched
        monkeypatch.setattr(worlds, "EPOCHS", {**EPOCHS, HERE: EPOCHS[HERE] + 1})
        world._follow()
        assert len(fetchers.fetched) == 3
        await world.replicas.stop_replication()

    asyncio.run(scenario())


def test_a_broker_that_was_registered_again_fetches_what_has_a_new_leader_epoch_since(
    monkeypatch: Any,
) -> None:
    async def scenario() -> None:
        world = World()
        fetchers: Any = Fetchers()
        world.replicas.start_replication(fetchers, fetchers)
        world.add("t", [followed()] * 3)
        assert len(fetchers.fetched) == 3
        world.set_broker_epoch(EPOCHS[HERE] + 1)
        world.elect("t", 1, followed(epoch=1))
        assert not fetchers.fetched
        monkeypatch.setattr(worlds, "EPOCHS", {**EPOCHS, HERE: EPOCHS[HERE] + 1})
        world._follow()
        assert len(fetchers.fetched) == 3
        await world.replicas.stop_replication()

    asyncio.run(scenario())
