"""Records of classic groups and of offsets in every version that Kafka has written.

The fields are those of Apache Kafka's schemas, written down here a second time: the encoder below
knows nothing of the one that is tested.
"""

import struct
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest

from suwi.coordinator.record import CoordinatorRecord
from suwi.group.classic_group_records import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from suwi.group.group_coordinator_shard import GROUP_RECORDS
from suwi.group.offset_records import OffsetCommitKey, OffsetCommitValue
from suwi.model.ids import TopicId

ANY = range(5)
TOPIC_ID = TopicId(UUID(int=77))


@dataclass(frozen=True)
class Field:
    kind: str
    value: Any
    versions: range = ANY
    tag: int | None = None


def encode(version: int, fields: list[Field]) -> bytes:
    """Flexible from version 4 on."""
    flexible = version >= 4
    data, tags = b"", []
    for field in fields:
        if version not in field.versions:
            continue
        encoded = _encode(field.kind, field.value, version)
        if field.tag is None:
            data += encoded
        else:
            tags.append((field.tag, encoded))
    if flexible:
        data += bytes([len(tags)]) + b"".join(
            bytes([tag, len(encoded)]) + encoded for tag, encoded in tags
        )
    return data


def _encode(kind: str, value: Any, version: int) -> bytes:
    flexible = version >= 4
    if kind in ("i", "q"):
        return struct.pack(f">{kind}", value)
    if kind == "uuid":
        return bytes(value.bytes)
    if kind == "array":
        head = bytes([len(value) + 1]) if flexible else struct.pack(">i", len(value))
        return head + b"".join(encode(version, fields) for fields in value)
    if value is None:
        return b"\0" if flexible else struct.pack(">h", -1)
    raw = value.encode() if kind == "string" else value
    if flexible:
        return bytes([len(raw) + 1]) + raw
    return struct.pack(">h" if kind == "string" else ">i", len(raw)) + raw


MEMBER = [
    Field("string", "m-1"),
    Field("string", "pod-1", range(3, 5)),
    Field("string", "client"),
    Field("string", "/127.0.0.1"),
    Field("i", 30_000, range(1, 5)),
    Field("i", 10_000),
    Field("bytes", b"subscription"),
    Field("bytes", b"assignment"),
]
GROUP = [
    Field("string", "consumer"),
    Field("i", 7),
    Field("string", "range"),
    Field("string", "m-1"),
    Field("q", 123_456, range(2, 5)),
    Field("array", [MEMBER, MEMBER]),
]
OFFSET = [
    Field("q", 42),
    Field("i", 5, range(3, 5)),
    Field("string", "note"),
    Field("q", 1_000),
    Field("q", 2_000, range(1, 2)),
    Field("uuid", TOPIC_ID, range(4, 5), tag=0),
]
GROUP_KEY = struct.pack(">hh", 2, 1) + b"g"
OFFSET_KEY = struct.pack(">hh", 1, 1) + b"g" + struct.pack(">h", 1) + b"t" + struct.pack(">i", 3)


def value_of(version: int, fields: list[Field]) -> bytes:
    return struct.pack(">h", version) + encode(version, fields)


@pytest.mark.parametrize("version", ANY)
def test_a_group_of_any_version_is_read(version: int) -> None:
    member = MemberMetadata(
        "m-1",
        "pod-1" if version >= 3 else None,
        "client",
        "/127.0.0.1",
        30_000 if version >= 1 else 10_000,
        10_000,
        b"subscription",
        b"assignment",
    )
    since_ms = 123_456 if version >= 2 else -1
    value = GroupMetadataValue("consumer", 7, "range", "m-1", since_ms, (member, member))
    expected = CoordinatorRecord(GroupMetadataKey("g"), value)
    assert GROUP_RECORDS.decode(GROUP_KEY, value_of(version, GROUP)) == expected


@pytest.mark.parametrize("version", ANY)
def test_an_empty_group_of_any_version_is_read(version: int) -> None:
    empty = [
        Field("string", "consumer"),
        Field("i", 8),
        Field("string", None),
        Field("string", None),
        Field("q", 5, range(2, 5)),
        Field("array", []),
    ]
    since_ms = 5 if version >= 2 else -1
    record = GROUP_RECORDS.decode(GROUP_KEY, value_of(version, empty))
    assert record is not None
    assert record.value == GroupMetadataValue("consumer", 8, None, None, since_ms, ())


@pytest.mark.parametrize("version", ANY)
def test_an_offset_of_any_version_is_read(version: int) -> None:
    value = OffsetCommitValue(
        42,
        5 if version >= 3 else -1,
        "note",
        1_000,
        2_000 if version == 1 else -1,
        TOPIC_ID if version >= 4 else TopicId(UUID(int=0)),
    )
    expected = CoordinatorRecord(OffsetCommitKey("g", "t", 3), value)
    data = value_of(version, OFFSET)
    assert GROUP_RECORDS.decode(OFFSET_KEY, data) == expected
    assert GROUP_RECORDS.decode(b"\0\0" + OFFSET_KEY[2:], data) == expected  # Before Kafka 0.9.


def test_tags_that_are_not_known_here_are_no_error() -> None:
    later = [*OFFSET, Field("i", 99, range(4, 5), tag=9)]
    record = GROUP_RECORDS.decode(OFFSET_KEY, value_of(4, later))
    assert record is not None
    assert record.value.topic_id == TOPIC_ID


def test_what_is_written_is_what_kafka_reads() -> None:
    """A group in version 3, an offset in version 4, or 1 if it has an expiry of its own."""
    key, value = GROUP_RECORDS.encode(_decoded(GROUP_KEY, value_of(3, GROUP)))
    assert (key, value) == (GROUP_KEY, value_of(3, GROUP))
    key, value = GROUP_RECORDS.encode(_decoded(OFFSET_KEY, value_of(4, OFFSET)))
    assert (key, value) == (OFFSET_KEY, value_of(4, OFFSET))
    key, value = GROUP_RECORDS.encode(_decoded(OFFSET_KEY, value_of(1, OFFSET)))
    assert (key, value) == (OFFSET_KEY, value_of(1, OFFSET))


def _decoded(key: bytes, value: bytes) -> CoordinatorRecord:
    record = GROUP_RECORDS.decode(key, value)
    assert record is not None
    return record
