"""The image and the entries it is made of."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from suwi.metadata.image import (
    TOPICS,
    ImageBuilder,
    PartitionState,
    Topic,
    encode_shards,
    encode_topic,
)
from suwi.model.ids import LeaderEpoch, NodeId, TopicId

_NODES = st.lists(st.integers(0, 9).map(NodeId), unique=True, max_size=4).map(tuple)
_STATES = st.builds(
    PartitionState,
    leader=st.integers(-1, 9).map(NodeId),
    leader_epoch=st.integers(0, 2**31 - 1).map(LeaderEpoch),
    partition_epoch=st.integers(0, 2**31 - 1),
    replicas=_NODES,
    isr=_NODES,
    recovering=st.booleans(),
    eligible=_NODES,
    suspects=_NODES,
    unclean_epoch=st.integers(-1, 2**31 - 1).map(LeaderEpoch),
)


@given(states=st.lists(_STATES, min_size=1, max_size=5))
def test_a_topic_comes_back_from_its_entries_as_it_was(states: list[PartitionState]) -> None:
    topic = Topic("orders", TopicId(UUID(int=1)), {"retention.ms": "1"}, tuple(states))
    entries = {TOPICS + topic.name: encode_topic(topic), **encode_shards(topic)}
    assert ImageBuilder().load(1, entries).topics["orders"] == topic


def test_a_large_topic_is_kept_in_shards() -> None:
    states = [
        PartitionState(NodeId(1), LeaderEpoch(epoch), 0, (NodeId(1),), (NodeId(1),))
        for epoch in range(2500)
    ]
    topic = Topic("orders", TopicId(UUID(int=1)), {}, tuple(states))
    shards = encode_shards(topic)
    assert list(shards) == [f"partitions/orders/{shard}" for shard in range(3)]
    image = ImageBuilder().load(1, {TOPICS + "orders": encode_topic(topic), **shards})
    assert image.topics["orders"] == topic
