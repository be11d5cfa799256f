"""What consumers of a classic group tell each other: subscriptions and assignments, v0-v3.

Kafka's ConsumerProtocolSubscription and ConsumerProtocolAssignment, inside JoinGroup and SyncGroup;
brokers only pass the bytes on. v1: owned partitions (KIP-429). v2: generation. v3: rack.
Invariant: a later version only adds fields at the end, so that what is newer than v3 is read as v3;
bytes of a peer end in a value or in `MalformedMessage`.
"""

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from suwi.model.ids import PartitionIndex, TopicPartition, by_topic
from suwi.wire.errors import MalformedMessage
from suwi.wire.primitives import Reader, count, legacy_string

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_SUBSCRIPTION_VERSION: Final = 3
_ASSIGNMENT_VERSION: Final = 0
"""All versions have the same fields; the oldest is what everybody can read."""

NO_GENERATION: Final = -1


class Subscription(NamedTuple):
    """What one member wants, and what it owned before this rebalance."""

    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION
    """In which it was given what it owns."""
    rack: str | None = None
    user_data: bytes | None = None
    version: int = _SUBSCRIPTION_VERSION
    """That of the bytes; `encode_subscription` writes the newest."""


class Assignment(NamedTuple):
    partitions: tuple[TopicPartition, ...] = ()
    user_data: bytes | None = None


def encode_subscription(subscription: Subscription) -> bytes:
    return b"".join(
        (
            _INT16.pack(_SUBSCRIPTION_VERSION),
            count(len(subscription.topics), False),
            *map(legacy_string, subscription.topics),
            _sized(subscription.user_data),
            _partitions(subscription.owned),
            _INT32.pack(subscription.generation),
            legacy_string(subscription.rack),
        )
    )


def decode_subscription(data: bytes) -> Subscription:
    """Raises `MalformedMessage`."""
    reader, version = _begin(data)
    try:
        topics = tuple(reader.string(False) for _ in range(reader.count(False, 2)))
        user_data = reader.nullable_bytes(False)
        owned = _read_partitions(reader) if version >= 1 else ()
        generation = reader.unpack(_INT32)[0] if version >= 2 else NO_GENERATION
        rack = reader.nullable_string(False) if version >= 3 else None
    except UnicodeDecodeError as error:
        raise MalformedMessage(f"a subscription that cannot be read: {error}") from error
    return Subscription(topics, owned, generation, rack, _copied(user_data), version)


def encode_assignment(
    partitions: Iterable[TopicPartition], version: int = _ASSIGNMENT_VERSION
) -> bytes:
    """All versions have the same fields."""
    version = min(version, _SUBSCRIPTION_VERSION)
    return _INT16.pack(version) + _partitions(partitions) + _sized(None)


def decode_assignment(data: bytes) -> Assignment:
    """No bytes at all are no partitions. Raises `MalformedMessage`."""
    if not data:
        return Assignment()
    reader, _ = _begin(data)
    try:
        return Assignment(_read_partitions(reader), _copied(reader.nullable_bytes(False)))
    except UnicodeDecodeError as error:
        raise MalformedMessage(f"an assignment that cannot be read: {error}") from error


def _begin(data: bytes) -> tuple[Reader, int]:
    reader = Reader(memoryview(data))
    (version,) = reader.unpack(_INT16)
    if version < 0:
        raise MalformedMessage(f"version {version} of the consumer protocol")
    return reader, version


def _copied(data: memoryview | bytes | None) -> bytes | None:
    return None if data is None else bytes(data)


def _sized(data: bytes | None) -> bytes:
    return count(None, False) if data is None else count(len(data), False) + data


def _partitions(partitions: Iterable[TopicPartition]) -> bytes:
    topics = by_topic(sorted(partitions))
    parts = [count(len(topics), False)]
    for topic, indexes in topics.items():
        parts += (
            legacy_string(topic),
            count(len(indexes), False),
            struct.pack(f">{len(indexes)}i", *indexes),
        )
    return b"".join(parts)


def _read_partitions(reader: Reader) -> tuple[TopicPartition, ...]:
    found: list[TopicPartition] = []
    for _ in range(reader.count(False, 6)):
        topic = reader.string(False)
        number = reader.count(False, 4)
        indexes = struct.unpack_from(f">{number}i", reader.buffer, reader.take(4 * number))
        found += [TopicPartition(topic, PartitionIndex(index)) for index in indexes]
    return tuple(found)
