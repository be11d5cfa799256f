"""Rebalances that a change of a topic explains."""

from types import MappingProxyType
from uuid import UUID

import pytest

from suwi.group.history import Cause, TopicChanges, Trigger
from suwi.metadata.image import ClusterImage, PartitionState, Topic
from suwi.model.ids import LeaderEpoch, NodeId, TopicId

REJOINED = Cause(Trigger.LEADER_REJOINED, "m")


def image(*topics: Topic) -> ClusterImage:
    return ClusterImage(topics=MappingProxyType({topic.name: topic for topic in topics}))


def topic(name: str, partitions: int, number: int = 1) -> Topic:
    state = PartitionState(NodeId(0), LeaderEpoch(0), 0, (NodeId(0),), (NodeId(0),))
    return Topic(name, TopicId(UUID(int=number)), {}, (state,) * partitions)


def changed(before: Topic, *after: Topic) -> TopicChanges:
    changes = TopicChanges()
    changes.apply_image(image(before), image(*after), 100)
    return changes


@pytest.mark.parametrize(
    ("after", "trigger"),
    [
        ([topic("a", 2)], Trigger.NEW_PARTITIONS),
        ([], Trigger.TOPIC_DELETED),
        ([topic("a", 1, number=2)], Trigger.TOPIC_DELETED),
        ([topic("a", 1)], Trigger.LEADER_REJOINED),
    ],
)
def test_a_leader_that_joins_again_after_a_change_does_so_because_of_it(
    after: list[Topic], trigger: Trigger
) -> None:
    cause = changed(topic("a", 1), *after).explain(REJOINED, ["a", "b"], since_ms=50)
    assert (cause.trigger, cause.member_id) == (trigger, "m")


def test_a_change_of_another_topic_or_before_the_last_rebalance_explains_nothing() -> None:
    changes = changed(topic("a", 1), topic("a", 2))
    assert changes.explain(REJOINED, ["b"], since_ms=50) is REJOINED
    assert changes.explain(REJOINED, ["a"], since_ms=101) is REJOINED


def test_who_joins_or_leaves_is_its_own_reason() -> None:
    changes = changed(topic("a", 1), topic("a", 2))
    joined = Cause(Trigger.JOIN)
    assert changes.explain(joined, ["a"], since_ms=50) is joined
