"""Cluster events: which are kept, and for how long."""

from types import MappingProxyType

from suwi.controller.replica_state_query import ReplicaFacts, lost_at_least
from suwi.metadata.cluster_events import (
    EVENTS_KEPT,
    LOSS_UNKNOWN,
    UNCLEAN_ELECTION,
    Event,
    events,
    logged_facts,
    operations,
)
from suwi.metadata.image import ClusterImage, ImageBuilder
from suwi.metadata.store import values_of
from suwi.model.ids import LeaderEpoch, NodeId, Offset

B1, B2 = NodeId(1), NodeId(2)


def facts(end: int, high_watermark: int) -> ReplicaFacts:
    return ReplicaFacts(LeaderEpoch(1), Offset(end), Offset(high_watermark), Offset(0))


def test_events_are_kept_in_order_and_the_oldest_go_first() -> None:
    builder = ImageBuilder()
    image = builder.apply(1, {})
    for number in range(EVENTS_KEPT + 5):
        event = Event("flood", number, {"metres": number})
        image = builder.apply(number + 2, values_of(operations(image, [event])))
    assert [event.at_ms for event in events(image)] == list(range(5, EVENTS_KEPT + 5))
    assert events(image)[-1].facts == {"metres": EVENTS_KEPT + 4}


def test_several_events_of_one_decision_have_different_numbers() -> None:
    image = ClusterImage(events=MappingProxyType({7: b""}))
    made = operations(image, [Event("a", 1), Event("b", 1)])
    assert [operation.key for operation in made] == ["events/8", "events/9"]


def test_lost_records_are_those_between_the_leaders_end_and_the_highest_high_watermark() -> None:
    assert lost_at_least({B1: facts(10, 4), B2: facts(20, 15)}, B1) == (10, 15)


def test_no_loss_if_the_leader_has_all_committed_records() -> None:
    assert lost_at_least({B1: facts(20, 4), B2: facts(20, 15)}, B1) is None


def test_the_loss_is_unknown_if_the_leader_does_not_respond() -> None:
    assert lost_at_least({B2: facts(20, 15)}, B1) is None


def test_an_unknown_loss_is_logged_as_unknown() -> None:
    unknown = Event(UNCLEAN_ELECTION, 1, {"leader": 2, "lost_at_least": None})
    assert logged_facts(unknown) == {"leader": 2, "lost_at_least": LOSS_UNKNOWN}
    known = Event(UNCLEAN_ELECTION, 1, {"leader": 2, "lost_at_least": (3, 5)})
    assert logged_facts(known) == known.facts
    assert logged_facts(Event("flood", 1, {"metres": 3})) == {"metres": 3}
