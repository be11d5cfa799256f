"""The records of `__consumer_offsets`, with Apache Kafka's schemas.

Keys and values are frozen; `encode` gives their bytes, `GROUP_RECORDS` reads them. Values are
written in the versions that Kafka 4.3 writes and read in all that it reads.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from suwi.coordinator.record import Codec, RecordType
from suwi.model.ids import NO_TIMESTAMP, TopicId
from suwi.wire.primitives import Reader, compact_string, count, legacy_string, tag_section, uvarint

_INT8: Final = struct.Struct(">b")
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_NO_TOPIC_ID: Final = TopicId(UUID(int=0))
_NO_TAGS: Final = b"\0"

# Types 0 and 1 are both commits: 0 is what Kafka wrote before 0.9.
_OFFSET_COMMIT: Final = 1
_GROUP_METADATA: Final = 2
_CONSUMER_GROUP_METADATA: Final = 3
_CONSUMER_GROUP_PARTITION_METADATA: Final = 4
_CONSUMER_GROUP_MEMBER_METADATA: Final = 5
_CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA: Final = 6
_CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER: Final = 7
_CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT: Final = 8
_CONSUMER_GROUP_REGULAR_EXPRESSION: Final = 16


def _int32(reader: Reader) -> int:
    value: int = reader.unpack(_INT32)[0]
    return value


def _int64(reader: Reader) -> int:
    value: int = reader.unpack(_INT64)[0]
    return value


def _bytes(reader: Reader, flexible: bool) -> bytes:
    return bytes(reader.nullable_bytes(flexible) or b"")


def _sized(data: bytes, flexible: bool) -> bytes:
    return count(len(data), flexible) + data


# -- offsets ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OffsetCommitKey:
    group_id: str
    topic: str
    partition: int

    def encode(self) -> bytes:
        head = _INT16.pack(_OFFSET_COMMIT) + legacy_string(self.group_id)
        return head + legacy_string(self.topic) + _INT32.pack(self.partition)


@dataclass(frozen=True, slots=True)
class OffsetCommitValue:
    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = NO_TIMESTAMP
    """Of clients before 2.1, which could ask for it."""
    topic_id: TopicId = _NO_TOPIC_ID

    def encode(self) -> bytes:
        if self.expire_timestamp_ms != NO_TIMESTAMP:  # Only version 1 has a place for it.
            return (
                b"\0\1"
                + _INT64.pack(self.offset)
                + legacy_string(self.metadata)
                + _INT64.pack(self.commit_timestamp_ms)
                + _INT64.pack(self.expire_timestamp_ms)
            )
        tags = {} if self.topic_id == _NO_TOPIC_ID else {0: self.topic_id.bytes}
        return (
            b"\0\4"
            + _INT64.pack(self.offset)
            + _INT32.pack(self.leader_epoch)
            + compact_string(self.metadata)
            + _INT64.pack(self.commit_timestamp_ms)
            + tag_section(tags)
        )


def _read_offset_key(reader: Reader) -> OffsetCommitKey:
    return OffsetCommitKey(reader.string(False), reader.string(False), _int32(reader))


def _read_offset(reader: Reader, version: int) -> OffsetCommitValue:
    flexible = version >= 4
    offset = _int64(reader)
    leader_epoch = _int32(reader) if version >= 3 else -1
    metadata = reader.string(flexible)
    committed_ms = _int64(reader)
    expires_ms = _int64(reader) if version == 1 else NO_TIMESTAMP
    topic_id = _NO_TOPIC_ID
    if flexible:
        for tag, field in reader.tags():
            if tag == 0:
                topic_id = TopicId(field.uuid())
    return OffsetCommitValue(offset, leader_epoch, metadata, committed_ms, expires_ms, topic_id)


# -- classic groups -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GroupMetadataKey:
    group_id: str

    def encode(self) -> bytes:
        return _INT16.pack(_GROUP_METADATA) + legacy_string(self.group_id)


@dataclass(frozen=True, slots=True)
class MemberMetadata:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes

    def encode(self) -> bytes:
        return b"".join(
            (
                legacy_string(self.member_id),
                legacy_string(self.instance_id),
                legacy_string(self.client_id),
                legacy_string(self.client_host),
                _INT32.pack(self.rebalance_timeout_ms),
                _INT32.pack(self.session_timeout_ms),
                _sized(self.subscription, False),
                _sized(self.assignment, False),
            )
        )


@dataclass(frozen=True, slots=True)
class GroupMetadataValue:
    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp_ms: int
    members: tuple[MemberMetadata, ...]

    def encode(self) -> bytes:
        """Version 3, as Kafka writes it: what reads it need not know of tagged fields."""
        return b"".join(
            (
                b"\0\3",
                legacy_string(self.protocol_type),
                _INT32.pack(self.generation),
                legacy_string(self.protocol),
                legacy_string(self.leader),
                _INT64.pack(self.state_timestamp_ms),
                _INT32.pack(len(self.members)),
                *(member.encode() for member in self.members),
            )
        )


def _read_group(reader: Reader, version: int) -> GroupMetadataValue:
    flexible = version >= 4
    protocol_type, generation = reader.string(flexible), _int32(reader)
    protocol, leader = reader.nullable_string(flexible), reader.nullable_string(flexible)
    since_ms = _int64(reader) if version >= 2 else NO_TIMESTAMP
    members = tuple(
        _read_member(reader, version, flexible) for _ in range(reader.count(flexible, 10))
    )
    if flexible:
        reader.skip_tags()
    return GroupMetadataValue(protocol_type, generation, protocol, leader, since_ms, members)


def _read_member(reader: Reader, version: int, flexible: bool) -> MemberMetadata:
    member_id = reader.string(flexible)
    instance_id = reader.nullable_string(flexible) if version >= 3 else None
    client_id, client_host = reader.string(flexible), reader.string(flexible)
    rebalance_ms = _int32(reader) if version >= 1 else -1
    session_ms = _int32(reader)
    subscription, assignment = _bytes(reader, flexible), _bytes(reader, flexible)
    if flexible:
        reader.skip_tags()
    return MemberMetadata(
        member_id,
        instance_id,
        client_id,
        client_host,
        session_ms if rebalance_ms < 0 else rebalance_ms,
        session_ms,
        subscription,
        assignment,
    )


# -- consumer groups (KIP-848) ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConsumerGroupMetadataKey:
    group_id: str

    def encode(self) -> bytes:
        return _INT16.pack(_CONSUMER_GROUP_METADATA) + legacy_string(self.group_id)


@dataclass(frozen=True, slots=True)
class ConsumerGroupMetadataValue:
    epoch: int
    metadata_hash: int = 0
    """Of all topics that the group subscribes to (KIP-1101)."""

    def encode(self) -> bytes:
        tags = {0: _INT64.pack(self.metadata_hash)} if self.metadata_hash else {}
        return b"\0\0" + _INT32.pack(self.epoch) + tag_section(tags)


def _read_consumer_group(reader: Reader, _version: int) -> ConsumerGroupMetadataValue:
    epoch, metadata_hash = _int32(reader), 0
    for tag, field in reader.tags():
        if tag == 0:
            metadata_hash = _int64(field)
    return ConsumerGroupMetadataValue(epoch, metadata_hash)


@dataclass(frozen=True, slots=True)
class ConsumerGroupPartitionMetadataKey:
    """Written by Kafka 4.0 and replaced by the hash: it is only ever deleted here."""

    group_id: str

    def encode(self) -> bytes:
        return _INT16.pack(_CONSUMER_GROUP_PARTITION_METADATA) + legacy_string(self.group_id)


@dataclass(frozen=True, slots=True)
class ConsumerGroupMemberMetadataKey:
    group_id: str
    member_id: str

    def encode(self) -> bytes:
        return _of_member(_CONSUMER_GROUP_MEMBER_METADATA, self.group_id, self.member_id)


def _of_member(number: int, group_id: str, member_id: str) -> bytes:
    return _INT16.pack(number) + legacy_string(group_id) + legacy_string(member_id)


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
        out = [b"\1", _INT32.pack(self.session_timeout_ms), count(len(self.protocols), True)]
        for protocol in self.protocols:
            out += (compact_string(protocol.name), _sized(protocol.metadata, True), _NO_TAGS)
        return b"".join((*out, _NO_TAGS))


def _read_classic_member(reader: Reader) -> ClassicMemberMetadata | None:
    if reader.unpack(_INT8)[0] < 0:
        return None
    session_ms = _int32(reader)
    protocols = []
    for _ in range(reader.count(True, 3)):
        protocols.append(ClassicProtocol(reader.string(True), _bytes(reader, True)))
        reader.skip_tags()
    reader.skip_tags()
    return ClassicMemberMetadata(session_ms, tuple(protocols))


@dataclass(frozen=True, slots=True)
class ConsumerGroupMemberMetadataValue:
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    topic_names: tuple[str, ...]
    topic_regex: str | None
    rebalance_timeout_ms: int
    server_assignor: str | None
    classic: ClassicMemberMetadata | None = None

    def encode(self) -> bytes:
        tags = {} if self.classic is None else {0: self.classic.encode()}
        return b"".join(
            (
                b"\0\0",
                compact_string(self.instance_id),
                compact_string(self.rack_id),
                compact_string(self.client_id),
                compact_string(self.client_host),
                _strings(self.topic_names),
                compact_string(self.topic_regex),
                _INT32.pack(self.rebalance_timeout_ms),
                compact_string(self.server_assignor),
                tag_section(tags),
            )
        )


def _strings(values: Iterable[str]) -> bytes:
    encoded = [compact_string(value) for value in values]
    return count(len(encoded), True) + b"".join(encoded)


def _read_strings(reader: Reader) -> tuple[str, ...]:
    return tuple(reader.string(True) for _ in range(reader.count(True, 1)))


def _read_consumer_member(reader: Reader, _version: int) -> ConsumerGroupMemberMetadataValue:
    instance_id, rack_id = reader.nullable_string(True), reader.nullable_string(True)
    client_id, client_host = reader.string(True), reader.string(True)
    topic_names, topic_regex = _read_strings(reader), reader.nullable_string(True)
    rebalance_ms, assignor = _int32(reader), reader.nullable_string(True)
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


@dataclass(frozen=True, slots=True)
class ConsumerGroupTargetAssignmentMetadataKey:
    group_id: str

    def encode(self) -> bytes:
        number = _CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA
        return _INT16.pack(number) + legacy_string(self.group_id)


@dataclass(frozen=True, slots=True)
class ConsumerGroupTargetAssignmentMetadataValue:
    assignment_epoch: int
    assignment_timestamp_ms: int = 0

    def encode(self) -> bytes:
        ms = self.assignment_timestamp_ms
        tags = {0: _INT64.pack(ms)} if ms else {}
        return b"\0\0" + _INT32.pack(self.assignment_epoch) + tag_section(tags)


def _read_target_metadata(
    reader: Reader, _version: int
) -> ConsumerGroupTargetAssignmentMetadataValue:
    epoch, made_ms = _int32(reader), 0
    for tag, field in reader.tags():
        if tag == 0:
            made_ms = _int64(field)
    return ConsumerGroupTargetAssignmentMetadataValue(epoch, made_ms)


@dataclass(frozen=True, slots=True)
class ConsumerGroupTargetAssignmentMemberKey:
    group_id: str
    member_id: str

    def encode(self) -> bytes:
        return _of_member(_CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER, self.group_id, self.member_id)


@dataclass(frozen=True, slots=True)
class TopicPartitions:
    """Partitions of one topic; with the epoch in which each was assigned, where that is known."""

    topic_id: TopicId
    partitions: tuple[int, ...]
    assignment_epochs: tuple[int, ...] | None = None

    def encode(self) -> bytes:
        tags = {}
        if self.assignment_epochs is not None:
            tags = {0: _int32s(self.assignment_epochs)}
        return self.topic_id.bytes + _int32s(self.partitions) + tag_section(tags)


def _int32s(values: tuple[int, ...]) -> bytes:
    return uvarint(len(values) + 1) + struct.pack(f">{len(values)}i", *values)


def _read_int32s(reader: Reader) -> tuple[int, ...]:
    items = reader.count(True, 4)
    return struct.unpack_from(f">{items}i", reader.buffer, reader.take(4 * items))


def _read_topic_partitions(reader: Reader) -> tuple[TopicPartitions, ...]:
    found = []
    for _ in range(reader.count(True, 18)):
        topic_id, partitions, epochs = TopicId(reader.uuid()), _read_int32s(reader), None
        for tag, field in reader.tags():
            if tag == 0 and field.buffer[field.at]:
                epochs = _read_int32s(field)
        found.append(TopicPartitions(topic_id, partitions, epochs))
    return tuple(found)


def _encode_topic_partitions(topics: tuple[TopicPartitions, ...]) -> bytes:
    return count(len(topics), True) + b"".join(topic.encode() for topic in topics)


@dataclass(frozen=True, slots=True)
class ConsumerGroupTargetAssignmentMemberValue:
    partitions: tuple[TopicPartitions, ...]

    def encode(self) -> bytes:
        return b"\0\0" + _encode_topic_partitions(self.partitions) + _NO_TAGS


def _read_target_member(reader: Reader, _version: int) -> ConsumerGroupTargetAssignmentMemberValue:
    partitions = _read_topic_partitions(reader)
    reader.skip_tags()
    return ConsumerGroupTargetAssignmentMemberValue(partitions)


@dataclass(frozen=True, slots=True)
class ConsumerGroupCurrentMemberAssignmentKey:
    group_id: str
    member_id: str

    def encode(self) -> bytes:
        return _of_member(_CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT, self.group_id, self.member_id)


@dataclass(frozen=True, slots=True)
class ConsumerGroupCurrentMemberAssignmentValue:
    member_epoch: int
    previous_member_epoch: int
    state: int
    assigned: tuple[TopicPartitions, ...]
    pending_revocation: tuple[TopicPartitions, ...]

    def encode(self) -> bytes:
        return b"".join(
            (
                b"\0\0",
                _INT32.pack(self.member_epoch),
                _INT32.pack(self.previous_member_epoch),
                _INT8.pack(self.state),
                _encode_topic_partitions(self.assigned),
                _encode_topic_partitions(self.pending_revocation),
                _NO_TAGS,
            )
        )


def _read_current_member(
    reader: Reader, _version: int
) -> ConsumerGroupCurrentMemberAssignmentValue:
    epoch, previous, state = _int32(reader), _int32(reader), reader.unpack(_INT8)[0]
    assigned, pending = _read_topic_partitions(reader), _read_topic_partitions(reader)
    reader.skip_tags()
    return ConsumerGroupCurrentMemberAssignmentValue(epoch, previous, state, assigned, pending)


@dataclass(frozen=True, slots=True)
class ConsumerGroupRegularExpressionKey:
    group_id: str
    regular_expression: str

    def encode(self) -> bytes:
        number = _CONSUMER_GROUP_REGULAR_EXPRESSION
        return _of_member(number, self.group_id, self.regular_expression)


@dataclass(frozen=True, slots=True)
class ConsumerGroupRegularExpressionValue:
    topics: tuple[str, ...]
    version: int
    timestamp_ms: int

    def encode(self) -> bytes:
        numbers = _INT64.pack(self.version) + _INT64.pack(self.timestamp_ms)
        return b"\0\0" + _strings(self.topics) + numbers + _NO_TAGS


def _read_regular_expression(reader: Reader, _version: int) -> ConsumerGroupRegularExpressionValue:
    topics, version, resolved_ms = _read_strings(reader), _int64(reader), _int64(reader)
    reader.skip_tags()
    return ConsumerGroupRegularExpressionValue(topics, version, resolved_ms)


def _read_pair(reader: Reader) -> tuple[str, str]:
    return reader.string(False), reader.string(False)


GROUP_RECORDS: Final = Codec(
    {
        0: RecordType(_read_offset_key, _read_offset, 4),
        _OFFSET_COMMIT: RecordType(_read_offset_key, _read_offset, 4),
        _GROUP_METADATA: RecordType(
            lambda reader: GroupMetadataKey(reader.string(False)), _read_group, 4
        ),
        _CONSUMER_GROUP_METADATA: RecordType(
            lambda reader: ConsumerGroupMetadataKey(reader.string(False)), _read_consumer_group, 0
        ),
        _CONSUMER_GROUP_PARTITION_METADATA: RecordType(
            lambda reader: ConsumerGroupPartitionMetadataKey(reader.string(False)),
            lambda reader, version: b"",
            0,
        ),
        _CONSUMER_GROUP_MEMBER_METADATA: RecordType(
            lambda reader: ConsumerGroupMemberMetadataKey(*_read_pair(reader)),
            _read_consumer_member,
            0,
        ),
        _CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA: RecordType(
            lambda reader: ConsumerGroupTargetAssignmentMetadataKey(reader.string(False)),
            _read_target_metadata,
            0,
        ),
        _CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER: RecordType(
            lambda reader: ConsumerGroupTargetAssignmentMemberKey(*_read_pair(reader)),
            _read_target_member,
            0,
        ),
        _CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT: RecordType(
            lambda reader: ConsumerGroupCurrentMemberAssignmentKey(*_read_pair(reader)),
            _read_current_member,
            0,
        ),
        _CONSUMER_GROUP_REGULAR_EXPRESSION: RecordType(
            lambda reader: ConsumerGroupRegularExpressionKey(*_read_pair(reader)),
            _read_regular_expression,
            0,
        ),
    }
)
