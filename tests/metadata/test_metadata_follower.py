"""Following the metadata although the store does not notify, or has forgotten changes."""

import asyncio
from collections.abc import Callable
from uuid import UUID

import pytest

from suwi.metadata import image
from suwi.metadata.image import (
    GROUP_CONFIGS,
    SHARD_PARTITIONS,
    TOPICS,
    PartitionState,
    Topic,
    encode_shards,
    encode_topic,
)
from suwi.metadata.memory import MemoryStore
from suwi.metadata.metadata_follower import MetadataFollower
from suwi.metadata.store import HISTORY_CHANGES, Delete, Put
from suwi.model.ids import LeaderEpoch, NodeId, TopicId
from suwi.sim import Simulation
from tests.supervision import tasks_that_must_not_fail


def test_a_change_is_followed_although_its_notification_was_lost() -> None:
    """Hazard Z5."""
    simulation = Simulation(1)

    async def main() -> None:
        store = MemoryStore(simulation.random.stream("store"))
        view = store.view()

        def subscribe(_: Callable[[], None]) -> Callable[[], None]:
            return lambda: None

        view.subscribe = subscribe  # type: ignore[method-assign]
        follower = MetadataFollower(view, tasks_that_must_not_fail())
        await follower.start()
        await store.view().write([Put("cluster", b"c1")])
        async with asyncio.timeout(60):
            while follower.image.cluster_id != "c1":  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(0.1)
        await follower.stop()

    simulation.run(main())


def test_what_was_deleted_within_a_gap_is_gone() -> None:
    simulation = Simulation(1)

    async def main() -> None:
        store = MemoryStore(simulation.random.stream("store"))
        view, writer = store.view(), store.view()
        follower = MetadataFollower(view, tasks_that_must_not_fail())
        await writer.write([Put(f"{GROUP_CONFIGS}billing", b"{}")])
        await follower.start()
        assert list(follower.image.group_configs) == ["billing"]
        view.disconnect()
        await writer.write([Delete(f"{GROUP_CONFIGS}billing")])
        for number in range(HISTORY_CHANGES + 1):
            await writer.write([Put("cluster", b"c%d" % number)])
        view.reconnect()
        await follower.synced()
        assert list(follower.image.group_configs) == []
        assert follower.image.cluster_id == f"c{HISTORY_CHANGES}"
        await follower.stop()

    simulation.run(main())


def test_others_run_while_many_partitions_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    state = PartitionState(NodeId(1), LeaderEpoch(0), 0, (NodeId(1),), (NodeId(1),))
    large = Topic("large", TopicId(UUID(int=1)), {}, (state,) * (3 * SHARD_PARTITIONS))
    decode, turns = image.decode_shard, 0
    decoded_in: list[int] = []

    def noting(data: bytes) -> list[PartitionState]:
        decoded_in.append(turns)
        return decode(data)

    monkeypatch.setattr(image, "decode_shard", noting)

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def main() -> None:
        store = MemoryStore(Simulation(1).random.stream("store"))
        await store.view().write(
            [
                *(Put(key, value) for key, value in encode_shards(large).items()),
                Put(f"{TOPICS}large", encode_topic(large)),
            ]
        )
        follower = MetadataFollower(store.view(), tasks_that_must_not_fail())
        counting = asyncio.ensure_future(count_turns())
        await follower.start()
        counting.cancel()
        assert follower.image.topics["large"] == large
        await follower.stop()

    asyncio.run(main())
    assert len(decoded_in) == len(set(decoded_in)) == 3, "shards of one turn of the loop"
