"""Hand-written codec of Fetch responses v4-v18. Records are never copied.

When encoding, records stay in their file; when decoding, they are slices of the frame. The broker
uses `encode_fetch_response`, the client and followers use `decode_fetch_response`;
`FetchParts` encodes large responses in parts.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from typing_extensions import Buffer

from suwi.env import FileRegion
from suwi.wire.errors import BROKEN_BYTES, MalformedResponse
from suwi.wire.fetch_request import (
    ENDPOINTS_FROM,
    FLEXIBLE_FROM,
    RACKS_FROM,
    SESSIONS_FROM,
    decode_topic_key,
    encode_topic_key,
)
from suwi.wire.leaders import (
    CurrentLeader,
    NodeEndpoint,
    decode_endpoints,
    decode_leader,
    encode_endpoints,
    encode_leader,
)
from suwi.wire.primitives import Reader, count, tag_section, uvarint

Chunk: TypeAlias = bytes | memoryview | FileRegion

_INT32: Final = struct.Struct(">i")
_FETCHED_V4: Final = struct.Struct(">ihqq")  # partition, error, high watermark, last stable offset
_FETCHED_V5: Final = struct.Struct(">ihqqq")  # and the log start offset
_FETCHED_V12: Final = struct.Struct(">ihqqqBi")  # and no aborted transactions, preferred replica
_ABORTED: Final = struct.Struct(">qq")
_DIVERGING: Final = struct.Struct(">iqx")
_ERROR_AND_SESSION: Final = struct.Struct(">ihi")  # throttle time, error, session id


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int


class EpochEnd(NamedTuple):
    """The end offset of an epoch in the leader's log; a follower truncates to it (KIP-595)."""

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
    """None is null. Kafka never sends it, because old clients cannot handle it."""
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


def encode_fetch_response(
    version: int,
    topics: Sequence[FetchedTopic],
    *,
    error_code: int = 0,
    session_id: int = 0,
    throttle_ms: int = 0,
    node_endpoints: Sequence[NodeEndpoint] = (),
) -> list[Chunk]:
    """The body in chunks; a `FileRegion` is sent from its file."""
    flexible = version >= FLEXIBLE_FROM
    if flexible and len(topics) == 1 and not node_endpoints:
        ((name, topic_id, partitions),) = topics
        if len(partitions) == 1 and _is_plain(partitions[0]):
            start = _ERROR_AND_SESSION.pack(throttle_ms, error_code, session_id)
            start += b"\2" + encode_topic_key(version, name, topic_id) + b"\2"
            return _encode_plain(start, partitions[0])
    chunks: list[Chunk] = []
    parts = [_encode_start(version, error_code, session_id, throttle_ms, len(topics))]
    for name, topic_id, partitions in topics:
        parts.append(_encode_topic_start(version, name, topic_id, len(partitions)))
        parts = _encode_partitions(version, partitions, chunks, parts)
        if flexible:
            parts.append(b"\0")
    parts.append(_encode_end(version, node_endpoints))
    last = b"".join(parts)
    if last:
        chunks.append(last)
    return chunks


def _encode_start(
    version: int, error_code: int, session_id: int, throttle_ms: int, topics: int
) -> bytes:
    """Everything before the first topic."""
    size = count(topics, version >= FLEXIBLE_FROM)
    if version >= SESSIONS_FROM:
        return _ERROR_AND_SESSION.pack(throttle_ms, error_code, session_id) + size
    return _INT32.pack(throttle_ms) + size


def _encode_topic_start(
    version: int, name: str | None, topic_id: UUID | None, partitions: int
) -> bytes:
    """The part of a topic before its first partition."""
    size = count(partitions, version >= FLEXIBLE_FROM)
    return encode_topic_key(version, name, topic_id) + size


def _encode_partitions(
    version: int,
    partitions: Sequence[FetchedPartition],
    chunks: list[Chunk],
    parts: list[bytes],
) -> list[bytes]:
    """Append `parts` and the partitions to `chunks`. Returns the parts of the next chunk."""
    flexible = version >= FLEXIBLE_FROM
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


def _encode_end(version: int, node_endpoints: Sequence[NodeEndpoint]) -> bytes:
    """Everything after the last topic."""
    if node_endpoints and version >= ENDPOINTS_FROM:
        return tag_section({0: encode_endpoints(node_endpoints)})
    return b"\0" if version >= FLEXIBLE_FROM else b""


class _Topic:
    __slots__ = ("chunks", "partitions", "parts")

    def __init__(self) -> None:
        self.partitions = 0
        self.chunks: list[Chunk] = []
        self.parts: list[bytes] = []


class FetchParts:
    """A large response in parts; the partitions may arrive in any order of topics.

    Partitions enter at `add`; `topics` then yields the chunks of each topic, which belong between
    `start` and `end`. The bytes equal those of `encode_fetch_response`.
    """

    def __init__(self, version: int) -> None:
        self._version = version
        self._topics: dict[str | UUID, _Topic] = {}

    def add(self, topic: str | UUID, partitions: Sequence[FetchedPartition]) -> None:
        entry = self._topics.get(topic)
        if entry is None:
            entry = self._topics[topic] = _Topic()
        entry.partitions += len(partitions)
        parts = _encode_partitions(self._version, partitions, entry.chunks, entry.parts)
        entry.parts = [b"".join(parts)]

    def start(self, session_id: int) -> bytes:
        return _encode_start(self._version, 0, session_id, 0, len(self._topics))

    def topics(self) -> Iterator[list[Chunk]]:
        end = _encode_end(self._version, ())  # no tags: the same byte as at its end
        for topic, encoded in self._topics.items():
            name, topic_id = (topic, None) if isinstance(topic, str) else (None, topic)
            start = _encode_topic_start(self._version, name, topic_id, encoded.partitions)
            last = b"".join((*encoded.parts, end))
            if encoded.chunks:
                yield [start, *encoded.chunks, last]
            else:
                yield [start + last]

    def end(self, node_endpoints: Sequence[NodeEndpoint]) -> bytes:
        return _encode_end(self._version, node_endpoints)


def merged(chunks: Sequence[Chunk]) -> list[Chunk]:
    """The same bytes in fewer chunks: adjacent chunks in memory are joined."""
    out: list[Chunk] = []
    run: list[bytes] = []
    for chunk in chunks:
        if isinstance(chunk, bytes):
            run.append(chunk)
            continue
        if run:
            out.append(b"".join(run))
            run = []
        out.append(chunk)
    last = b"".join(run)
    return [*out, last] if last else out


def _is_plain(fetched: FetchedPartition) -> bool:
    """Whether the partition has no optional fields, so that `_encode_plain` applies."""
    *_, aborted, _, records, diverging_epoch, current_leader = fetched
    return not aborted and records is not None and diverging_epoch is None is current_leader


def _encode_plain(start: bytes, fetched: FetchedPartition) -> list[Chunk]:
    """The single partition of a response (v12+) and its end: by far the most common response."""
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


def _encode_fetched(version: int, fetched: FetchedPartition, size_bytes: int | None) -> bytes:
    """The part of a partition up to and including the length of its records."""
    flexible = version >= FLEXIBLE_FROM
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
    if version >= RACKS_FROM:
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


def decode_fetch_response(version: int, body: Buffer, at: int = 0) -> FetchResponse:
    """Decode a response; records are slices of `body`."""
    try:
        return _decode_response(version, Reader(memoryview(body), at))
    except BROKEN_BYTES as error:
        raise MalformedResponse(f"Fetch v{version}: {error}") from error


def _decode_response(version: int, reader: Reader) -> FetchResponse:
    flexible = version >= FLEXIBLE_FROM
    error_code = session_id = 0
    if version >= SESSIONS_FROM:
        throttle_ms, error_code, session_id = reader.unpack(_ERROR_AND_SESSION)
    else:
        (throttle_ms,) = reader.unpack(_INT32)
    topics = []
    for _ in range(reader.count(flexible, item_bytes_min=3)):
        name, topic_id = decode_topic_key(version, reader)
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
            if tag == 0 and version >= ENDPOINTS_FROM:
                node_endpoints = decode_endpoints(value)
    return FetchResponse(topics, error_code, session_id, throttle_ms, node_endpoints)


def _decode_fetched(version: int, reader: Reader) -> FetchedPartition:
    flexible = version >= FLEXIBLE_FROM
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
    if version >= RACKS_FROM:
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
