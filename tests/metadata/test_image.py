"""The metadata image and its store entries."""

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
    shard_key,
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
    is_recovering=st.booleans(),
    elr=_NODES,
    unclean_shutdown_replicas=_NODES,
    unclean_epoch=st.integers(-1, 2**31 - 1).map(LeaderEpoch),
)


@given(states=st.lists(_STATES, min_size=1, max_size=5))
def test_a_topic_is_decoded_as_it_was_encoded(states: list[PartitionState]) -> None:
    topic = Topic("orders", TopicId(UUID(int=1)), {"retention.ms": "1"}, tuple(states))
    entries = {TOPICS + topic.name: encode_topic(topic), **encode_shards(topic)}
    assert ImageBuilder().apply(1, entries).topics["orders"] == topic


def test_a_large_topic_is_kept_in_shards() -> None:
    states = [
        PartitionState(NodeId(1), LeaderEpoch(epoch), 0, (NodeId(1),), (NodeId(1),))
        for epoch in range(2500)
    ]
    topic = Topic("orders", TopicId(UUID(int=1)), {}, tuple(states))
    shards = encode_shards(topic)
    assert list(shards) == [f"partitions/orders/{shard}" for shard in range(3)]
    image = ImageBuilder().apply(1, {TOPICS + "orders": encode_topic(topic), **shards})
    assert image.topics["orders"] == topic


def test_a_change_in_a_large_topic_leaves_the_states_of_other_shards_as_they_are() -> None:
    """The same objects, so that subscribers of the image see cheaply that they are unchanged."""
    states = [
        PartitionState(NodeId(1), LeaderEpoch(0), 0, (NodeId(1),), (NodeId(1),))
        for _ in range(2500)
    ]
    topic = Topic("orders", TopicId(UUID(int=1)), {}, tuple(states))
    builder = ImageBuilder()
    entries = {TOPICS + "orders": encode_topic(topic), **encode_shards(topic)}
    before = builder.apply(1, entries).topics["orders"].partitions

    states[1500] = states[1500]._replace(partition_epoch=1)
    changed = topic._replace(partitions=tuple(states))
    after = builder.apply(2, encode_shards(changed, only=[1])).topics["orders"].partitions
    assert after == changed.partitions
    assert all(after[index] is before[index] for index in (*range(1000), *range(2000, 2500)))

    grown = topic._replace(partitions=(*states, states[0]))
    values = {TOPICS + "orders": encode_topic(grown), **encode_shards(grown, only=[2])}
    assert builder.apply(3, values).topics["orders"] == grown


def test_a_recreated_topic_has_no_state_of_the_deleted_one() -> None:
    state = PartitionState(NodeId(1), LeaderEpoch(7), 0, (NodeId(1),), (NodeId(1),))
    old = Topic("orders", TopicId(UUID(int=1)), {}, (state,))
    new = Topic("orders", TopicId(UUID(int=2)), {}, (state._replace(leader_epoch=LeaderEpoch(0)),))
    builder = ImageBuilder()
    builder.apply(1, {TOPICS + "orders": encode_topic(old), **encode_shards(old)})
    gone = {TOPICS + "orders": None, "partitions/orders/0": None}
    assert builder.apply(2, gone).topics == {}
    made = {**encode_shards(new), TOPICS + "orders": encode_topic(new)}
    assert builder.apply(3, made).topics["orders"] == new


def test_an_image_finds_topics_by_the_ids_that_they_have_after_each_change() -> None:
    builder = ImageBuilder()
    state = PartitionState(NodeId(1), LeaderEpoch(0), 0, (NodeId(1),), (NodeId(1),))
    topics = [
        Topic(f"topic-{number}", TopicId(UUID(int=number + 1)), {}, (state,))
        for number in range(3_000)
    ]
    values: dict[str, bytes | None] = {}
    for topic in topics:
        values |= {TOPICS + topic.name: encode_topic(topic), **encode_shards(topic)}
    slices = 0
    building = builder.applying(1, values)
    try:
        while True:
            next(building)
            slices += 1
    except StopIteration as done:
        image = done.value
    assert slices > 20
    assert set(image.topics_by_id) == {topic.id for topic in topics}
    again = topics[7]._replace(id=TopicId(UUID(int=99_999)))
    changed: dict[str, bytes | None] = {TOPICS + again.name: encode_topic(again)}
    removed = {TOPICS + topics[8].name: None, shard_key(topics[8].name, 0): None}
    after = builder.apply(2, changed | removed)
    assert image.topics_by_id[topics[7].id].name == again.name, "an image does not change"
    assert set(after.topics_by_id) == {topic.id for topic in after.topics.values()}
    assert after.topics_by_id[again.id].name == again.name
    assert topics[8].id not in after.topics_by_id
