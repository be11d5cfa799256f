"""Topics with many partitions are encoded shard by shard."""

import asyncio
from typing import Any

import pytest

from suwi.controller import topic_control
from suwi.controller.topic_control import NewTopic, TopicControl
from suwi.metadata.image import (
    LIVE,
    TOPICS,
    BrokerInfo,
    ImageBuilder,
    encode_broker,
    encode_shards,
)
from suwi.metadata.store import Operation, Put
from suwi.model.ids import NodeId
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
        self.image = ImageBuilder().load(1, {f"{LIVE}1": broker})


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
