"""WatchPartition: who waits for an answer, and a long list that keeps nobody else waiting."""

import asyncio
import json
from typing import Any

import pytest

from suwi.handlers import json_body
from suwi.handlers.produce import Produce
from suwi.handlers.watch_partition import WatchPartition
from suwi.metadata.partition_history import PartitionHistory
from suwi.model.ids import LeaderEpoch, Offset
from suwi.net.answers import Later, Promise
from suwi.records.builder import build_batch
from suwi.records.record import Record
from suwi.replica.loss import LostRange
from suwi.replica.partition_watch import TRUNCATIONS_KEPT
from suwi.sim.simulation import Simulation
from suwi.wire.produce import encode_produce_request
from suwi.wire.versions import ApiKey
from tests.handlers.requests import reply_of, request_of
from tests.handlers.world import HERE, OTHER, World, led, sent


async def watched(world: World) -> Any:
    handler = WatchPartition(world.replicas, PartitionHistory(world.clock), HERE, world.clock)
    body = bytearray(json.dumps({"topic": "t", "partition": 0}).encode())
    answer = handler(request_of(ApiKey.WATCH_PARTITION, 0, body))
    return json.loads(sent(await reply_of(answer)))


def produce(world: World) -> Promise:
    """With acks=all, to a partition whose follower does not fetch."""
    batches = [(0, build_batch([Record(value=b"v", timestamp=1)]))]
    body = encode_produce_request(12, None, -1, 30_000, [("t", None, batches)])
    handler = Produce(world.replicas, world.clock, None)
    answer = handler(request_of(ApiKey.PRODUCE, 12, bytearray().join(body)))
    assert isinstance(answer, Later)
    assert isinstance(answer.reply, Promise)
    return answer.reply


def test_a_producer_that_has_gone_waits_for_no_answer() -> None:
    async def run() -> None:
        world = World()
        world.add("t", [led(OTHER)])
        assert (await watched(world))["waiting"] == []
        gone, there = produce(world), produce(world)
        (one,) = (await watched(world))["waiting"]
        assert (one["client"], one["sends"]) == ("test", 2)
        gone.cancel()
        (one,) = (await watched(world))["waiting"]
        assert one["sends"] == 1
        there.cancel()
        assert (await watched(world))["waiting"] == []

    Simulation(0).run(run())


def test_a_long_answer_is_made_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_body, "_SLICE_S", 0)
    turns = 0

    async def run() -> None:
        world = World()
        world.add("t", [led()])
        log = world.replicas.leader_of("t", 0).replica_log
        for offset in range(TRUNCATIONS_KEPT):
            removed = [LostRange(LeaderEpoch(0), Offset(offset), Offset(offset + 1))]
            world.replicas.watches.truncated(log, Offset(offset), removed)
        loop = asyncio.get_running_loop()

        def count() -> None:
            nonlocal turns
            turns += 1
            loop.call_soon(count)

        count()
        told = await watched(world)
        assert [each["offset"] for each in told["events"]] == list(range(TRUNCATIONS_KEPT))
        assert told["history"] == []

    asyncio.run(run())
    assert turns > TRUNCATIONS_KEPT // 2
