"""Hand-written codec of OffsetCommit v2-v10, and of the response of TxnOffsetCommit.

Up to v4: retention. v6: leader epoch. v7: static members. v8: compact fields. v10: topic ids.
The broker uses `decode_offset_commit_request`, for large requests the generator
`decoding_offset_commit_request`.
Invariant: every length is compared with the bytes left before it is used, and topics and partitions
together are at most `REQUEST_ITEMS_MAX`.
"""

import struct
from collections.abc import Generator, Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from suwi.env.slices import run_to_end
from suwi.wire.errors import BROKEN_BYTES, MalformedRequest, RequestTooLarge
from suwi.wire.primitives import Reader, SliceCounter, count, string, uuid_of
from suwi.wire.versions import REQUEST_ITEMS_MAX, SMALL_REQUEST_BYTES_MAX

_RETENTION_UP_TO: Final = 4
_LEADER_EPOCH_FROM: Final = 6
_INSTANCE_ID_FROM: Final = 7
_FLEXIBLE_FROM: Final = 8
_TOPIC_ID_FROM: Final = 10
NO_RETENTION_MS: Final = -1

_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_OFFSET_V2: Final = struct.Struct(">iq")  # partition, offset
_OFFSET_V6: Final = struct.Struct(">iqi")  # and leader epoch
_INT32_AND_SIZE: Final = struct.Struct(">iB")
_OFFSET_V6_AND_SIZE: Final = struct.Struct(">iqiB")
_PLAIN_BYTES_MAX: Final = 64 * 1024
_PARTITION_ERROR: Final = struct.Struct(">ih")
_PARTITION_ERROR_NO_TAGS: Final = struct.Struct(">ihx")
_TOPIC_BYTES_MIN: Final = 3
_PARTITION_BYTES_MIN: Final = 13

# Plain tuples, because creating a named tuple takes longer than decoding its fields.
# Partition, offset, leader epoch, metadata.
CommittedPartition: TypeAlias = tuple[int, int, int, str | None]
# Name, id, partitions. From v10 on only the id is set, before only the name.
CommittedTopic: TypeAlias = tuple[str | None, UUID | None, list[CommittedPartition]]
# Name or id, and the error of each partition.
TopicErrors: TypeAlias = tuple[str | UUID, Sequence[tuple[int, int]]]


class OffsetCommitRequest(NamedTuple):
    group_id: str
    generation: int
    """Or the member's epoch."""
    member_id: str
    instance_id: str | None
    retention_ms: int
    topics: list[CommittedTopic]


def decode_offset_commit_request(version: int, body: memoryview) -> OffsetCommitRequest:
    """Decode a request. Bytes after its end are ignored, as in Kafka."""
    try:
        if version >= _FLEXIBLE_FROM and len(body) <= _PLAIN_BYTES_MAX:
            plain = _decode_plain(version, bytes(body))
            if plain is not None:
                return plain
    except BROKEN_BYTES as error:
        raise MalformedRequest(f"OffsetCommit v{version}: {error}") from error
    return run_to_end(decoding_offset_commit_request(version, body))


def decoding_offset_commit_request(
    version: int, body: memoryview
) -> Generator[None, None, OffsetCommitRequest]:
    """Decode a request in slices: yields after each."""
    if len(body) > SMALL_REQUEST_BYTES_MAX:
        raise RequestTooLarge(f"OffsetCommit v{version}: a request of {len(body)} bytes")
    try:
        reader = Reader(body, items_max=REQUEST_ITEMS_MAX)
        return (yield from _decode_request(version, reader, SliceCounter()))
    except BROKEN_BYTES as error:
        raise MalformedRequest(f"OffsetCommit v{version}: {error}") from error


def _decode_plain(version: int, data: bytes) -> OffsetCommitRequest | None:
    """The fast path (v8+): strings and arrays shorter than 127, no tags, as nearly all requests.

    None for any other, also for malformed ones: `_decode_request` handles those.
    """
    try:
        size = data[0]
        at = size
        group_id = str(data[1:at], "utf-8")
        generation, member_size = _INT32_AND_SIZE.unpack_from(data, at)
        end = at + _INT32_AND_SIZE.size + member_size - 1
        member_id = str(data[at + _INT32_AND_SIZE.size : end], "utf-8")
        instance_size = data[end]
        at = end + (instance_size or 1)
        instance_id = str(data[end + 1 : at], "utf-8") if instance_size else None
        count_of_topics = data[at] - 1
        if not (0 < size < 0x80 and 0 < member_size < 0x80 and instance_size < 0x80):
            return None
        if not 0 <= count_of_topics < 0x7F:
            return None
        at += 1
        topics: list[CommittedTopic] = []
        for _ in range(count_of_topics):
            found = _decode_plain_topic(version, data, at)
            if found is None:
                return None
            topic, at = found
            topics.append(topic)
        if data[at]:
            return None
    except (IndexError, struct.error, ValueError):
        return None
    return OffsetCommitRequest(
        group_id, generation, member_id, instance_id, NO_RETENTION_MS, topics
    )


def _decode_plain_topic(version: int, data: bytes, at: int) -> tuple[CommittedTopic, int] | None:
    """The topic, and the position after it."""
    name = topic_id = None
    if version >= _TOPIC_ID_FROM:
        topic_id = uuid_of(data[at : at + 16])
        at += 16
    else:
        size = data[at]
        name = str(data[at + 1 : at + size], "utf-8")
        at += size
        if not 0 < size < 0x80:
            return None
    count_of_partitions = data[at] - 1
    if not 0 <= count_of_partitions < 0x7F:
        return None
    at += 1
    partitions: list[CommittedPartition] = []
    for _ in range(count_of_partitions):
        index, offset, leader_epoch, size = _OFFSET_V6_AND_SIZE.unpack_from(data, at)
        at += _OFFSET_V6_AND_SIZE.size
        end = at + (size or 1) - 1
        if size > 0x7F or data[end]:
            return None
        metadata = str(data[at:end], "utf-8") if size else None
        partitions.append((index, offset, leader_epoch, metadata))
        at = end + 1
    if data[at]:
        return None
    return (name, topic_id, partitions), at + 1


def _decode_request(
    version: int, reader: Reader, counter: SliceCounter
) -> Generator[None, None, OffsetCommitRequest]:
    flexible = version >= _FLEXIBLE_FROM
    group_id = reader.string(flexible)
    (generation,) = reader.unpack(_INT32)
    member_id = reader.string(flexible)
    instance_id = reader.nullable_string(flexible) if version >= _INSTANCE_ID_FROM else None
    retention_ms = NO_RETENTION_MS
    if version <= _RETENTION_UP_TO:
        (retention_ms,) = reader.unpack(_INT64)
    topics = []
    for _ in range(reader.count(flexible, _TOPIC_BYTES_MIN)):
        topics.append((yield from _decode_topic(version, reader, counter)))
        if counter.is_full(reader.at):
            yield
    if flexible:
        reader.skip_tags()
    return OffsetCommitRequest(group_id, generation, member_id, instance_id, retention_ms, topics)


def _decode_topic(
    version: int, reader: Reader, counter: SliceCounter
) -> Generator[None, None, CommittedTopic]:
    flexible = version >= _FLEXIBLE_FROM
    name = topic_id = None
    if version >= _TOPIC_ID_FROM:
        topic_id = reader.uuid()
    else:
        name = reader.string(flexible)
    partitions: list[CommittedPartition] = []
    for _ in range(reader.count(flexible, _PARTITION_BYTES_MIN)):
        if version >= _LEADER_EPOCH_FROM:
            index, offset, leader_epoch = reader.unpack(_OFFSET_V6)
        else:
            index, offset = reader.unpack(_OFFSET_V2)
            leader_epoch = -1
        partitions.append((index, offset, leader_epoch, reader.nullable_string(flexible)))
        if flexible:
            reader.skip_tags()
        if counter.is_full(reader.at):
            yield
    if flexible:
        reader.skip_tags()
    return name, topic_id, partitions


def encode_offset_commit_response(
    topics: Sequence[TopicErrors], throttle_ms: int | None, *, flexible: bool
) -> bytes:
    """Of OffsetCommit or TxnOffsetCommit; without `throttle_ms` where the version has no place."""
    out = [] if throttle_ms is None else [_INT32.pack(throttle_ms)]
    out.append(count(len(topics), flexible))
    for name, partitions in topics:
        out.append(string(name, flexible) if isinstance(name, str) else name.bytes)
        out.append(count(len(partitions), flexible))
        out += _encode_errors(partitions, flexible)
    out.append(b"\0" if flexible else b"")
    return b"".join(out)


def _encode_errors(partitions: Iterable[tuple[int, int]], flexible: bool) -> list[bytes]:
    if not flexible:
        return [_PARTITION_ERROR.pack(index, error) for index, error in partitions]
    encoded = [_PARTITION_ERROR_NO_TAGS.pack(index, error) for index, error in partitions]
    encoded.append(b"\0")
    return encoded
