"""Records of consumer groups (KIP-848), with Apache Kafka's schemas: ConsumerGroup…"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self

from suwi.coordinator.record import LongValue, RecordType
from suwi.env.slices import Pace, Slices
from suwi.group.record_fields import (
    INT8,
    INT16,
    INT32,
    INT64,
    NO_TAGS,
    int32s,
    read_bytes,
    read_int32,
    read_int32s,
    read_int64,
    read_strings,
    sized,
    strings,
)
from suwi.model.ids import TopicId
from suwi.wire.primitives import Reader, compact_string, count, legacy_string, tag_section


class _Key:
    """Strings after the number of the record type."""

    __slots__ = ()
    __match_args__: ClassVar[tuple[str, ...]]
    number: ClassVar[int]

    @classmethod
    def read(cls, reader: Reader) -> Self:
        return cls(*(reader.string(False) for _ in cls.__match_args__))

    def encode(self) -> bytes:
        strings = (legacy_string(getattr(self, each)) for each in self.__match_args__)
        return INT16.pack(self.number) + b"".join(strings)


@dataclass(frozen=True, slots=True)
class _GroupKey(_Key):
    group_id: str


@dataclass(frozen=True, slots=True)
class _MemberKey(_Key):
    group_id: str
    member_id: str


class ConsumerGroupMetadataKey(_GroupKey):
    __slots__ = ()
    number = 3


@dataclass(frozen=True, slots=True)
class ConsumerGroupMetadataValue:
    epoch: int
    metadata_hash: int = 0
    """Of all topics that the group subscribes to (KIP-1101)."""

    def encode(self) -> bytes:
        tags = {0: INT64.pack(self.metadata_hash)} if self.metadata_hash else {}
        return b"\0\0" + INT32.pack(self.epoch) + tag_section(tags)


def _read_consumer_group(reader: Reader, _version: int) -> ConsumerGroupMetadataValue:
    epoch, metadata_hash = read_int32(reader), 0
    for tag, field in reader.tags():
        if tag == 0:
            metadata_hash = read_int64(field)
    return ConsumerGroupMetadataValue(epoch, metadata_hash)


class ConsumerGroupPartitionMetadataKey(_GroupKey):
    """Written by Kafka 4.0, and later replaced by the hash. Suwi only deletes it."""

    __slots__ = ()
    number = 4


class ConsumerGroupMemberMetadataKey(_MemberKey):
    __slots__ = ()
    number = 5


@dataclass(frozen=True, slots=True)
class ClassicProtocol:
    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class ClassicMemberMetadata:
    """Of a member of a consumer group that speaks the classic protocol."""

    session_timeout_ms: int
    protocols: tuple[ClassicProtocol, ...]

    def encode(self) -> bytes:
        out = [b"\1", INT32.pack(self.session_timeout_ms), count(len(self.protocols), True)]
        for protocol in self.protocols:
            out += (compact_string(protocol.name), sized(protocol.metadata, True), NO_TAGS)
        return b"".join((*out, NO_TAGS))


def _read_classic_member(reader: Reader) -> ClassicMemberMetadata | None:
    if reader.unpack(INT8)[0] < 0:
        return None
    session_ms = read_int32(reader)
    protocols = []
    for _ in range(reader.count(True, 3)):
        protocols.append(ClassicProtocol(reader.string(True), read_bytes(reader, True)))
        reader.skip_tags()
    reader.skip_tags()
    return ClassicMemberMetadata(session_ms, tuple(protocols))


@dataclass(frozen=True, slots=True)
class ConsumerGroupMemberMetadataValue(LongValue):
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    topic_names: tuple[str, ...]
    topic_regex: str | None
    rebalance_timeout_ms: int
    server_assignor: str | None
    classic: ClassicMemberMetadata | None = None

    def encoding(self) -> Slices[bytes]:
        tags = {} if self.classic is None else {0: self.classic.encode()}
        topic_names = yield from strings(self.topic_names)
        return b"".join(
            (
                b"\0\0",
                compact_string(self.instance_id),
                compact_string(self.rack_id),
                compact_string(self.client_id),
                compact_string(self.client_host),
                topic_names,
                compact_string(self.topic_regex),
                INT32.pack(self.rebalance_timeout_ms),
                compact_string(self.server_assignor),
                tag_section(tags),
            )
        )


def _read_consumer_member(
    reader: Reader, _version: int
) -> Slices[ConsumerGroupMemberMetadataValue]:
    instance_id, rack_id = reader.nullable_string(True), reader.nullable_string(True)
    client_id, client_host = reader.string(True), reader.string(True)
    topic_names = yield from read_strings(reader)
    topic_regex = reader.nullable_string(True)
    rebalance_ms, assignor = read_int32(reader), reader.nullable_string(True)
    classic = None
    for tag, field in reader.tags():
        if tag == 0:
            classic = _read_classic_member(field)
    return ConsumerGroupMemberMetadataValue(
        instance_id,
        rack_id,
        client_id,
        client_host,
        topic_names,
        topic_regex,
        rebalance_ms,
        assignor,
        classic,
    )


class ConsumerGroupTargetAssignmentMetadataKey(_GroupKey):
    __slots__ = ()
    number = 6


@dataclass(frozen=True, slots=True)
class ConsumerGroupTargetAssignmentMetadataValue:
    assignment_epoch: int
    assignment_timestamp_ms: int = 0

    def encode(self) -> bytes:
        ms = self.assignment_timestamp_ms
        tags = {0: INT64.pack(ms)} if ms else {}
        return b"\0\0" + INT32.pack(self.assignment_epoch) + tag_section(tags)


def _read_target_metadata(
    reader: Reader, _version: int
) -> ConsumerGroupTargetAssignmentMetadataValue:
    epoch, made_ms = read_int32(reader), 0
    for tag, field in reader.tags():
        if tag == 0:
            made_ms = read_int64(field)
    return ConsumerGroupTargetAssignmentMetadataValue(epoch, made_ms)


class ConsumerGroupTargetAssignmentMemberKey(_MemberKey):
    __slots__ = ()
    number = 7


@dataclass(frozen=True, slots=True)
class TopicPartitions:
    """Partitions of one topic; with the epoch in which each was assigned, where that is known."""

    topic_id: TopicId
    partitions: tuple[int, ...]
    assignment_epochs: tuple[int, ...] | None = None

    def encode(self) -> bytes:
        tags = {}
        if self.assignment_epochs is not None:
            tags = {0: int32s(self.assignment_epochs)}
        return self.topic_id.bytes + int32s(self.partitions) + tag_section(tags)


def _read_topic_partitions(reader: Reader) -> Slices[tuple[TopicPartitions, ...]]:
    pace, found = Pace(), []
    for _ in range(reader.count(True, 18)):
        topic_id, partitions, epochs = TopicId(reader.uuid()), read_int32s(reader), None
        for tag, field in reader.tags():
            if tag == 0 and field.buffer[field.at]:
                epochs = read_int32s(field)
        found.append(TopicPartitions(topic_id, partitions, epochs))
        if pace.is_over(6 + len(partitions) // 16):
            yield
    return tuple(found)


def _encode_topic_partitions(topics: tuple[TopicPartitions, ...]) -> Slices[bytes]:
    pace, encoded = Pace(), [count(len(topics), True)]
    for topic in topics:
        encoded.append(topic.encode())
        if pace.is_over(3 + len(topic.partitions) // 16):
            yield
    return b"".join(encoded)


@dataclass(frozen=True, slots=True)
class ConsumerGroupTargetAssignmentMemberValue(LongValue):
    partitions: tuple[TopicPartitions, ...]

    def encoding(self) -> Slices[bytes]:
        return b"\0\0" + (yield from _encode_topic_partitions(self.partitions)) + NO_TAGS


def _read_target_member(
    reader: Reader, _version: int
) -> Slices[ConsumerGroupTargetAssignmentMemberValue]:
    partitions = yield from _read_topic_partitions(reader)
    reader.skip_tags()
    return ConsumerGroupTargetAssignmentMemberValue(partitions)


class ConsumerGroupCurrentMemberAssignmentKey(_MemberKey):
    __slots__ = ()
    number = 8


@dataclass(frozen=True, slots=True)
class ConsumerGroupCurrentMemberAssignmentValue(LongValue):
    member_epoch: int
    previous_member_epoch: int
    state: int
    assigned: tuple[TopicPartitions, ...]
    pending_revocation: tuple[TopicPartitions, ...]

    def encoding(self) -> Slices[bytes]:
        return b"".join(
            (
                b"\0\0",
                INT32.pack(self.member_epoch),
                INT32.pack(self.previous_member_epoch),
                INT8.pack(self.state),
                (yield from _encode_topic_partitions(self.assigned)),
                (yield from _encode_topic_partitions(self.pending_revocation)),
                NO_TAGS,
            )
        )


def _read_current_member(
    reader: Reader, _version: int
) -> Slices[ConsumerGroupCurrentMemberAssignmentValue]:
    epoch, previous, state = read_int32(reader), read_int32(reader), reader.unpack(INT8)[0]
    assigned = yield from _read_topic_partitions(reader)
    pending = yield from _read_topic_partitions(reader)
    reader.skip_tags()
    return ConsumerGroupCurrentMemberAssignmentValue(epoch, previous, state, assigned, pending)


@dataclass(frozen=True, slots=True)
class ConsumerGroupRegularExpressionKey(_Key):
    number = 16
    group_id: str
    regular_expression: str


@dataclass(frozen=True, slots=True)
class ConsumerGroupRegularExpressionValue(LongValue):
    topics: tuple[str, ...]
    version: int
    timestamp_ms: int

    def encoding(self) -> Slices[bytes]:
        numbers = INT64.pack(self.version) + INT64.pack(self.timestamp_ms)
        return b"\0\0" + (yield from strings(self.topics)) + numbers + NO_TAGS


def _read_regular_expression(
    reader: Reader, _version: int
) -> Slices[ConsumerGroupRegularExpressionValue]:
    topics = yield from read_strings(reader)
    version, resolved_ms = read_int64(reader), read_int64(reader)
    reader.skip_tags()
    return ConsumerGroupRegularExpressionValue(topics, version, resolved_ms)


_READ_VALUE: Final[dict[type[_Key], Callable[[Reader, int], Any]]] = {
    ConsumerGroupMetadataKey: _read_consumer_group,
    ConsumerGroupPartitionMetadataKey: lambda _reader, _version: b"",
    ConsumerGroupMemberMetadataKey: _read_consumer_member,
    ConsumerGroupTargetAssignmentMetadataKey: _read_target_metadata,
    ConsumerGroupTargetAssignmentMemberKey: _read_target_member,
    ConsumerGroupCurrentMemberAssignmentKey: _read_current_member,
    ConsumerGroupRegularExpressionKey: _read_regular_expression,
}
CONSUMER_GROUP_RECORDS: Final = {
    key.number: RecordType(key.read, read_value, 0) for key, read_value in _READ_VALUE.items()
}
