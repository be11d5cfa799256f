"""Subscriptions and assignments as other clients write and read them: kio has Kafka's schemas."""

import io

import pytest
from kio.schema.consumer_protocol_assignment.v0.data import ConsumerProtocolAssignment
from kio.schema.consumer_protocol_subscription.v0.data import (
    ConsumerProtocolSubscription as SubscriptionV0,
)
from kio.schema.consumer_protocol_subscription.v1.data import (
    ConsumerProtocolSubscription as SubscriptionV1,
)
from kio.schema.consumer_protocol_subscription.v1.data import TopicPartition as TopicV1
from kio.schema.consumer_protocol_subscription.v3.data import (
    ConsumerProtocolSubscription as SubscriptionV3,
)
from kio.serial import entity_reader, entity_writer

from suwi.model.ids import PartitionIndex, TopicPartition
from suwi.wire.consumer_protocol import (
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from suwi.wire.errors import MalformedMessage


def tp(topic: str, index: int) -> TopicPartition:
    return TopicPartition(topic, PartitionIndex(index))


def written(version: int, entity: object) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)  # type: ignore[type-var]
    return version.to_bytes(2, "big") + buffer.getvalue()


def test_a_subscription_of_the_first_version_has_topics_and_user_data_only() -> None:
    data = written(0, SubscriptionV0(topics=("a", "b"), user_data=b"x"))
    assert decode_subscription(data) == Subscription(("a", "b"), user_data=b"x", version=0)


def test_a_subscription_of_version_1_has_owned_partitions_and_no_generation() -> None:
    owned = (TopicV1(topic="a", partitions=(0, 2)),)  # type: ignore[arg-type]
    data = written(1, SubscriptionV1(topics=("a",), user_data=None, owned_partitions=owned))
    assert decode_subscription(data) == Subscription(("a",), (tp("a", 0), tp("a", 2)), version=1)


def test_a_subscription_is_read_by_kafkas_schema() -> None:
    ours = Subscription(("a", "b"), (tp("a", 1), tp("b", 0)), 7, "rack", b"data")
    data = encode_subscription(ours)
    assert data[:2] == b"\0\3"
    theirs, end = entity_reader(SubscriptionV3)(memoryview(data), 2)
    assert end + 2 == len(data)
    assert (theirs.topics, theirs.generation_id, theirs.rack_id) == (("a", "b"), 7, "rack")
    assert [(each.topic, each.partitions) for each in theirs.owned_partitions] == [
        ("a", (1,)),
        ("b", (0,)),
    ]
    assert decode_subscription(data) == ours


def test_fields_of_a_later_version_are_ignored() -> None:
    ours = Subscription(("a",), (tp("a", 1),), 7)
    data = encode_subscription(ours)
    assert decode_subscription(b"\0\x09" + data[2:] + b"more") == ours._replace(version=9)


def test_an_assignment_is_read_by_kafkas_schema() -> None:
    partitions = (tp("a", 0), tp("a", 3), tp("b", 1))
    data = encode_assignment(partitions)
    theirs, end = entity_reader(ConsumerProtocolAssignment)(memoryview(data), 2)
    assert end + 2 == len(data)
    assert [(each.topic, each.partitions) for each in theirs.assigned_partitions] == [
        ("a", (0, 3)),
        ("b", (1,)),
    ]
    assert decode_assignment(data).partitions == partitions
    assert decode_assignment(b"\0\3" + data[2:]).partitions == partitions


def test_no_bytes_are_no_partitions() -> None:
    assert decode_assignment(b"") == ((), None)


@pytest.mark.parametrize("size", range(2, 20))
def test_half_a_subscription_is_malformed(size: int) -> None:
    data = encode_subscription(Subscription(("topic",), (tp("topic", 1),), 7))
    with pytest.raises(MalformedMessage):
        decode_subscription(data[:size])


def test_text_that_is_no_utf8_is_malformed() -> None:
    with pytest.raises(MalformedMessage):
        decode_subscription(b"\0\0" + b"\0\0\0\1" + b"\0\1\xff" + b"\xff\xff\xff\xff")
