"""The hand-written Fetch codec against kio's reader and writer, for every version."""

import random
import struct
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suwi.env import FileRegion
from suwi.wire import codec
from suwi.wire.errors import MalformedMessage, MalformedRequest
from suwi.wire.fetch_request import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    decode_fetch_request,
    encode_fetch_request,
)
from suwi.wire.fetch_response import (
    AbortedTransaction,
    Chunk,
    EpochEnd,
    FetchedPartition,
    FetchedTopic,
    decode_fetch_response,
    encode_fetch_response,
)
from suwi.wire.leaders import CurrentLeader, NodeEndpoint
from suwi.wire.schema import Direction
from suwi.wire.versions import APIS, REQUEST_ITEMS_MAX, SMALL_REQUEST_BYTES_MAX, ApiKey
from tests.log.kit import bytes_of
from tests.wire.samples import sampled

_API = APIS[ApiKey.FETCH]
_VERSIONS = range(_API.min_version, _API.max_version + 1)
_int16 = st.integers(-(2**15), 2**15 - 1)
_int32 = st.integers(-(2**31), 2**31 - 1)
_int64 = st.integers(-(2**63), 2**63 - 1)
_text = st.text(max_size=200)
_asked = st.builds(FetchPartition, _int32, _int32, _int64, _int32, _int64, _int32)
_requests = st.builds(
    FetchRequest,
    _int32,
    _int32,
    _int32,
    st.lists(st.builds(FetchTopic, _text, st.uuids(), st.lists(_asked, max_size=3)), max_size=3),
    st.integers(-128, 127),
    _int32,
    _int32,
    st.lists(
        st.builds(ForgottenTopic, _text, st.uuids(), st.lists(_int32, max_size=3)), max_size=2
    ),
    _text,
    _int32,
    _int64,
)


class StoredBytes:
    """A fake file with fixed content."""

    path = "memory"

    def __init__(self, content: bytes) -> None:
        self.content = content

    def pread(self, size_bytes: int, position: int) -> bytes:
        return self.content[position : position + size_bytes]


def _sent(chunks: list[Chunk]) -> bytes:
    return b"".join(
        bytes_of(chunk) if isinstance(chunk, FileRegion) else bytes(chunk) for chunk in chunks
    )


def _request_fields(request: FetchRequest) -> dict[str, Any]:
    return {
        "replica_id": request.replica_id,
        "replica_state": {
            "replica_id": request.replica_id,
            "replica_epoch": request.replica_epoch,
        },
        "max_wait": request.max_wait_ms,
        "min_bytes": request.min_bytes,
        "max_bytes": request.max_bytes,
        "isolation_level": request.isolation_level,
        "session_id": request.session_id,
        "session_epoch": request.session_epoch,
        "topics": [
            {
                "topic": topic.name,
                "topic_id": topic.topic_id,
                "partitions": [
                    {
                        "partition": asked.partition,
                        "current_leader_epoch": asked.current_leader_epoch,
                        "fetch_offset": asked.fetch_offset,
                        "last_fetched_epoch": asked.last_fetched_epoch,
                        "log_start_offset": asked.log_start_offset,
                        "partition_max_bytes": asked.max_bytes,
                    }
                    for asked in topic.partitions
                ],
            }
            for topic in request.topics
        ],
        "forgotten_topics_data": [
            {"topic": topic.name, "topic_id": topic.topic_id, "partitions": topic.partitions}
            for topic in request.forgotten
        ],
        "rack_id": request.rack_id,
    }


@pytest.mark.parametrize("version", _VERSIONS)
@settings(max_examples=20, deadline=None)
@given(_requests)
def test_requests_are_encoded_and_decoded_as_kio_does(version: int, request: FetchRequest) -> None:
    expected = codec.encode_request(ApiKey.FETCH, version, _request_fields(request))
    assert encode_fetch_request(version, request) == expected
    decoded = decode_fetch_request(version, memoryview(b"head" + expected + b"tail"), 4)
    assert encode_fetch_request(version, decoded) == expected
    assert decoded.max_wait_ms == request.max_wait_ms
    assert [len(topic.partitions) for topic in decoded.topics] == [
        len(topic.partitions) for topic in request.topics
    ]
    if version >= 15:
        assert decoded._replace(topics=[], forgotten=[]) == request._replace(
            topics=[], forgotten=[]
        )
        assert [topic.partitions for topic in decoded.topics] == [
            topic.partitions for topic in request.topics
        ]


_fetched = st.builds(
    FetchedPartition,
    _int32,
    st.integers(-1, 100),
    _int64,
    _int64,
    _int64,
    st.none() | st.lists(st.builds(AbortedTransaction, _int64, _int64), max_size=3),
    _int32,
    st.none() | st.binary(max_size=300) | st.binary(max_size=20).map(lambda data: memoryview(data)),
    st.none() | st.builds(EpochEnd, st.integers(0, 2**31 - 1), _int64),
    st.none() | st.builds(CurrentLeader, st.integers(0, 2**31 - 1), _int32),
)
_topics_answered = st.lists(
    st.builds(FetchedTopic, _text, st.uuids(), st.lists(_fetched, max_size=3)), max_size=3
)
_endpoints = st.lists(st.builds(NodeEndpoint, _int32, _text, _int32, st.none() | _text), max_size=2)


def _fetched_fields(fetched: FetchedPartition) -> dict[str, Any]:
    tags = {}
    if fetched.diverging_epoch is not None:
        tags["diverging_epoch"] = fetched.diverging_epoch._asdict()
    if fetched.current_leader is not None:
        tags["current_leader"] = fetched.current_leader._asdict()
    return {
        "partition_index": fetched.partition,
        "error_code": fetched.error_code,
        "high_watermark": fetched.high_watermark,
        "last_stable_offset": fetched.last_stable_offset,
        "log_start_offset": fetched.log_start_offset,
        "aborted_transactions": None
        if fetched.aborted is None
        else [transaction._asdict() for transaction in fetched.aborted],
        "preferred_read_replica": fetched.preferred_read_replica,
        "records": fetched.records,
        **tags,
    }


@pytest.mark.parametrize("version", _VERSIONS)
@settings(max_examples=20, deadline=None)
@given(_topics_answered, _int16, _int32, _int32, _endpoints)
def test_responses_are_encoded_and_decoded_as_kio_does(
    version: int,
    topics: list[FetchedTopic],
    error_code: int,
    session_id: int,
    throttle_ms: int,
    endpoints: list[NodeEndpoint],
) -> None:
    fields = {
        "throttle_time": throttle_ms,
        "error_code": error_code,
        "session_id": session_id,
        "responses": [
            {
                "topic": topic.name,
                "topic_id": topic.topic_id,
                "partitions": [_fetched_fields(fetched) for fetched in topic.partitions],
            }
            for topic in topics
        ],
        "node_endpoints": [endpoint._asdict() for endpoint in endpoints],
    }
    expected = codec.encode_response(ApiKey.FETCH, version, fields)
    chunks = encode_fetch_response(
        version,
        topics,
        error_code=error_code,
        session_id=session_id,
        throttle_ms=throttle_ms,
        node_endpoints=endpoints,
    )
    assert _sent(chunks) == expected
    decoded = decode_fetch_response(version, expected)
    again = encode_fetch_response(
        version,
        decoded.topics,
        error_code=decoded.error_code,
        session_id=decoded.session_id,
        throttle_ms=decoded.throttle_ms,
        node_endpoints=decoded.node_endpoints,
    )
    assert _sent(again) == expected
    assert decoded.node_endpoints == (endpoints if version >= 16 else [])


@pytest.mark.parametrize("version", [4, 11, 12, 18])
def test_records_in_a_file_are_a_chunk_of_their_own(version: int) -> None:
    file: Any = StoredBytes(b"....records....")
    region = FileRegion(file, 4, 7)
    nothing = FileRegion(file, 0, 0)
    topic_id = UUID(int=3)
    partitions = [FetchedPartition(0, records=region), FetchedPartition(1, records=nothing)]
    chunks = encode_fetch_response(version, [FetchedTopic("t", topic_id, partitions)])
    assert [chunk for chunk in chunks if isinstance(chunk, FileRegion)] == [region]
    decoded = decode_fetch_response(version, _sent(chunks))
    assert [partition.records for partition in decoded.topics[0].partitions] == [b"records", b""]


@pytest.mark.parametrize("version", [11, 12, 18])
@pytest.mark.parametrize("aborted", [None, [], [AbortedTransaction(1, 2)]])
@pytest.mark.parametrize("records", [b"", b"records", bytes(20_000)])
def test_a_single_partition_is_encoded_like_one_of_many(
    version: int, aborted: list[AbortedTransaction] | None, records: bytes
) -> None:
    fetched = FetchedPartition(3, 0, 5, 4, 1, aborted, 7, records)
    topic = FetchedTopic("t", UUID(int=3), [fetched])
    fields = {
        "throttle_time": 0,
        "error_code": 0,
        "session_id": 9,
        "responses": [
            {"topic": "t", "topic_id": UUID(int=3), "partitions": [_fetched_fields(fetched)]}
        ],
        "node_endpoints": [],
    }
    expected = codec.encode_response(ApiKey.FETCH, version, fields)
    assert _sent(encode_fetch_response(version, [topic], session_id=9)) == expected


def test_fetched_records_are_slices_of_the_response() -> None:
    fetched = FetchedPartition(0, records=b"records")
    body = bytearray(_sent(encode_fetch_response(12, [FetchedTopic("t", None, [fetched])])))
    records = decode_fetch_response(12, body).topics[0].partitions[0].records
    assert isinstance(records, memoryview)
    assert records.obj is body


@pytest.mark.parametrize("version", _VERSIONS)
def test_a_request_cut_short_is_malformed(version: int) -> None:
    topic = FetchTopic("topic", UUID(int=9), [FetchPartition(0, -1, 1, -1, -1, 2)])
    forgotten = ForgottenTopic("old", UUID(int=8), [1, 2])
    request = FetchRequest(
        1, 2, 3, [topic], forgotten=[forgotten], rack_id="r", replica_id=1, replica_epoch=2
    )
    body = encode_fetch_request(version, request)
    for end in range(len(body)):
        with pytest.raises(MalformedRequest):
            decode_fetch_request(version, memoryview(body[:end]))


def test_unknown_tags_are_skipped() -> None:
    asked = [FetchPartition(1, 2, 3, 4, 5, 6), FetchPartition(7, 8, 9, 10, 11, 12)]
    body = encode_fetch_request(12, FetchRequest(1, 2, 3, [FetchTopic("topic", None, asked)]))
    last_field = struct.pack(">i", 12)
    tagged = body.replace(last_field + b"\0", last_field + b"\x01\x05\x02zz")
    assert len(tagged) > len(body)
    assert decode_fetch_request(12, memoryview(tagged)).topics[0].partitions == asked


@pytest.mark.parametrize("version", _VERSIONS)
def test_corrupted_bytes_end_in_a_message_or_in_malformed(version: int) -> None:
    chance = random.Random(version)
    for direction in Direction:
        for seed in range(100):
            _, _, body = sampled(ApiKey.FETCH, version, direction, seed)
            broken = bytearray(body)
            for _ in range(chance.choice((1, 2, 4))):
                at = chance.randrange(len(broken))
                broken[at : at + 2] = chance.choice((b"\xff\xff", b"\x7f\xff", b"\x80", b"\0"))
            try:
                if direction is Direction.REQUEST:
                    decode_fetch_request(version, memoryview(broken))
                else:
                    decode_fetch_response(version, broken)
            except MalformedMessage:
                pass


@pytest.mark.parametrize("version", [11, 12])
def test_very_many_partitions_are_refused(version: int) -> None:
    def request(partitions: int) -> memoryview:
        asked = [FetchPartition(0, -1, 0, -1, -1, 1)] * partitions
        topics = [FetchTopic("t", None, asked)]
        return memoryview(encode_fetch_request(version, FetchRequest(0, 0, 1, topics)))

    (topic,) = decode_fetch_request(version, request(REQUEST_ITEMS_MAX - 1)).topics
    assert len(topic.partitions) == REQUEST_ITEMS_MAX - 1
    with pytest.raises(MalformedRequest):
        decode_fetch_request(version, request(REQUEST_ITEMS_MAX))


def test_a_fetch_request_above_the_size_limit_is_refused() -> None:
    with pytest.raises(MalformedRequest, match="bytes"):
        decode_fetch_request(12, memoryview(bytes(SMALL_REQUEST_BYTES_MAX + 1)))
