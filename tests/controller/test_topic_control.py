"""Topics with many partitions are encoded shard by shard; deletions while a broker is down
(hazard Z17)."""

import asyncio
import json
from typing import Any
from uuid import UUID

import pytest

from suwi.controller import topic_control
from suwi.controller.topic_control import TopicControl
from suwi.metadata.image import (
    LIVE,
    TOPICS,
    BrokerInfo,
    ImageBuilder,
    NewTopic,
    PartitionState,
    Topic,
    encode_broker,
    encode_shards,
    encode_topic,
)
from suwi.metadata.placement import Site, place
from suwi.metadata.store import Operation, Put, check_write, values_of
from suwi.model.errors import InvalidTopic, UnknownTopicId, UnknownTopicOrPartition
from suwi.model.ids import LeaderEpoch, NodeId, TopicId
from suwi.model.topic_config import TopicConfig
from suwi.sim.random import SimRandom


class Writer:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written: list[Operation] = []

    async def run_exclusively(self, decide: Any) -> Any:
        return await decide()

    async def write(self, operations: list[Operation]) -> None:
        self.written = operations


class Follower:
    def __init__(self) -> None:
        broker = encode_broker(BrokerInfo(NodeId(1), (), None, 1))
        self.image = ImageBuilder().apply(1, {f"{LIVE}1": broker})


def test_encoding_a_large_topic_yields_to_the_event_loop_after_each_shard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turn = 0
    turns: list[int] = []

    def counted(*args: Any, **facts: Any) -> Any:
        turns.append(turn)
        return encode_shards(*args, **facts)

    monkeypatch.setattr(topic_control, "encode_shards", counted)

    async def scenario() -> None:
        nonlocal turn
        writer: Any = Writer()
        follower: Any = Follower()
        admin = TopicControl(writer, follower, SimRandom(0), TopicConfig())
        creating = asyncio.ensure_future(admin.create(NewTopic("many", 3500, 1, {}, {})))
        while not creating.done():
            await asyncio.sleep(0)
            turn += 1
        topic = await creating
        assert len(turns) == len(set(turns)) == 4
        *shards, head = writer.written
        assert [Put(key, value) for key, value in encode_shards(topic).items()] == shards
        assert head.key == TOPICS + "many"

    asyncio.run(scenario())


def test_many_partitions_are_placed_in_slices_as_if_at_once() -> None:
    sites = [Site(NodeId(node), f"rack-{node % 2}", f"host-{node}") for node in range(1, 8)]

    async def scenario() -> None:
        placed = await topic_control._place(sites, range(3, 3_503), 3, start=2, shift=1)
        assert placed == place(sites, 3_500, 3, first_partition=3, start=2, shift=1)

    asyncio.run(scenario())


def test_a_topic_that_cannot_be_changed_waits_for_no_decision() -> None:
    """A request may name thousands of them."""

    async def scenario() -> None:
        writer: Any = None
        follower: Any = Follower()
        admin = TopicControl(writer, follower, SimRandom(0), TopicConfig())
        with pytest.raises(InvalidTopic):
            await admin.create(NewTopic("..", 1, 1, {}, {}))
        with pytest.raises(UnknownTopicOrPartition):
            await admin.add_partitions("unknown", 3)
        with pytest.raises(UnknownTopicOrPartition):
            await admin.delete("unknown", None)
        with pytest.raises(UnknownTopicId):
            await admin.delete(None, UUID(int=7))

    asyncio.run(scenario())


def test_topics_can_be_deleted_however_many_were_deleted_since_a_broker_went_down() -> None:
    """After 11,400 the entry of the broker was too large to be written."""
    ids = [UUID(int=number) for number in range(12_000)]

    async def scenario() -> None:
        writer: Any = Writer()
        follower: Any = Follower()
        admin = TopicControl(writer, follower, SimRandom(0), TopicConfig())
        builder = ImageBuilder()
        away = PartitionState(NodeId(1), LeaderEpoch(0), 0, (NodeId(1), NodeId(2)), (NodeId(1),))
        # As an earlier version has written them.
        known = {"deletions/2": json.dumps([str(each) for each in ids]).encode()}
        follower.image = builder.apply(1, known)
        for number in (1, 2):
            topic = Topic("orders", TopicId(UUID(int=20_000 + number)), {}, (away,))
            created = {TOPICS + "orders": encode_topic(topic), **encode_shards(topic)}
            follower.image = builder.apply(2 * number, created)
            await admin.delete("orders", None)
            check_write(writer.written)
            follower.image = builder.apply(2 * number + 1, values_of(writer.written))
        shards = follower.image.deletions[NodeId(2)]
        assert shards == {0: {*ids}, 1: {UUID(int=20_001), UUID(int=20_002)}}

    asyncio.run(scenario())
