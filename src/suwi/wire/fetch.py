"""Fetch v4-v18, by hand: records stay in their file on the way out and are slices on the way in.

v5: log start offset. v7: sessions (KIP-227). v9: leader epoch. v11: racks. v12: compact fields,
last fetched epoch. v13: topic ids. v15: the replica's state is a tag. v16: node endpoints.
v17 and v18 add tags that only a Raft quorum uses; they are skipped.
The broker enters at `decode_fetch_request` and `encode_fetch_response`, the client and the
follower at `encode_fetch_request` and `decode_fetch_response`.
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from typing_extensions import Buffer

from suwi.env import FileRegion
from suwi.wire.errors import BROKEN_BYTES, MalformedRequest, MalformedResponse
from suwi.wire.leaders import (
    CurrentLeader,
    NodeEndpoint,
    decode_endpoints,
    decode_leader,
    encode_endpoints,
    encode_leader,
)
from suwi.wire.primitives import Reader, count, string, tag_section, uuid_of, uvarint
from suwi.wire.versions import REQUEST_ITEMS_MAX, SMALL_REQUEST_BYTES_MAX

Chunk: TypeAlias = bytes | memoryview | FileRegion

_SESSIONS_FROM: Final = 7
_RACKS_FROM: Final = 11
_FLEXIBLE_FROM: Final = 12
_TOPIC_IDS_FROM: Final = 13
_REPLICA_STATE_FROM: Final = 15
_ENDPOINTS_FROM: Final = 16

_INT32: Final = struct.Struct(">i")
_LIMITS: Final = struct.Struct(">iiib")  # max wait, min bytes, max bytes, isolation level
_SESSION: Final = struct.Struct(">ii")
# The only partition of a request (v12 on), from the number of partitions to the end of it all: no
# tags, none forgotten, no rack, no tags.
_PLAIN_REST: Final = struct.Struct(">BiiqiqiHHB")
_PLAIN_REST_AS_IS: Final = (0, 0x0101, 0)
# How it begins: replica id (up to v14), limits, session.
_START_V7: Final = struct.Struct(">iiiibii")
_START_V15: Final = struct.Struct(">iiibii")
_REPLICA_STATE: Final = struct.Struct(">iqx")  # with its empty tags
# partition, leader epoch (v9), offset, last fetched epoch (v12), log start offset (v5), max bytes,
# and in the compact form a byte for the tags, which are empty but for newer clients.
_ASKED_V4: Final = struct.Struct(">iqi")
_ASKED_V5: Final = struct.Struct(">iqqi")
_ASKED_V9: Final = struct.Struct(">iiqqi")
_ASKED_V12: Final = struct.Struct(">iiqiqi")
_ASKED_V12_NO_TAGS: Final = struct.Struct(">iiqiqix")
_FETCHED_V4: Final = struct.Struct(">ihqq")  # partition, error, high watermark, last stable offset
_FETCHED_V5: Final = struct.Struct(">ihqqq")  # and the log start offset
_FETCHED_V12: Final = struct.Struct(">ihqqqBi")  # and no aborted transactions, preferred replica
_ABORTED: Final = struct.Struct(">qq")
_DIVERGING: Final = struct.Struct(">iqx")
_ERROR_AND_SESSION: Final = struct.Struct(">ihi")  # throttle time, error, session id


class FetchPartition(NamedTuple):
    """In the order of the wire, so that many are read at once."""

    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    """Of the follower that asks."""
    max_bytes: int


class FetchTopic(NamedTuple):
    name: str | None
    """None from v13 on, where `topic_id` says which."""
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


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int


class EpochEnd(NamedTuple):
    """Where the leader's log of an epoch ends: a follower truncates to it (KIP-595)."""

    epoch: int
    end_offset: int


class FetchedPartition(NamedTuple):
    partition: int
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: Sequence[AbortedTransaction] | None = None
    preferred_read_replica: int = -1
    records: Chunk | None = b""
    """None is null, which Kafka does not send: old clients stumble over it."""
    diverging_epoch: EpochEnd | None = None
    current_leader: CurrentLeader | None = None


class FetchedTopic(NamedTuple):
    name: str | None
    topic_id: UUID | None
    partitions: Sequence[FetchedPartition]


class FetchResponse(NamedTuple):
    topics: list[FetchedTopic]
    error_code: int
    session_id: int
    throttle_ms: int
    node_endpoints: list[NodeEndpoint]


def decode_fetch_request(version: int, body: memoryview, at: int = 0) -> FetchRequest:
    """Take a request apart. What follows its end is ignored, as Kafka does."""
    if len(body) > SMALL_REQUEST_BYTES_MAX:
        raise MalformedRequest(f"Fetch v{version}: a request of {len(body)} bytes")
    try:
        if version >= _FLEXIBLE_FROM:
            plain = _decode_plain(version, body, at)
            if plain is not None:
                return plain
        return _decode_request(version, Reader(body, at, items_max=REQUEST_ITEMS_MAX))
    except BROKEN_BYTES as error:
        raise MalformedRequest(f"Fetch v{version}: {error}") from error


def _decode_plain(version: int, body: memoryview, at: int) -> FetchRequest | None:
    """A request for one partition and nothing else, as most are; None where it is not that."""
    if version >= _REPLICA_STATE_FROM:
        start = (-1, *_START_V15.unpack_from(body, at))
        at += _START_V15.size
    else:
        start = _START_V7.unpack_from(body, at)
        at += _START_V7.size
    if body[at] != 2:
        return None
    name = topic_id = None
    if version >= _TOPIC_IDS_FROM:
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
    if partitions != 2 or (tags, lists, more_tags) != _PLAIN_REST_AS_IS:
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


def _decode_request(version: int, reader: Reader) -> FetchRequest:
    flexible = version >= _FLEXIBLE_FROM
    replica_id = replica_epoch = session_epoch = -1
    session_id = 0
    if version < _REPLICA_STATE_FROM:
        (replica_id,) = reader.unpack(_INT32)
    max_wait_ms, min_bytes, max_bytes, isolation_level = reader.unpack(_LIMITS)
    if version >= _SESSIONS_FROM:
        session_id, session_epoch = reader.unpack(_SESSION)
    topics = [
        _decode_asked_topic(version, reader)
        for _ in range(reader.count(flexible, item_bytes_min=3))
    ]
    forgotten: Sequence[ForgottenTopic] = ()
    if version >= _SESSIONS_FROM:
        forgotten = [
            _decode_forgotten(version, reader)
            for _ in range(reader.count(flexible, item_bytes_min=3))
        ]
    rack_id = reader.string(flexible) if version >= _RACKS_FROM else ""
    if flexible:
        for tag, value in reader.tags():
            if tag == 1 and version >= _REPLICA_STATE_FROM:
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


def _decode_topic_key(version: int, reader: Reader) -> tuple[str | None, UUID | None]:
    if version >= _TOPIC_IDS_FROM:
        return None, reader.uuid()
    return reader.string(version >= _FLEXIBLE_FROM), None


def _decode_asked_topic(version: int, reader: Reader) -> FetchTopic:
    name, topic_id = _decode_topic_key(version, reader)
    if version < _FLEXIBLE_FROM:
        return FetchTopic(name, topic_id, _decode_asked_legacy(version, reader))
    size = reader.count(True, _ASKED_V12_NO_TAGS.size)
    asked = reader.buffer[reader.at : reader.at + size * _ASKED_V12_NO_TAGS.size]
    if any(asked[_ASKED_V12.size :: _ASKED_V12_NO_TAGS.size]):
        partitions = []
        for _ in range(size):
            partitions.append(FetchPartition._make(reader.unpack(_ASKED_V12)))
            reader.skip_tags()
    else:
        partitions = [FetchPartition._make(one) for one in _ASKED_V12_NO_TAGS.iter_unpack(asked)]
        reader.at += len(asked)
    reader.skip_tags()
    return FetchTopic(name, topic_id, partitions)


def _decode_asked_legacy(version: int, reader: Reader) -> list[FetchPartition]:
    layout = _ASKED_V4 if version < 5 else _ASKED_V5 if version < 9 else _ASKED_V9
    size = reader.count(False, layout.size)
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
    name, topic_id = _decode_topic_key(version, reader)
    flexible = version >= _FLEXIBLE_FROM
    size = reader.count(flexible, _INT32.size)
    partitions = reader.unpack(struct.Struct(f">{size}i"))
    if flexible:
        reader.skip_tags()
    return ForgottenTopic(name, topic_id, partitions)


def encode_fetch_response(
    version: int,
    topics: Sequence[FetchedTopic],
    *,
    error_code: int = 0,
    session_id: int = 0,
    throttle_ms: int = 0,
    node_endpoints: Sequence[NodeEndpoint] = (),
) -> list[Chunk]:
    """The body in chunks; those of `FileRegion` are sent from their file."""
    flexible = version >= _FLEXIBLE_FROM
    if flexible and len(topics) == 1 and not node_endpoints:
        ((name, topic_id, partitions),) = topics
        if len(partitions) == 1 and _is_plain(partitions[0]):
            start = _ERROR_AND_SESSION.pack(throttle_ms, error_code, session_id)
            start += b"\2" + _encode_topic_key(version, name, topic_id) + b"\2"
            return _encode_plain(start, partitions[0])
    chunks: list[Chunk] = []
    parts = [encode_fetch_start(version, error_code, session_id, throttle_ms, len(topics))]
    for name, topic_id, partitions in topics:
        parts.append(encode_topic_start(version, name, topic_id, len(partitions)))
        parts = encode_fetched_partitions(version, partitions, chunks, parts)
        if flexible:
            parts.append(b"\0")
    parts.append(encode_fetch_end(version, node_endpoints))
    last = b"".join(parts)
    if last:
        chunks.append(last)
    return chunks


def encode_fetch_start(
    version: int, error_code: int, session_id: int, throttle_ms: int, topics: int
) -> bytes:
    """Everything before the first topic."""
    size = count(topics, version >= _FLEXIBLE_FROM)
    if version >= _SESSIONS_FROM:
        return _ERROR_AND_SESSION.pack(throttle_ms, error_code, session_id) + size
    return _INT32.pack(throttle_ms) + size


def encode_topic_start(
    version: int, name: str | None, topic_id: UUID | None, partitions: int
) -> bytes:
    """Everything of a topic before its first partition."""
    size = count(partitions, version >= _FLEXIBLE_FROM)
    return _encode_topic_key(version, name, topic_id) + size


def encode_fetched_partitions(
    version: int,
    partitions: Sequence[FetchedPartition],
    chunks: list[Chunk],
    parts: list[bytes],
) -> list[bytes]:
    """Add partitions to the chunks, after `parts`; the parts that belong to the next chunk."""
    flexible = version >= _FLEXIBLE_FROM
    for partition in partitions:
        records = partition.records
        size_bytes = _size_bytes(records)
        parts.append(_encode_fetched(version, partition, size_bytes))
        if records is not None and size_bytes:
            chunks += (b"".join(parts), records)
            parts = []
        if flexible:
            parts.append(_fetched_tags(partition))
    return parts


def encode_fetch_end(version: int, node_endpoints: Sequence[NodeEndpoint]) -> bytes:
    """Everything after the last topic."""
    if node_endpoints and version >= _ENDPOINTS_FROM:
        return tag_section({0: encode_endpoints(node_endpoints)})
    return b"\0" if version >= _FLEXIBLE_FROM else b""


def _is_plain(fetched: FetchedPartition) -> bool:
    """Whether it says nothing but what most say."""
    *_, aborted, _, records, diverging_epoch, current_leader = fetched
    return not aborted and records is not None and diverging_epoch is None is current_leader


def _encode_plain(start: bytes, fetched: FetchedPartition) -> list[Chunk]:
    """The only partition of a response (v12 on), and its end: most responses by far."""
    index, error_code, watermark, stable, log_start, aborted, preferred, records, _, _ = fetched
    assert records is not None
    size_bytes = records.size_bytes if type(records) is FileRegion else len(records)
    no_aborted = 0 if aborted is None else 1  # null, or an empty array
    start += _FETCHED_V12.pack(
        index, error_code, watermark, stable, log_start, no_aborted, preferred
    ) + uvarint(size_bytes + 1)
    if not size_bytes:
        return [start + b"\0\0\0"]
    return [start, records, b"\0\0\0"]


def _size_bytes(records: Chunk | None) -> int | None:
    if records is None:
        return None
    return records.size_bytes if isinstance(records, FileRegion) else len(records)


def _encode_topic_key(version: int, name: str | None, topic_id: UUID | None) -> bytes:
    if version >= _TOPIC_IDS_FROM:
        return topic_id.bytes  # type: ignore[union-attr]  # v13 has ids only
    return string(name, version >= _FLEXIBLE_FROM)


def _encode_fetched(version: int, fetched: FetchedPartition, size_bytes: int | None) -> bytes:
    """Everything of a partition up to the length of its records."""
    flexible = version >= _FLEXIBLE_FROM
    index, error_code, watermark, stable, start, aborted, preferred, *_ = fetched
    if version >= 5:
        head = _FETCHED_V5.pack(index, error_code, watermark, stable, start)
    else:
        head = _FETCHED_V4.pack(index, error_code, watermark, stable)
    if aborted is None:
        head += b"\0" if flexible else b"\xff\xff\xff\xff"
    else:
        head += count(len(aborted), flexible)
        end = b"\0" if flexible else b""
        head += b"".join([_ABORTED.pack(*transaction) + end for transaction in aborted])
    if version >= _RACKS_FROM:
        head += _INT32.pack(preferred)
    return head + count(size_bytes, flexible)


def _fetched_tags(fetched: FetchedPartition) -> bytes:
    if fetched.diverging_epoch is None and fetched.current_leader is None:
        return b"\0"
    tags = {}
    if fetched.diverging_epoch is not None:
        tags[0] = _DIVERGING.pack(*fetched.diverging_epoch)
    if fetched.current_leader is not None:
        tags[1] = encode_leader(fetched.current_leader)
    return tag_section(tags)


def encode_fetch_request(version: int, request: FetchRequest) -> bytes:
    flexible = version >= _FLEXIBLE_FROM
    end = b"\0" if flexible else b""
    out = []
    if version < _REPLICA_STATE_FROM:
        out.append(_INT32.pack(request.replica_id))
    out.append(
        _LIMITS.pack(
            request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation_level
        )
    )
    if version >= _SESSIONS_FROM:
        out.append(_SESSION.pack(request.session_id, request.session_epoch))
    out.append(count(len(request.topics), flexible))
    for topic in request.topics:
        out.append(_encode_topic_key(version, topic.name, topic.topic_id))
        out.append(count(len(topic.partitions), flexible))
        out += [_encode_asked(version, partition) for partition in topic.partitions]
        out.append(end)
    if version >= _SESSIONS_FROM:
        out.append(count(len(request.forgotten), flexible))
        for forgotten in request.forgotten:
            size = len(forgotten.partitions)
            out.append(_encode_topic_key(version, forgotten.name, forgotten.topic_id))
            out.append(count(size, flexible))
            out.append(struct.pack(f">{size}i", *forgotten.partitions))
            out.append(end)
    if version >= _RACKS_FROM:
        out.append(string(request.rack_id, flexible))
    state = (request.replica_id, request.replica_epoch)
    if version >= _REPLICA_STATE_FROM and state != (-1, -1):
        out.append(tag_section({1: _REPLICA_STATE.pack(*state)}))
    else:
        out.append(end)
    return b"".join(out)


def _encode_asked(version: int, asked: FetchPartition) -> bytes:
    index, epoch, offset, _, start, max_bytes = asked
    if version >= _FLEXIBLE_FROM:
        return _ASKED_V12_NO_TAGS.pack(*asked)
    if version >= 9:
        return _ASKED_V9.pack(index, epoch, offset, start, max_bytes)
    if version >= 5:
        return _ASKED_V5.pack(index, offset, start, max_bytes)
    return _ASKED_V4.pack(index, offset, max_bytes)


def decode_fetch_response(version: int, body: Buffer, at: int = 0) -> FetchResponse:
    """Take a response apart; records are slices of it."""
    try:
        return _decode_response(version, Reader(memoryview(body), at))
    except BROKEN_BYTES as error:
        raise MalformedResponse(f"Fetch v{version}: {error}") from error


def _decode_response(version: int, reader: Reader) -> FetchResponse:
    flexible = version >= _FLEXIBLE_FROM
    error_code = session_id = 0
    if version >= _SESSIONS_FROM:
        throttle_ms, error_code, session_id = reader.unpack(_ERROR_AND_SESSION)
    else:
        (throttle_ms,) = reader.unpack(_INT32)
    topics = []
    for _ in range(reader.count(flexible, item_bytes_min=3)):
        name, topic_id = _decode_topic_key(version, reader)
        partitions = [
            _decode_fetched(version, reader)
            for _ in range(reader.count(flexible, _FETCHED_V4.size))
        ]
        if flexible:
            reader.skip_tags()
        topics.append(FetchedTopic(name, topic_id, partitions))
    node_endpoints: list[NodeEndpoint] = []
    if flexible:
        for tag, value in reader.tags():
            if tag == 0 and version >= _ENDPOINTS_FROM:
                node_endpoints = decode_endpoints(value)
    return FetchResponse(topics, error_code, session_id, throttle_ms, node_endpoints)


def _decode_fetched(version: int, reader: Reader) -> FetchedPartition:
    flexible = version >= _FLEXIBLE_FROM
    start = preferred = -1
    if version >= 5:
        index, error_code, watermark, stable, start = reader.unpack(_FETCHED_V5)
    else:
        index, error_code, watermark, stable = reader.unpack(_FETCHED_V4)
    aborted: list[AbortedTransaction] | None = None
    aborted_count = reader.nullable_count(flexible, _ABORTED.size)
    if aborted_count is not None:
        aborted = []
        for _ in range(aborted_count):
            aborted.append(AbortedTransaction(*reader.unpack(_ABORTED)))
            if flexible:
                reader.skip_tags()
    if version >= _RACKS_FROM:
        (preferred,) = reader.unpack(_INT32)
    records = reader.nullable_bytes(flexible)
    diverging = leader = None
    if flexible:
        for tag, value in reader.tags():
            if tag == 0:
                diverging = EpochEnd(*value.unpack(_DIVERGING))
            elif tag == 1:
                leader = decode_leader(value)
    return FetchedPartition(
        index,
        error_code,
        watermark,
        stable,
        start,
        aborted,
        preferred,
        records,
        diverging,
        leader,
    )
