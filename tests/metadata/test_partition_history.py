"""What a broker remembers of in-sync sets and leaders, from the images that it applies."""

import asyncio
from types import MappingProxyType
from uuid import UUID

import pytest

from suwi.metadata.image import BrokerInfo, ClusterImage, PartitionState, Topic
from suwi.metadata.partition_history import (
    AWAY,
    EVENTS_KEPT,
    FELL_BEHIND,
    GAVE_UP,
    LEADER_AWAY,
    NO_LEADER,
    OTHER_PREFERRED,
    REMOVED,
    REPLICA_BACK,
    UNCLEAN_ELECTION,
    UNCLEAN_SHUTDOWN,
    UNKNOWN,
    Missing,
    PartitionHistory,
)
from suwi.model.ids import NO_NODE, LeaderEpoch, NodeId, TopicId

START_MS = 1_000


class HandClock:
    ms = START_MS

    def now_ms(self) -> int:
        return self.ms

    def now_ns(self) -> int:
        return self.ms * 1_000_000

    def monotonic_ns(self) -> int:
        return self.ms * 1_000_000


class World:
    """A history that is given one image after the other, with ten milliseconds in between."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.history = PartitionHistory(self.clock)
        self.image = ClusterImage()

    def show(
        self,
        *states: PartitionState,
        away: tuple[int, ...] = (),
        fenced: tuple[int, ...] = (),
        topic_id: int = 1,
    ) -> None:
        topic = Topic("orders", TopicId(UUID(int=topic_id)), {}, states)
        self.apply({"orders": topic} if states else {}, away, fenced)

    def apply(
        self, topics: dict[str, Topic], away: tuple[int, ...] = (), fenced: tuple[int, ...] = ()
    ) -> None:
        brokers = {
            NodeId(n): BrokerInfo(NodeId(n), (), fenced=n in fenced)
            for n in (1, 2, 3)
            if n not in away
        }
        new = ClusterImage(
            self.image.sequence + 1,
            topics=MappingProxyType(topics),
            registered_brokers=MappingProxyType(brokers),
            unfenced_brokers=MappingProxyType({n: b for n, b in brokers.items() if not b.fenced}),
        )
        asyncio.run(self.history.apply_image(self.image, new))
        self.image = new
        self.clock.ms += 10

    def missing(self) -> dict[tuple[int, int], Missing]:
        return {(index, node): found for _, index, node, found in self.history.missing("orders")}


def state(
    *isr: int,
    leader: int = 1,
    epoch: int = 0,
    replicas: tuple[int, ...] = (1, 2, 3),
    **more: object,
) -> PartitionState:
    return PartitionState(
        NodeId(leader),
        LeaderEpoch(epoch),
        0,
        tuple(map(NodeId, replicas)),
        tuple(map(NodeId, isr)),
        **more,  # type: ignore[arg-type]
    )


def test_a_replica_that_leaves_is_missing_until_it_joins() -> None:
    world = World()
    world.show(state(1, 2, 3))
    assert world.missing() == {}
    world.show(state(1, 2))
    world.show(state(1, 2, epoch=1))
    assert world.missing() == {(0, 3): Missing(START_MS + 10, True, FELL_BEHIND)}
    world.show(state(1, 2, 3, epoch=1))
    assert world.missing() == {}
    joined, left = world.history.newest("orders")
    assert (joined.at_ms, joined.joined, joined.isr) == (START_MS + 30, (3,), (1, 2, 3))
    assert (left.at_ms, left.left, left.election) == (START_MS + 10, {3: FELL_BEHIND}, "")


@pytest.mark.parametrize(
    ("after", "around", "reason"),
    [
        (state(1, 2), {}, FELL_BEHIND),
        (state(1, 2), {"away": (3,)}, AWAY),
        (state(1, 2), {"fenced": (3,)}, AWAY),
        (state(1, 2, epoch=1), {}, GAVE_UP),
        (state(1, 2, replicas=(1, 2)), {}, REMOVED),
        (state(1, 2, unclean_shutdown_replicas=(NodeId(3),)), {}, UNCLEAN_SHUTDOWN),
        (state(1, 2, epoch=1, unclean_epoch=LeaderEpoch(1)), {}, UNCLEAN_ELECTION),
    ],
)
def test_the_reason_of_leaving_is_told(
    after: PartitionState, around: dict[str, tuple[int, ...]], reason: str
) -> None:
    world = World()
    world.show(state(1, 2, 3))
    world.show(after, **around)  # type: ignore[arg-type]
    (event,) = world.history.newest()
    assert event.left == {3: reason}


@pytest.mark.parametrize(
    ("before", "after", "away", "reason"),
    [
        (state(1, 2, 3), state(2, 3, leader=2, epoch=1), (1,), LEADER_AWAY),
        (state(1, 2, 3), state(1, 2, 3, leader=2, epoch=1), (), OTHER_PREFERRED),
        (state(1), state(1, leader=NO_NODE, epoch=1), (1,), NO_LEADER),
        (state(1, leader=NO_NODE), state(1, epoch=1), (), REPLICA_BACK),
        (
            state(1, leader=NO_NODE),
            state(2, leader=2, epoch=1, unclean_epoch=LeaderEpoch(1)),
            (1,),
            UNCLEAN_ELECTION,
        ),
    ],
)
def test_the_reason_of_an_election_is_told(
    before: PartitionState, after: PartitionState, away: tuple[int, ...], reason: str
) -> None:
    world = World()
    world.show(before)
    world.show(after, away=away)
    (event,) = world.history.newest()
    assert (event.election, event.leader, event.leader_epoch) == (reason, after.leader, 1)


def test_who_was_missing_before_the_start_is_missing_since_then_at_least() -> None:
    world = World()
    world.show(state(1), away=(2,))
    assert world.missing() == {
        (0, 2): Missing(START_MS, False, AWAY),
        (0, 3): Missing(START_MS, False, UNKNOWN),
    }
    assert list(world.history.newest()) == []
    assert world.history.complete_from_ms == START_MS


def test_a_replica_that_a_reassignment_adds_is_not_missing() -> None:
    world = World()
    world.show(state(1, 2, replicas=(1, 2)))
    world.show(state(1, 2, adding_replicas=(NodeId(3),)))
    assert world.missing() == {}
    world.show(state(1, 2))
    assert set(world.missing()) == {(0, 3)}


def test_a_topic_that_is_deleted_or_made_anew_has_no_past() -> None:
    world = World()
    world.show(state(1, 2, 3))
    world.show(state(1, 2))
    world.show(state(1, 2, 3), topic_id=2)
    assert world.missing() == {}
    assert list(world.history.newest()) == []
    world.show(state(1), topic_id=2)
    assert len(world.missing()) == 2
    world.show()
    assert list(world.history.missing()) == list(world.history.newest()) == []


def test_events_are_bounded_and_who_is_missing_is_still_known() -> None:
    world = World()
    world.show(state(1, 2, 3), *[state(1, 2, 3)] * 6000)
    world.show(state(1, 2), *[state(1, 2, 3)] * 6000)
    for isr in ((1,), (1, 2, 3)):
        world.show(state(1, 2), *[state(*isr)] * 6000)
    assert len(list(world.history.newest())) == EVENTS_KEPT
    assert world.missing() == {(0, 3): Missing(START_MS + 10, True, FELL_BEHIND)}
    assert world.history.count_missing() == world.history.count_missing("orders") == 1
    assert world.history.complete_from_ms == START_MS + 20
