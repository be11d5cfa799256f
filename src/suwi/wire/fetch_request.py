"""Hand-written codec of Fetch requests v4-v18, with a fast path for a single partition.

The broker uses `decode_fetch_request`, for large requests the generator `decoding_fetch_request`;
the client and followers use `encode_fetch_request`.
v5: log start offset. v7: sessions (KIP-227). v9: leader epoch. v11: racks. v12: compact fields,
last fetched epoch. v13: topic ids. v15: the replica's state is a tag. v16: node endpoints.
v17 and v18 add tags that only a KRaft quorum uses; they are skipped.
"""

import struct
from collections.abc import Generator, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from suwi.env.slices import run_to_end
from suwi.wire.errors import BROKEN_BYTES, MalformedRequest, RequestTooLarge, TooManyItems
from suwi.wire.primitives import (
    SLICE_ITEMS,
    Reader,
    SliceCounter,
    count,
    string,
    tag_section,
    uuid_of,
)
from suwi.wire.versions import REQUEST_ITEMS_MAX, SMALL_REQUEST_BYTES_MAX

SESSIONS_FROM: Final = 7
RACKS_FROM: Final = 11
FLEXIBLE_FROM: Final = 12
TOPIC_IDS_FROM: Final = 13
REPLICA_STATE_FROM: Final = 15
ENDPOINTS_FROM: Final = 16


def encode_topic_key(version: int, name: str | None, topic_id: UUID | None) -> bytes:
    if version >= TOPIC_IDS_FROM:
        return topic_id.bytes  # type: ignore[union-attr]  # v13 has ids only
    return string(name, version >= FLEXIBLE_FROM)


def decode_topic_key(version: int, reader: Reader) -> tuple[str | None, UUID | None]:
    if version >= TOPIC_IDS_FROM:
        return None, reader.uuid()
    return reader.string(version >= FLEXIBLE_FROM), None


_INT32: Final = struct.Struct(">i")
_LIMITS: Final = struct.Struct(">iiib")  # max wait, min bytes, max bytes, isolation level
_SESSION: Final = struct.Struct(">ii")
# The single partition of a request (v12+), from the partition count to the end of the request:
# no tags, no forgotten topics, no rack, no tags.
_PLAIN_REST: Final = struct.Struct(">BiiqiqiHHB")
_PLAIN_REST_EMPTY: Final = (0, 0x0101, 0)
# The start of a request: replica id (up to v14), limits, session.
_START_V7: Final = struct.Struct(">iiiibii")
_START_V15: Final = struct.Struct(">iiibii")
_REPLICA_STATE: Final = struct.Struct(">iqx")  # with empty tags
# partition, leader epoch (v9), offset, last fetched epoch (v12), log start offset (v5), max bytes,
# and from v12 on a tag section, which is empty except with newer clients.
_PARTITION_V4: Final = struct.Struct(">iqi")
_PARTITION_V5: Final = struct.Struct(">iqqi")
_PARTITION_V9: Final = struct.Struct(">iiqqi")
_PARTITION_V12: Final = struct.Struct(">iiqiqi")
_PARTITION_V12_NO_TAGS: Final = struct.Struct(">iiqiqix")


class FetchPartition(NamedTuple):
    """In wire order, so that many can be unpacked at once."""

    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    """The follower's log start offset."""
    max_bytes: int


class FetchTopic(NamedTuple):
    name: str | None
    """None from v13 on, which has `topic_id`."""
    topic_id: UUID | None
    partitions: Sequence[FetchPartition]


class ForgottenTopic(NamedTuple):
    name: str | None
    topic_id: UUID | None
    partitions: Sequence[int]


class FetchRequest(NamedTuple):
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    topics: Sequence[FetchTopic]
    isolation_level: int = 0
    session_id: int = 0
    session_epoch: int = -1
    forgotten: Sequence[ForgottenTopic] = ()
    rack_id: str = ""
    replica_id: int = -1
    replica_epoch: int = -1


def decode_fetch_request(version: int, body: memoryview, at: int = 0) -> FetchRequest:
    """Decode a request. Bytes after its end are ignored, as in Kafka."""
    try:
        if version >= FLEXIBLE_FROM:
            plain = _decode_plain(version, body, at)
            if plain is not None:
                return plain
    except BROKEN_BYTES as error:
        raise MalformedRequest(f"Fetch v{version}: {error}") from error
    return run_to_end(decoding_fetch_request(version, body, at))


def decoding_fetch_request(
    version: int, body: memoryview, at: int = 0
) -> Generator[None, None, FetchRequest]:
    """Decode a request in slices: yields after each."""
    if len(body) > SMALL_REQUEST_BYTES_MAX:
        raise RequestTooLarge(f"Fetch v{version}: a request of {len(body)} bytes")
    try:
        reader = Reader(body, at, items_max=REQUEST_ITEMS_MAX)
        return (yield from _decode_request(version, reader, SliceCounter(at)))
    except TooManyItems as error:
        raise RequestTooLarge(f"Fetch v{version}: {error}") from error
    except BROKEN_BYTES as error:
        raise MalformedRequest(f"Fetch v{version}: {error}") from error


def _decode_plain(version: int, body: memoryview, at: int) -> FetchRequest | None:
    """The fast path: a request for one partition without extras. None if it is not one."""
    if version >= REPLICA_STATE_FROM:
        start = (-1, *_START_V15.unpack_from(body, at))
        at += _START_V15.size
    else:
        start = _START_V7.unpack_from(body, at)
        at += _START_V7.size
    if body[at] != 2:
        return None
    name = topic_id = None
    if version >= TOPIC_IDS_FROM:
        topic_id = uuid_of(bytes(body[at + 1 : at + 17]))
        at += 17
    else:
        length = body[at + 1]
        if not 0 < length < 0x80:
            return None
        name = str(body[at + 2 : at + 1 + length], "utf-8")
        at += 1 + length
    if at + _PLAIN_REST.size != len(body):
        return None
    partitions, *asked, tags, lists, more_tags = _PLAIN_REST.unpack_from(body, at)
    if partitions != 2 or (tags, lists, more_tags) != _PLAIN_REST_EMPTY:
        return None
    topic = FetchTopic(name, topic_id, (FetchPartition._make(asked),))
    replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, epoch = start
    return FetchRequest(
        max_wait_ms,
        min_bytes,
        max_bytes,
        (topic,),
        isolation_level,
        session_id,
        epoch,
        replica_id=replica_id,
    )


def _decode_request(
    version: int, reader: Reader, counter: SliceCounter
) -> Generator[None, None, FetchRequest]:
    flexible = version >= FLEXIBLE_FROM
    replica_id = replica_epoch = session_epoch = -1
    session_id = 0
    if version < REPLICA_STATE_FROM:
        (replica_id,) = reader.unpack(_INT32)
    max_wait_ms, min_bytes, max_bytes, isolation_level = reader.unpack(_LIMITS)
    if version >= SESSIONS_FROM:
        session_id, session_epoch = reader.unpack(_SESSION)
    topics = []
    for _ in range(reader.count(flexible, item_bytes_min=3)):
        topics.append((yield from _decode_topic(version, reader, counter)))
        if counter.is_full(reader.at):
            yield
    forgotten = []
    if version >= SESSIONS_FROM:
        for _ in range(reader.count(flexible, item_bytes_min=3)):
            forgotten.append(_decode_forgotten(version, reader))
            if counter.is_full(reader.at):
                yield
    rack_id = reader.string(flexible) if version >= RACKS_FROM else ""
    if flexible:
        for tag, value in reader.tags():
            if tag == 1 and version >= REPLICA_STATE_FROM:
                replica_id, replica_epoch = value.unpack(_REPLICA_STATE)
    return FetchRequest(
        max_wait_ms,
        min_bytes,
        max_bytes,
        topics,
        isolation_level,
        session_id,
        session_epoch,
        forgotten,
        rack_id,
        replica_id,
        replica_epoch,
    )


def _decode_topic(
    version: int, reader: Reader, counter: SliceCounter
) -> Generator[None, None, FetchTopic]:
    name, topic_id = decode_topic_key(version, reader)
    flexible = version >= FLEXIBLE_FROM
    layout = _PARTITION_V12_NO_TAGS if flexible else _legacy_layout(version)
    left = reader.count(flexible, layout.size)
    partitions: list[FetchPartition] = []
    while left:
        size = min(left, SLICE_ITEMS)
        decode = _decode_partitions if flexible else _decode_partitions_legacy
        partitions += decode(version, reader, size)
        left -= size
        if counter.is_full(reader.at, size):
            yield
    if flexible:
        reader.skip_tags()
    return FetchTopic(name, topic_id, partitions)


def _decode_partitions(version: int, reader: Reader, size: int) -> list[FetchPartition]:
    asked = reader.buffer[reader.at : reader.at + size * _PARTITION_V12_NO_TAGS.size]
    if len(asked) < size * _PARTITION_V12_NO_TAGS.size or any(
        asked[_PARTITION_V12.size :: _PARTITION_V12_NO_TAGS.size]
    ):
        partitions = []
        for _ in range(size):
            partitions.append(FetchPartition._make(reader.unpack(_PARTITION_V12)))
            reader.skip_tags()
        return partitions
    reader.at += len(asked)
    return [FetchPartition._make(one) for one in _PARTITION_V12_NO_TAGS.iter_unpack(asked)]


def _legacy_layout(version: int) -> struct.Struct:
    return _PARTITION_V4 if version < 5 else _PARTITION_V5 if version < 9 else _PARTITION_V9


def _decode_partitions_legacy(version: int, reader: Reader, size: int) -> list[FetchPartition]:
    layout = _legacy_layout(version)
    at = reader.take(size * layout.size)
    asked = layout.iter_unpack(reader.buffer[at : reader.at])
    if version < 5:
        return [
            FetchPartition(index, -1, offset, -1, -1, max_bytes)
            for index, offset, max_bytes in asked
        ]
    if version < 9:
        return [
            FetchPartition(index, -1, offset, -1, start, max_bytes)
            for index, offset, start, max_bytes in asked
        ]
    return [
        FetchPartition(index, epoch, offset, -1, start, max_bytes)
        for index, epoch, offset, start, max_bytes in asked
    ]


def _decode_forgotten(version: int, reader: Reader) -> ForgottenTopic:
    name, topic_id = decode_topic_key(version, reader)
    flexible = version >= FLEXIBLE_FROM
    size = reader.count(flexible, _INT32.size)
    partitions = reader.unpack(struct.Struct(f">{size}i"))
    if flexible:
        reader.skip_tags()
    return ForgottenTopic(name, topic_id, partitions)


def encode_fetch_request(version: int, request: FetchRequest) -> bytes:
    flexible = version >= FLEXIBLE_FROM
    end = b"\0" if flexible else b""
    out = []
    if version < REPLICA_STATE_FROM:
        out.append(_INT32.pack(request.replica_id))
    out.append(
        _LIMITS.pack(
            request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation_level
        )
    )
    if version >= SESSIONS_FROM:
        out.append(_SESSION.pack(request.session_id, request.session_epoch))
    out.append(count(len(request.topics), flexible))
    for topic in request.topics:
        out.append(encode_topic_key(version, topic.name, topic.topic_id))
        out.append(count(len(topic.partitions), flexible))
        out += [_encode_partition(version, partition) for partition in topic.partitions]
        out.append(end)
    if version >= SESSIONS_FROM:
        out.append(count(len(request.forgotten), flexible))
        for forgotten in request.forgotten:
            size = len(forgotten.partitions)
            out.append(encode_topic_key(version, forgotten.name, forgotten.topic_id))
            out.append(count(size, flexible))
            out.append(struct.pack(f">{size}i", *forgotten.partitions))
            out.append(end)
    if version >= RACKS_FROM:
        out.append(string(request.rack_id, flexible))
    state = (request.replica_id, request.replica_epoch)
    if version >= REPLICA_STATE_FROM and state != (-1, -1):
        out.append(tag_section({1: _REPLICA_STATE.pack(*state)}))
    else:
        out.append(end)
    return b"".join(out)


def _encode_partition(version: int, asked: FetchPartition) -> bytes:
    index, epoch, offset, _, start, max_bytes = asked
    if version >= FLEXIBLE_FROM:
        return _PARTITION_V12_NO_TAGS.pack(*asked)
    if version >= 9:
        return _PARTITION_V9.pack(index, epoch, offset, start, max_bytes)
    if version >= 5:
        return _PARTITION_V5.pack(index, offset, start, max_bytes)
    return _PARTITION_V4.pack(index, offset, max_bytes)
