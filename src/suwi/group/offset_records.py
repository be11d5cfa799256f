"""Records of committed offsets, with Apache Kafka's schemas: OffsetCommit."""

import struct
from typing import Final, NamedTuple
from uuid import UUID

from suwi.coordinator.record import CoordinatorRecord, RecordType
from suwi.group.record_fields import INT32, INT64, read_int32, read_int64
from suwi.model.ids import NO_TIMESTAMP, TopicId
from suwi.wire.primitives import Reader, compact_string, legacy_string, tag_section, uuid_of

_NO_TOPIC_ID: Final = TopicId(UUID(int=0))
_NO_TOPIC_ID_BYTES: Final = bytes(16)

# Version 4 without metadata and with a topic id has a constant length.
_PLAIN: Final = struct.Struct(">hqiBq3s16s")
_PLAIN_VERSION: Final = 4
_NO_METADATA: Final = 1
_TOPIC_ID_TAG: Final = b"\1\0\20"


class OffsetCommitKey(NamedTuple):
    group_id: str
    topic: str
    partition: int

    def encode(self) -> bytes:
        group_id, topic, partition = self
        head = b"\0\1" + legacy_string(group_id)
        return head + legacy_string(topic) + INT32.pack(partition)


class OffsetCommitValue(NamedTuple):
    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = NO_TIMESTAMP
    """Set by clients before 2.1, which could ask for an expiry of their own."""
    topic_id: TopicId = _NO_TOPIC_ID

    def is_of(self, topic_id: TopicId) -> bool:
        """Whether it was committed for that topic, as far as is known."""
        return self.topic_id in (_NO_TOPIC_ID, topic_id)

    def encode(self) -> bytes:
        offset, leader_epoch, metadata, committed_ms, expires_ms, topic_id = self
        if expires_ms != NO_TIMESTAMP:  # Only version 1 has this field.
            return (
                b"\0\1"
                + INT64.pack(offset)
                + legacy_string(metadata)
                + INT64.pack(committed_ms)
                + INT64.pack(expires_ms)
            )
        id_bytes = topic_id.bytes
        if not metadata and id_bytes != _NO_TOPIC_ID_BYTES:
            plain = (_NO_METADATA, committed_ms, _TOPIC_ID_TAG, id_bytes)
            return _PLAIN.pack(_PLAIN_VERSION, offset, leader_epoch, *plain)
        tags = {} if id_bytes == _NO_TOPIC_ID_BYTES else {0: id_bytes}
        return (
            b"\0\4"
            + INT64.pack(offset)
            + INT32.pack(leader_epoch)
            + compact_string(metadata)
            + INT64.pack(committed_ms)
            + tag_section(tags)
        )


def _read_plain(key: bytes, value: bytes | None) -> CoordinatorRecord | None:
    """Reads an offset of the usual form in one piece, because most records of a log are such
    offsets. None for any other form, which is read field by field, and for malformed records."""
    if value is None or len(value) != _PLAIN.size:
        return None
    group_end = 4 + (key[2] << 8 | key[3])
    topic_at = group_end + 2
    if topic_at > len(key):
        return None
    topic_end = topic_at + (key[group_end] << 8 | key[group_end + 1])
    if topic_end + 4 != len(key) or key[2] > 0x7F or key[group_end] > 0x7F:
        return None
    version, offset, leader_epoch, length, committed_ms, tag, topic_id = _PLAIN.unpack(value)
    if version != _PLAIN_VERSION or length != _NO_METADATA or tag != _TOPIC_ID_TAG:
        return None
    return CoordinatorRecord(
        OffsetCommitKey(
            str(key[4:group_end], "utf-8"),
            str(key[topic_at:topic_end], "utf-8"),
            INT32.unpack_from(key, topic_end)[0],
        ),
        OffsetCommitValue(
            offset, leader_epoch, "", committed_ms, NO_TIMESTAMP, TopicId(uuid_of(topic_id))
        ),
    )


def _read_offset_key(reader: Reader) -> OffsetCommitKey:
    return OffsetCommitKey(reader.string(False), reader.string(False), read_int32(reader))


def _read_offset(reader: Reader, version: int) -> OffsetCommitValue:
    flexible = version >= 4
    offset = read_int64(reader)
    leader_epoch = read_int32(reader) if version >= 3 else -1
    metadata = reader.string(flexible)
    committed_ms = read_int64(reader)
    expires_ms = read_int64(reader) if version == 1 else NO_TIMESTAMP
    topic_id = _NO_TOPIC_ID
    if flexible:
        for tag, field in reader.tags():
            if tag == 0:
                topic_id = TopicId(field.uuid())
    return OffsetCommitValue(offset, leader_epoch, metadata, committed_ms, expires_ms, topic_id)


# Types 0 and 1 are both commits: 0 is what Kafka wrote before 0.9.
OFFSET_RECORDS: Final = {
    0: RecordType(_read_offset_key, _read_offset, 4, _read_plain),
    1: RecordType(_read_offset_key, _read_offset, 4, _read_plain),
}
