"""Decisions that are written in pieces, and decisions after the rules of a topic have changed
(hazards Z14, Z16)."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest

from suwi.controller import replication_control
from suwi.controller.elections import Rules
from suwi.controller.metadata_writer import MetadataWriter
from suwi.controller.replication_control import ElectionCounts, ReplicationControl
from suwi.metadata.image import (
    LIVE,
    TOPICS,
    BrokerInfo,
    PartitionState,
    Topic,
    encode_broker,
    encode_shards,
    encode_topic,
)
from suwi.metadata.memory import MemoryStore
from suwi.metadata.metadata_follower import MetadataFollower
from suwi.metadata.store import Operation, Put
from suwi.model.errors import RequestTimedOut
from suwi.model.ids import LeaderEpoch, NodeId, TopicId
from suwi.sim import ManualClock
from suwi.sim.random import SimRandom
from tests.supervision import tasks_that_must_not_fail

B1, B2, B3 = NodeId(1), NodeId(2), NodeId(3)


def led_by(leader: NodeId, *replicas: NodeId) -> PartitionState:
    return PartitionState(leader, LeaderEpoch(0), 0, replicas, replicas)


class World:
    """An active controller of b1, b2 and b3, with the topic `orders`."""

    def __init__(self, *states: PartitionState) -> None:
        self.store = MemoryStore(SimRandom(1)).view()
        self.follower = MetadataFollower(self.store, tasks_that_must_not_fail())
        self.rules = Rules()
        self._topic = Topic("orders", TopicId(UUID(int=1)), {}, states)

    async def start(self) -> None:
        elected = await (await self.store.open_session()).campaign(B1)
        await self.follower.start()
        self.writer = MetadataWriter(self.store, self.follower, elected.epoch)
        self.control = ReplicationControl(
            self.writer,
            self.follower,
            lambda _: self.rules,
            ElectionCounts(),
            self._no_answers,
            ManualClock(),
        )
        brokers = [BrokerInfo(node, (), None, node) for node in (B1, B2, B3)]
        entries: list[Operation] = [Put(f"{LIVE}{b.id}", encode_broker(b)) for b in brokers]
        entries += [Put(key, value) for key, value in encode_shards(self._topic).items()]
        entries.append(Put(f"{TOPICS}orders", encode_topic(self._topic)))
        await self.writer.run_exclusively(lambda: self.writer.write(entries))

    async def _no_answers(self, *_: Any) -> dict[Any, Any]:
        return {}

    @property
    def states(self) -> tuple[PartitionState, ...]:
        return self.follower.image.topics["orders"].partitions


def run(scenario: Callable[[World], Awaitable[None]], *states: PartitionState) -> None:
    async def main() -> None:
        world = World(*states)
        await world.start()
        await scenario(world)
        await world.follower.stop()

    asyncio.run(main())


def test_all_preferred_leaders_are_elected_and_other_decisions_run_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only 1,000 were elected every five minutes."""
    monkeypatch.setattr(replication_control, "_PREFERRED_AT_ONCE_MAX", 2)
    monkeypatch.setattr(replication_control, "_PREFERRED_PAUSE_S", 0.01, raising=False)

    async def scenario(world: World) -> None:
        seen: list[int] = []

        async def look() -> None:
            seen.append([state.leader for state in world.states].count(B1))

        balancing = asyncio.ensure_future(world.control.balance())
        while not balancing.done():
            await world.writer.run_exclusively(look)
            await asyncio.sleep(0)
        assert await balancing == 5
        assert [state.leader for state in world.states] == [B1] * 5
        assert {2, 4} <= set(seen)

    run(scenario, *[led_by(B2, B1, B2, B3)] * 5)


def test_a_reassignment_completes_when_min_insync_replicas_is_lowered_again() -> None:
    """It waited for the next change of its partition, because no election was needed."""
    moving = led_by(B1, B1, B2, B3)._replace(removing_replicas=(B2, B3))

    async def scenario(world: World) -> None:
        world.rules = Rules(insync_min=2)
        await world.control.reconsider(["orders"])
        assert world.states[0].is_reassigning
        world.rules = Rules(insync_min=1)
        await world.control.reconsider(["orders"])
        assert world.states[0].replicas == (B1,)
        assert not world.states[0].is_reassigning

    run(scenario, moving)


def test_reconsidering_writes_nothing_for_a_reassignment_that_goes_on() -> None:
    moving = led_by(B1, B1, B2, B3)._replace(isr=(B1, B2), adding_replicas=(B3,))

    async def scenario(world: World) -> None:
        before = world.follower.image.sequence
        await world.control.reconsider(["orders"])
        assert world.follower.image.sequence == before

    run(scenario, moving)


def test_brokers_that_stop_while_a_decision_runs_are_fenced_by_one_decision() -> None:
    """No leader moves to a broker that stops next."""

    async def scenario(world: World) -> None:
        running = asyncio.Event()
        earlier = asyncio.ensure_future(world.writer.run_exclusively(running.wait))
        await asyncio.sleep(0)
        stopping = [asyncio.ensure_future(world.control.shut_down(n, n)) for n in (B1, B2)]
        await asyncio.sleep(0)
        before = world.follower.image.sequence
        running.set()
        await asyncio.gather(earlier, *stopping)
        assert world.follower.image.sequence == before + 1
        assert set(world.follower.image.unfenced_brokers) == {B3}
        assert [(state.leader, state.leader_epoch) for state in world.states] == [(B3, 1), (B3, 1)]

    run(scenario, led_by(B1, B1, B2, B3), led_by(B2, B2, B1, B3))


def test_a_broker_whose_shutdown_failed_is_not_fenced_with_the_next_one() -> None:
    async def scenario(world: World) -> None:
        write = world.writer.write

        async def fails(_: Any) -> None:
            raise RequestTimedOut("the store is unavailable")

        world.writer.write = fails  # type: ignore[method-assign]
        with pytest.raises(RequestTimedOut):
            await world.control.shut_down(B1, B1)
        world.writer.write = write  # type: ignore[method-assign]
        await world.control.shut_down(B2, B2)
        assert set(world.follower.image.unfenced_brokers) == {B1, B3}

    run(scenario, led_by(B1, B1, B2, B3))
