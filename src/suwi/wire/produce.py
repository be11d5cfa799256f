"""Hand-written codec of Produce v3-v13: records are slices of the received bytes, never copies.

v5: log start offset. v8: record errors. v9: compact fields. v10: current leader. v13: topic ids.
The broker uses `decode_plain_request`, the fast path for the most common form,
`decode_small_request`, for large requests the generator `decoding_produce_request`,
`encode_produce_response` and, for a response in parts, `ProduceParts`. The client uses
`encode_produce_request` and `decode_produce_response`.
Invariant: every length is compared with the bytes left before it is used, and topics and partitions
together are at most `REQUEST_ITEMS_MAX`.
"""

import struct
from collections.abc import Generator, Sequence
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from typing_extensions import Buffer

from suwi.wire.errors import BROKEN_BYTES, MalformedMessage, MalformedRequest, MalformedResponse
from suwi.wire.leaders import (
    CurrentLeader,
    NodeEndpoint,
    decode_endpoints,
    decode_leader,
    encode_endpoints,
    encode_leader,
)
from suwi.wire.primitives import (
    STRING_BYTES_MAX,
    Reader,
    count,
    read_uvarint,
    string,
    tag_section,
    uuid_of,
)
from suwi.wire.versions import APIS, REQUEST_ITEMS_MAX, ApiKey

SLICE_ITEMS: Final = 128
"""Topics and partitions of a small request, which is decoded and handled at once: some
milliseconds, if the files of their logs must be opened."""
_FLEXIBLE_FROM: Final = 9
_TOPIC_IDS_FROM: Final = 13

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_ACKS_TIMEOUT: Final = struct.Struct(">hi")
_ACKS_TIMEOUT_BYTE: Final = struct.Struct(">hiB")
_ACKS_TIMEOUT_TOPICS: Final = struct.Struct(">hii")
_PLAIN_START: Final = struct.Struct(">BhiB")  # transactional id, acks, timeout, number of topics
_PLAIN_PARTITION: Final = struct.Struct(">Bi")  # number of partitions, index
_INDEX_AND_BYTE: Final = struct.Struct(">iB")
_INDEX_AND_SIZE: Final = struct.Struct(">ii")
_LEGACY_TOPIC_BYTES_MIN: Final = 6
_LEGACY_PARTITION_BYTES_MIN: Final = 8
_COMPACT_TOPIC_BYTES_MIN: Final = 3
_COMPACT_PARTITION_BYTES_MIN: Final = 6
_TAGS_MAX: Final = 16  # per section; no tag is defined, and each costs time to skip

# index, error, base offset, log append time; then the log start offset; then no record errors, no
# error message and, in the compact form, no tags.
_PRODUCED_V3: Final = struct.Struct(">ihqq")
_PRODUCED_V5: Final = struct.Struct(">ihqqq")
_NO_ERRORS_V8: Final = b"\0\0\0\0\xff\xff"
_NO_ERRORS_V9: Final = b"\1\0"
# The end of a response without errors: no record errors, no message, no tags of partition and
# topic, no throttling, no tags.
_END_OF_ONE: Final = b"\1\0\0\0" + bytes(4) + b"\0"


# Plain tuples, because creating a named tuple takes longer than decoding its fields.
# Index, and the records as the client sent them: a slice of the request, writable if that is.
ProducePartition: TypeAlias = tuple[int, memoryview | None]
# Name, id, partitions. From v13 on only the id is set, before only the name.
ProduceTopic: TypeAlias = tuple[str | None, UUID | None, list[ProducePartition]]


class ProduceRequest(NamedTuple):
    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[ProduceTopic]


class RecordError(NamedTuple):
    batch_index: int
    message: str | None = None


class PartitionProduced(NamedTuple):
    partition: int
    error_code: int = 0
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: Sequence[RecordError] = ()
    error_message: str | None = None
    current_leader: CurrentLeader | None = None


class TopicProduced(NamedTuple):
    name: str | None
    topic_id: UUID | None
    partitions: Sequence[PartitionProduced]


class ProduceResponse(NamedTuple):
    topics: list[TopicProduced]
    throttle_ms: int
    node_endpoints: list[NodeEndpoint]


# Acks, timeout, name, topic id, index, records.
PlainRequest: TypeAlias = tuple[int, int, str | None, UUID | None, int, memoryview]


def decode_plain_request(version: int, body: memoryview) -> PlainRequest | None:
    """The fast path (v9+): one batch for one partition, without a transactional id.

    None for any other request, also a malformed one: `decoding_produce_request` handles those.
    """
    try:
        transactional_id, acks, timeout_ms, topics = _PLAIN_START.unpack_from(body)
        if transactional_id or topics != 2:
            return None
        name = topic_id = None
        if version >= _TOPIC_IDS_FROM:
            at = 24
            topic_id = uuid_of(bytes(body[8:24]))
        else:
            length = body[8]
            if not 0 < length < 0x80:
                return None
            at = 8 + length
            name = str(body[9:at], "utf-8")
        partitions, index = _PLAIN_PARTITION.unpack_from(body, at)
        if partitions != 2:
            return None
        size_bytes, at = read_uvarint(body, at + 5)
        end = at + size_bytes - 1
        if size_bytes < 2 or body[end] or body[end + 1] or body[end + 2]:
            return None  # without records, or with tags
    except BROKEN_BYTES:
        return None
    return acks, timeout_ms, name, topic_id, index, body[at:end]


def decode_small_request(version: int, body: memoryview) -> ProduceRequest | None:
    """Decode a request. None if it has more than `SLICE_ITEMS` topics and partitions.

    Written twice: the generator `decoding_produce_request` takes half as long again, one us.
    """
    try:
        read_start, read_topic, read_partitions = _FORMS[version]
        end = len(body)
        transactional_id, acks, timeout_ms, items, at = read_start(body, 0, end)
        topics: list[ProduceTopic] = []
        for _ in range(items):
            name, topic_id, count, at = read_topic(body, at, end)
            items += count
            if items > SLICE_ITEMS:
                return None
            partitions: list[ProducePartition] = []
            at = read_partitions(body, at, end, partitions, count)
            if version >= _FLEXIBLE_FROM:
                at = _skip_tags(body, at) if body[at] else at + 1
            topics.append((name, topic_id, partitions))
        if version >= _FLEXIBLE_FROM and body[at]:
            _skip_tags(body, at)
    except BROKEN_BYTES as error:
        raise MalformedRequest(f"Produce v{version}: {error}") from error
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def decoding_produce_request(
    version: int, body: memoryview, at: int = 0
) -> Generator[None, None, ProduceRequest]:
    """Decode any request in slices: yields after each `SLICE_ITEMS` topics and partitions. Bytes
    after its end are ignored, as in Kafka."""
    try:
        read_start, read_topic, read_partitions = _FORMS[version]
        end = len(body)
        transactional_id, acks, timeout_ms, items, at = read_start(body, at, end)
        slice_left = SLICE_ITEMS
        topics: list[ProduceTopic] = []
        for _ in range(items):
            name, topic_id, left, at = read_topic(body, at, end)
            items += left
            if items > REQUEST_ITEMS_MAX:
                raise MalformedMessage(f"{items} topics and partitions")
            slice_left -= 1
            partitions: list[ProducePartition] = []
            while left or slice_left <= 0:
                if slice_left <= 0:
                    yield
                    slice_left = SLICE_ITEMS
                size = min(left, slice_left)
                at = read_partitions(body, at, end, partitions, size)
                left -= size
                slice_left -= size
            if version >= _FLEXIBLE_FROM:
                at = _skip_tags(body, at) if body[at] else at + 1
            topics.append((name, topic_id, partitions))
        if version >= _FLEXIBLE_FROM and body[at]:
            _skip_tags(body, at)
    except BROKEN_BYTES as error:
        raise MalformedRequest(f"Produce v{version}: {error}") from error
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


_Start: TypeAlias = tuple[str | None, int, int, int, int]
"""Transactional id, acks, timeout, number of topics, and the position after them."""
_TopicStart: TypeAlias = tuple[str | None, UUID | None, int, int]
"""Name, id, number of partitions, and the position after it."""


def _legacy_start(body: memoryview, at: int, end: int) -> _Start:
    transactional_id, at = _legacy_string(body, at, end)
    acks, timeout_ms, topic_count = _ACKS_TIMEOUT_TOPICS.unpack_from(body, at)
    at += 10
    if topic_count < 0 or topic_count * _LEGACY_TOPIC_BYTES_MIN > end - at:
        raise _too_many(topic_count, end - at)
    return transactional_id, acks, timeout_ms, topic_count, at


def _legacy_topic(body: memoryview, at: int, end: int) -> _TopicStart:
    name, at = _legacy_string(body, at, end)
    if name is None:
        raise MalformedMessage("a topic without a name")
    (partition_count,) = _INT32.unpack_from(body, at)
    at += 4
    if partition_count < 0 or partition_count * _LEGACY_PARTITION_BYTES_MIN > end - at:
        raise _too_many(partition_count, end - at)
    return name, None, partition_count, at


def _legacy_partitions(
    body: memoryview, at: int, end: int, partitions: list[ProducePartition], count: int
) -> int:
    for _ in range(count):
        index, size_bytes = _INDEX_AND_SIZE.unpack_from(body, at)
        at += 8
        records = None
        if size_bytes != -1:
            after = at + size_bytes
            if size_bytes < 0 or after > end:
                raise MalformedMessage(f"{size_bytes} bytes of records, {end - at} left")
            records = body[at:after]
            at = after
        partitions.append((index, records))
    return at


# Most varints of the compact form have one byte; those are read inline.


def _compact_start(body: memoryview, at: int, end: int) -> _Start:
    transactional_id = None
    if body[at]:
        transactional_id, at = _compact_string(body, at, end)
    else:
        at += 1
    acks, timeout_ms, topic_count = _ACKS_TIMEOUT_BYTE.unpack_from(body, at)
    at += 7
    if topic_count >= 0x80:
        topic_count, at = read_uvarint(body, at - 1)
    topic_count -= 1
    if topic_count < 0 or topic_count * _COMPACT_TOPIC_BYTES_MIN > end - at:
        raise _too_many(topic_count, end - at)
    return transactional_id, acks, timeout_ms, topic_count, at


def _compact_topic(body: memoryview, at: int, end: int) -> _TopicStart:
    name, at = _compact_string(body, at, end)
    partition_count, at = _compact_partition_count(body, at, end)
    return name, None, partition_count, at


def _topic_by_id(body: memoryview, at: int, end: int) -> _TopicStart:
    topic_id = uuid_of(bytes(body[at : at + 16]))
    partition_count, at = _compact_partition_count(body, at + 16, end)
    return None, topic_id, partition_count, at


def _compact_partition_count(body: memoryview, at: int, end: int) -> tuple[int, int]:
    partition_count = body[at]
    at += 1
    if partition_count >= 0x80:
        partition_count, at = read_uvarint(body, at - 1)
    partition_count -= 1
    if partition_count < 0 or partition_count * _COMPACT_PARTITION_BYTES_MIN > end - at:
        raise _too_many(partition_count, end - at)
    return partition_count, at


def _compact_partitions(
    body: memoryview, at: int, end: int, partitions: list[ProducePartition], count: int
) -> int:
    for _ in range(count):
        index, size_bytes = _INDEX_AND_BYTE.unpack_from(body, at)
        at += 5
        if size_bytes >= 0x80:
            size_bytes, at = read_uvarint(body, at - 1)
        records = None
        if size_bytes:
            after = at + size_bytes - 1
            if after > end:
                raise MalformedMessage(f"{size_bytes - 1} bytes of records, {end - at} left")
            records = body[at:after]
            at = after
        at = _skip_tags(body, at) if body[at] else at + 1
        partitions.append((index, records))
    return at


_FORMS: Final = [
    (_legacy_start, _legacy_topic, _legacy_partitions)
    if version < _FLEXIBLE_FROM
    else (_compact_start, _compact_topic, _compact_partitions)
    if version < _TOPIC_IDS_FROM
    else (_compact_start, _topic_by_id, _compact_partitions)
    for version in range(APIS[ApiKey.PRODUCE].max_version + 1)
]
"""By version."""


def _too_many(count: int, bytes_left: int) -> MalformedMessage:
    return MalformedMessage(f"{count} items announced, {bytes_left} bytes left")


def _legacy_string(body: memoryview, at: int, end: int) -> tuple[str | None, int]:
    (length,) = _INT16.unpack_from(body, at)
    at += 2
    if length == -1:
        return None, at
    after = at + length
    if length < 0 or after > end:
        raise MalformedMessage(f"a string of {length} bytes, {end - at} left")
    return str(body[at:after], "utf-8"), after


def _compact_string(body: memoryview, at: int, end: int) -> tuple[str, int]:
    length = body[at]
    at += 1
    if length >= 0x80:
        length, at = read_uvarint(body, at - 1)
    after = at + length - 1
    if length == 0 or length > STRING_BYTES_MAX + 1 or after > end:
        raise MalformedMessage(f"a string of {length - 1} bytes, {end - at} left")
    return str(body[at:after], "utf-8"), after


def _skip_tags(body: memoryview, at: int) -> int:
    reader = Reader(body, at, items_max=_TAGS_MAX)
    reader.skip_tags()
    return reader.at


def encode_produce_response(
    version: int,
    topics: Sequence[TopicProduced],
    throttle_ms: int = 0,
    node_endpoints: Sequence[NodeEndpoint] = (),
) -> bytes:
    out = [count(len(topics), version >= _FLEXIBLE_FROM)]
    for name, topic_id, partitions in topics:
        encoded = [_encode_produced(version, partition) for partition in partitions]
        out.append(_encode_topic(version, name, topic_id, encoded))
    out.append(_encode_end(version, throttle_ms, node_endpoints))
    return b"".join(out)


def encode_produced_one(
    topic: str | UUID, partition: int, base_offset: int, time_ms: int, start_offset: int
) -> bytes:
    """The response (v9+) for one batch that was appended."""
    named = topic.bytes if isinstance(topic, UUID) else string(topic, True)
    fixed = _PRODUCED_V5.pack(partition, 0, base_offset, time_ms, start_offset)
    return b"\2" + named + b"\2" + fixed + _END_OF_ONE


class ProduceParts:
    """A response in parts: the bytes equal those of `encode_produce_response`."""

    def __init__(self, version: int) -> None:
        self._version = version
        self._topics: list[bytes] = []
        self._topic: tuple[str | None, UUID | None] | None = None
        self._partitions: list[bytes] = []

    def add(self, topics: Sequence[TopicProduced]) -> None:
        """The next partitions. A topic may be continued by the following part."""
        for name, topic_id, partitions in topics:
            if self._topic != (name, topic_id):
                self._end_topic()
                self._topic = name, topic_id
            self._partitions += [_encode_produced(self._version, each) for each in partitions]

    def encode(self, node_endpoints: Sequence[NodeEndpoint]) -> bytes:
        self._end_topic()
        start = count(len(self._topics), self._version >= _FLEXIBLE_FROM)
        return b"".join((start, *self._topics, _encode_end(self._version, 0, node_endpoints)))

    def _end_topic(self) -> None:
        if self._topic is not None:
            self._topics.append(_encode_topic(self._version, *self._topic, self._partitions))
            self._topic, self._partitions = None, []


def _encode_topic(
    version: int, name: str | None, topic_id: UUID | None, partitions: Sequence[bytes]
) -> bytes:
    flexible = version >= _FLEXIBLE_FROM
    if version >= _TOPIC_IDS_FROM:
        assert topic_id is not None
        named = topic_id.bytes
    else:
        named = string(name, flexible)
    end = b"\0" if flexible else b""
    return b"".join((named, count(len(partitions), flexible), *partitions, end))


def _encode_end(version: int, throttle_ms: int, node_endpoints: Sequence[NodeEndpoint]) -> bytes:
    throttle = _INT32.pack(throttle_ms)
    if version < _FLEXIBLE_FROM:
        return throttle
    if node_endpoints and version >= 10:
        return throttle + tag_section({0: encode_endpoints(node_endpoints)})
    return throttle + b"\0"


def throttle_at(version: int, node_endpoints: Sequence[NodeEndpoint] = ()) -> int:
    """Where a response has its throttle time, from its end."""
    return -len(_encode_end(version, 0, node_endpoints))


def _encode_produced(version: int, partition: PartitionProduced) -> bytes:
    index, error_code, offset, time_ms, start, record_errors, message, leader = partition
    if version < 5:
        return _PRODUCED_V3.pack(index, error_code, offset, time_ms)
    fixed = _PRODUCED_V5.pack(index, error_code, offset, time_ms, start)
    if version < 8:
        return fixed
    flexible = version >= _FLEXIBLE_FROM
    if not record_errors and message is None:
        errors = _NO_ERRORS_V9 if flexible else _NO_ERRORS_V8
    else:
        errors = _encode_errors(record_errors, message, flexible)
    if not flexible:
        return fixed + errors
    if leader is None or version < 10:
        return fixed + errors + b"\0"
    return fixed + errors + tag_section({0: encode_leader(leader)})


def _encode_errors(errors: Sequence[RecordError], message: str | None, flexible: bool) -> bytes:
    out = [count(len(errors), flexible)]
    for error in errors:
        out += (_INT32.pack(error.batch_index), string(error.message, flexible))
        if flexible:
            out.append(b"\0")
    out.append(string(message, flexible))
    return b"".join(out)


def encode_produce_request(
    version: int,
    transactional_id: str | None,
    acks: int,
    timeout_ms: int,
    topics: Sequence[tuple[str | None, UUID | None, Sequence[tuple[int, Buffer | None]]]],
) -> list[bytes | memoryview]:
    """The body in pieces; the records are not copied."""
    flexible = version >= _FLEXIBLE_FROM
    end = b"\0" if flexible else b""
    pieces: list[bytes | memoryview] = []
    parts = [string(transactional_id, flexible), _ACKS_TIMEOUT.pack(acks, timeout_ms)]
    parts.append(count(len(topics), flexible))
    for name, topic_id, partitions in topics:
        if version >= _TOPIC_IDS_FROM:
            parts.append(topic_id.bytes)  # type: ignore[union-attr]  # v13 has ids only
        else:
            parts.append(string(name, flexible))
        parts.append(count(len(partitions), flexible))
        for index, records in partitions:
            parts.append(_INT32.pack(index))
            if records is None:
                parts.append(count(None, flexible))
            else:
                view = memoryview(records)
                parts.append(count(len(view), flexible))
                pieces += (b"".join(parts), view)
                parts = []
            parts.append(end)
        parts.append(end)
    parts.append(end)
    pieces.append(b"".join(parts))
    return pieces


def decode_produce_response(version: int, body: Buffer, at: int = 0) -> ProduceResponse:
    try:
        return _decode_response(version, Reader(memoryview(body), at))
    except BROKEN_BYTES as error:
        raise MalformedResponse(f"Produce v{version}: {error}") from error


def _decode_response(version: int, reader: Reader) -> ProduceResponse:
    flexible = version >= _FLEXIBLE_FROM
    topics = []
    for _ in range(reader.count(flexible, 3 if flexible else 6)):
        name = topic_id = None
        if version >= _TOPIC_IDS_FROM:
            topic_id = reader.uuid()
        else:
            name = reader.string(flexible)
        partitions = [
            _decode_produced(version, reader)
            for _ in range(reader.count(flexible, _PRODUCED_V3.size))
        ]
        if flexible:
            reader.skip_tags()
        topics.append(TopicProduced(name, topic_id, partitions))
    (throttle_ms,) = reader.unpack(_INT32)
    node_endpoints: list[NodeEndpoint] = []
    if flexible:
        for tag, value in reader.tags():
            if tag == 0 and version >= 10:
                node_endpoints = decode_endpoints(value)
    return ProduceResponse(topics, throttle_ms, node_endpoints)


def _decode_produced(version: int, reader: Reader) -> PartitionProduced:
    flexible = version >= _FLEXIBLE_FROM
    if version < 5:
        return PartitionProduced(*reader.unpack(_PRODUCED_V3))
    fixed = reader.unpack(_PRODUCED_V5)
    if version < 8:
        return PartitionProduced(*fixed)
    record_errors = []
    for _ in range(reader.count(flexible, 6)):
        (batch_index,) = reader.unpack(_INT32)
        record_errors.append(RecordError(batch_index, reader.nullable_string(flexible)))
        if flexible:
            reader.skip_tags()
    message = reader.nullable_string(flexible)
    leader = None
    if flexible:
        for tag, value in reader.tags():
            if tag == 0 and version >= 10:
                leader = decode_leader(value)
    return PartitionProduced(*fixed)._replace(
        record_errors=tuple(record_errors), error_message=message, current_leader=leader
    )
