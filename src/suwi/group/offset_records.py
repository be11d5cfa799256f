"""Records of committed offsets, with Apache Kafka's schemas: OffsetCommit."""

import struct
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from suwi.coordinator.record import RecordType
from suwi.group.record_fields import INT16, INT32, INT64, read_int32, read_int64
from suwi.model.ids import NO_TIMESTAMP, TopicId
from suwi.wire.primitives import Reader, compact_string, legacy_string, tag_section, uuid_of

_NO_TOPIC_ID: Final = TopicId(UUID(int=0))

# Version 4 without metadata: its length, and a tag that tells the topic's id, are constant.
_PLAIN: Final = struct.Struct(">qiBq3s16s")
_METADATA_AT: Final = 12
_TOPIC_ID_TAG: Final = b"\1\0\20"

# Types 0 and 1 are both commits: 0 is what Kafka wrote before 0.9.
_OFFSET_COMMIT: Final = 1


@dataclass(frozen=True, slots=True)
class OffsetCommitKey:
    group_id: str
    topic: str
    partition: int

    def encode(self) -> bytes:
        head = INT16.pack(_OFFSET_COMMIT) + legacy_string(self.group_id)
        return head + legacy_string(self.topic) + INT32.pack(self.partition)


@dataclass(frozen=True, slots=True)
class OffsetCommitValue:
    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = NO_TIMESTAMP
    """Of clients before 2.1, which could ask for it."""
    topic_id: TopicId = _NO_TOPIC_ID

    def is_of(self, topic_id: TopicId) -> bool:
        """Whether it was committed for that topic, as far as is known."""
        return self.topic_id in (_NO_TOPIC_ID, topic_id)

    def encode(self) -> bytes:
        if self.expire_timestamp_ms != NO_TIMESTAMP:  # Only version 1 has a place for it.
            return (
                b"\0\1"
                + INT64.pack(self.offset)
                + legacy_string(self.metadata)
                + INT64.pack(self.commit_timestamp_ms)
                + INT64.pack(self.expire_timestamp_ms)
            )
        tags = {} if self.topic_id == _NO_TOPIC_ID else {0: self.topic_id.bytes}
        return (
            b"\0\4"
            + INT64.pack(self.offset)
            + INT32.pack(self.leader_epoch)
            + compact_string(self.metadata)
            + INT64.pack(self.commit_timestamp_ms)
            + tag_section(tags)
        )


def _read_offset_key(reader: Reader) -> OffsetCommitKey:
    """In one piece if the sizes add up; whatever is wrong with others is found step by step."""
    buffer, at = reader.buffer, reader.at
    topic_at = at + 2 + INT16.unpack_from(buffer, at)[0]
    if at + 2 <= topic_at <= reader.end - 6:
        end = topic_at + 2 + INT16.unpack_from(buffer, topic_at)[0]
        if topic_at + 2 <= end == reader.end - 4:
            group_id = str(buffer[at + 2 : topic_at], "utf-8")
            topic = str(buffer[topic_at + 2 : end], "utf-8")
            return OffsetCommitKey(group_id, topic, INT32.unpack_from(buffer, end)[0])
    return OffsetCommitKey(reader.string(False), reader.string(False), read_int32(reader))


def _read_offset(reader: Reader, version: int) -> OffsetCommitValue:
    """Most of a log are offsets: as nearly all of them are written, they are read in one piece."""
    buffer, at = reader.buffer, reader.at
    if version == 4 and reader.end - at == _PLAIN.size and buffer[at + _METADATA_AT] == 1:
        offset, leader_epoch, _, committed_ms, tag, topic_id = _PLAIN.unpack_from(buffer, at)
        if tag == _TOPIC_ID_TAG:
            topic = TopicId(uuid_of(topic_id))
            return OffsetCommitValue(offset, leader_epoch, "", committed_ms, topic_id=topic)
    return _read_any_offset(reader, version)


def _read_any_offset(reader: Reader, version: int) -> OffsetCommitValue:
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


OFFSET_RECORDS: Final = {
    0: RecordType(_read_offset_key, _read_offset, 4),
    _OFFSET_COMMIT: RecordType(_read_offset_key, _read_offset, 4),
}
