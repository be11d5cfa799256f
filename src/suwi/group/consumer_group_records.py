"""Records of consumer groups (KIP-848), with Apache Kafka's schemas: ConsumerGroup…"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple, Self

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


class _Kind(NamedTuple):
    """How a field of a value is written and read. Long ones take slices for both."""

    write: Callable[[Any], bytes | Slices[bytes]]
    read: Callable[[Reader], Any]


class _Value(LongValue):
    """A value of version 0: its fields, of these kinds, in their order. With `tagged`, the last one
    is tagged with the number 0, and left out if it is not set."""

    __slots__ = ()
    __match_args__: ClassVar[tuple[str, ...]]
    kinds: ClassVar[tuple[_Kind, ...]]
    tagged: ClassVar[_Kind | None] = None

    def encoding(self) -> Slices[bytes]:
        values = [getattr(self, name) for name in self.__match_args__]
        encoded = [b"\0\0"]
        tags: dict[int, Any] = {}
        for kind, value in zip(self.kinds, values, strict=False):
            written = kind.write(value)
            encoded.append(written if isinstance(written, bytes) else (yield from written))
        if self.tagged is not None and values[-1]:
            tags[0] = self.tagged.write(values[-1])
        return b"".join((*encoded, tag_section(tags)))

    @classmethod
    def reading(cls, reader: Reader, _version: int) -> Slices[Self]:
        values = []
        for kind in cls.kinds:
            value = kind.read(reader)
            values.append((yield from value) if isinstance(value, Generator) else value)
        tagged = []
        for tag, field in reader.tags():
            if tag == 0 and cls.tagged is not None:
                tagged = [cls.tagged.read(field)]
        return cls(*values, *tagged)


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
class Protocol:
    """One way to assign that a member of the classic protocol supports, with its subscription in
    that form."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class ClassicMemberMetadata:
    """Of a member of a consumer group that speaks the classic protocol."""

    session_timeout_ms: int
    protocols: tuple[Protocol, ...]

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
        protocols.append(Protocol(reader.string(True), read_bytes(reader, True)))
        reader.skip_tags()
    reader.skip_tags()
    return ClassicMemberMetadata(session_ms, tuple(protocols))


_INT8: Final = _Kind(INT8.pack, lambda reader: reader.unpack(INT8)[0])
_INT32: Final = _Kind(INT32.pack, read_int32)
_INT64: Final = _Kind(INT64.pack, read_int64)
_STRING: Final = _Kind(compact_string, lambda reader: reader.string(True))
_NULLABLE: Final = _Kind(compact_string, lambda reader: reader.nullable_string(True))
_STRINGS: Final = _Kind(strings, read_strings)
_PARTITIONS: Final = _Kind(_encode_topic_partitions, _read_topic_partitions)
_CLASSIC: Final = _Kind(ClassicMemberMetadata.encode, _read_classic_member)


class ConsumerGroupMetadataKey(_GroupKey):
    __slots__ = ()
    number = 3


@dataclass(frozen=True, slots=True)
class ConsumerGroupMetadataValue(_Value):
    kinds, tagged = (_INT32,), _INT64
    epoch: int
    metadata_hash: int = 0
    """Of all topics that the group subscribes to (KIP-1101)."""


class ConsumerGroupPartitionMetadataKey(_GroupKey):
    """Written by Kafka 4.0, and later replaced by the hash. Suwi only deletes it."""

    __slots__ = ()
    number = 4


class ConsumerGroupMemberMetadataKey(_MemberKey):
    __slots__ = ()
    number = 5


@dataclass(frozen=True, slots=True)
class ConsumerGroupMemberMetadataValue(_Value):
    kinds = (_NULLABLE, _NULLABLE, _STRING, _STRING, _STRINGS, _NULLABLE, _INT32, _NULLABLE)
    tagged = _CLASSIC
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    topic_names: tuple[str, ...]
    topic_regex: str | None
    rebalance_timeout_ms: int
    server_assignor: str | None
    classic: ClassicMemberMetadata | None = None


class ConsumerGroupTargetAssignmentMetadataKey(_GroupKey):
    __slots__ = ()
    number = 6


@dataclass(frozen=True, slots=True)
class ConsumerGroupTargetAssignmentMetadataValue(_Value):
    kinds, tagged = (_INT32,), _INT64
    assignment_epoch: int
    assignment_timestamp_ms: int = 0


class ConsumerGroupTargetAssignmentMemberKey(_MemberKey):
    __slots__ = ()
    number = 7


@dataclass(frozen=True, slots=True)
class ConsumerGroupTargetAssignmentMemberValue(_Value):
    kinds = (_PARTITIONS,)
    partitions: tuple[TopicPartitions, ...]


class ConsumerGroupCurrentMemberAssignmentKey(_MemberKey):
    __slots__ = ()
    number = 8


@dataclass(frozen=True, slots=True)
class ConsumerGroupCurrentMemberAssignmentValue(_Value):
    kinds = (_INT32, _INT32, _INT8, _PARTITIONS, _PARTITIONS)
    member_epoch: int
    previous_member_epoch: int
    state: int
    assigned: tuple[TopicPartitions, ...]
    pending_revocation: tuple[TopicPartitions, ...]


@dataclass(frozen=True, slots=True)
class ConsumerGroupRegularExpressionKey(_Key):
    number = 16
    group_id: str
    regular_expression: str


@dataclass(frozen=True, slots=True)
class ConsumerGroupRegularExpressionValue(_Value):
    kinds = (_STRINGS, _INT64, _INT64)
    topics: tuple[str, ...]
    version: int
    timestamp_ms: int


_VALUES: Final[dict[type[_Key], type[_Value]]] = {
    ConsumerGroupMetadataKey: ConsumerGroupMetadataValue,
    ConsumerGroupMemberMetadataKey: ConsumerGroupMemberMetadataValue,
    ConsumerGroupTargetAssignmentMetadataKey: ConsumerGroupTargetAssignmentMetadataValue,
    ConsumerGroupTargetAssignmentMemberKey: ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupCurrentMemberAssignmentKey: ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupRegularExpressionKey: ConsumerGroupRegularExpressionValue,
}
CONSUMER_GROUP_RECORDS: Final = {
    **{key.number: RecordType(key.read, value.reading, 0) for key, value in _VALUES.items()},
    4: RecordType(ConsumerGroupPartitionMetadataKey.read, lambda _reader, _version: b"", 0),
}
