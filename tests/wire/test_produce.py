"""The hand-written Produce codec against kio's reader and writer, for every version."""

import random
import struct
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suwi.env.slices import run_to_end
from suwi.wire import codec
from suwi.wire.errors import MalformedMessage, MalformedRequest, MalformedResponse
from suwi.wire.leaders import CurrentLeader, NodeEndpoint
from suwi.wire.produce import (
    SLICE_ITEMS,
    PartitionProduced,
    ProduceParts,
    ProduceRequest,
    RecordError,
    TopicProduced,
    decode_plain_request,
    decode_produce_response,
    decode_small_request,
    decoding_produce_request,
    encode_produce_request,
    encode_produce_response,
)
from suwi.wire.schema import Direction
from suwi.wire.versions import APIS, REQUEST_ITEMS_MAX, ApiKey
from tests.wire.samples import sampled

_API = APIS[ApiKey.PRODUCE]
_VERSIONS = range(_API.min_version, _API.max_version + 1)
_int16 = st.integers(-(2**15), 2**15 - 1)
_int32 = st.integers(-(2**31), 2**31 - 1)
_int64 = st.integers(-(2**63), 2**63 - 1)
_text = st.text(max_size=200)
_topics_asked = st.lists(
    st.tuples(
        _text,
        st.uuids(),
        st.lists(st.tuples(_int32, st.none() | st.binary(max_size=300)), max_size=3),
    ),
    max_size=3,
)


def decode_produce_request(version: int, body: memoryview, at: int = 0) -> ProduceRequest:
    return run_to_end(decoding_produce_request(version, body, at))


@pytest.mark.parametrize("version", _VERSIONS)
@settings(max_examples=20, deadline=None)
@given(st.none() | _text, _int16, _int32, _topics_asked)
def test_requests_are_encoded_and_decoded_as_kio_does(
    version: int,
    transactional_id: str | None,
    acks: int,
    timeout_ms: int,
    topics: list[tuple[str, UUID, list[tuple[int, bytes | None]]]],
) -> None:
    fields = {
        "transactional_id": transactional_id,
        "acks": acks,
        "timeout": timeout_ms,
        "topic_data": [
            {
                "name": name,
                "topic_id": topic_id,
                "partition_data": [{"index": i, "records": records} for i, records in partitions],
            }
            for name, topic_id, partitions in topics
        ],
    }
    expected = codec.encode_request(ApiKey.PRODUCE, version, fields)
    pieces = encode_produce_request(version, transactional_id, acks, timeout_ms, topics)
    assert b"".join(pieces) == expected
    request = decode_produce_request(version, memoryview(b"head" + expected + b"tail"), 4)
    assert request[:3] == (transactional_id, acks, timeout_ms)
    has_ids = version >= 13
    assert request.topics == [
        (None if has_ids else name, topic_id if has_ids else None, partitions)
        for name, topic_id, partitions in topics
    ]


@pytest.mark.parametrize("version", [9, 12, 13])
@settings(max_examples=100, deadline=None)
@given(
    st.none() | _text,
    _text,
    st.lists(st.tuples(_int32, st.none() | st.binary(max_size=20_000)), min_size=1, max_size=2),
    st.binary(max_size=2),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 255)), max_size=2),
)
def test_the_fast_decoder_agrees_with_the_general_one(
    version: int,
    transactional_id: str | None,
    name: str,
    partitions: list[tuple[int, bytes | None]],
    tail: bytes,
    damage: list[tuple[int, int]],
) -> None:
    topics = [(name, UUID(int=9), partitions)]
    pieces = encode_produce_request(version, transactional_id, -1, 30_000, topics)
    body = bytearray(b"".join(pieces) + tail)
    for at, value in damage:
        body[at % len(body)] = value
    plain = decode_plain_request(version, memoryview(body))
    if plain is None:
        return
    acks, timeout_ms, found_name, topic_id, index, records = plain
    expected = decode_produce_request(version, memoryview(body))
    assert (None, acks, timeout_ms, [(found_name, topic_id, [(index, records)])]) == expected


@pytest.mark.parametrize("version", [9, 13])
@pytest.mark.parametrize("size_bytes", [1, 126, 127, 16_382, 16_383, 1_000_000, 3_000_000])
def test_a_request_with_one_batch_takes_the_fast_decoder(version: int, size_bytes: int) -> None:
    topics = [("topic", UUID(int=9), [(3, bytes(size_bytes))])]
    body = b"".join(encode_produce_request(version, None, 1, 5, topics))
    plain = decode_plain_request(version, memoryview(body))
    assert plain is not None
    assert (plain[0], plain[1], plain[4], len(plain[5])) == (1, 5, 3, size_bytes)


@pytest.mark.parametrize("version", [9, 13])
@pytest.mark.parametrize("from_end", [1, 2, 3])
def test_a_request_with_tags_takes_the_general_decoder(version: int, from_end: int) -> None:
    """Because the tags may be malformed: those of the partition, of the topic, of the request."""
    topics = [("topic", UUID(int=9), [(3, b"records")])]
    body = bytearray(b"".join(encode_produce_request(version, None, 1, 5, topics)))
    body[-from_end] = 1
    assert decode_plain_request(version, memoryview(body)) is None


_produced = st.builds(
    PartitionProduced,
    _int32,
    st.integers(-1, 100),
    _int64,
    st.integers(-1, 2**40),
    _int64,
    st.lists(st.builds(RecordError, _int32, st.none() | _text), max_size=2),
    st.none() | _text,
    st.none() | st.builds(CurrentLeader, st.integers(0, 2**31 - 1), _int32),
)
_topics_answered = st.lists(
    st.builds(TopicProduced, _text, st.uuids(), st.lists(_produced, max_size=3)), max_size=3
)
_endpoints = st.lists(st.builds(NodeEndpoint, _int32, _text, _int32, st.none() | _text), max_size=2)


@pytest.mark.parametrize("version", _VERSIONS)
@settings(max_examples=20, deadline=None)
@given(_topics_answered, _int32, _endpoints)
def test_responses_are_encoded_and_decoded_as_kio_does(
    version: int, topics: list[TopicProduced], throttle_ms: int, endpoints: list[NodeEndpoint]
) -> None:
    fields = {
        "responses": [
            {
                "name": topic.name,
                "topic_id": topic.topic_id,
                "partition_responses": [_response_fields(p) for p in topic.partitions],
            }
            for topic in topics
        ],
        "throttle_time": throttle_ms,
        "node_endpoints": [endpoint._asdict() for endpoint in endpoints],
    }
    expected = codec.encode_response(ApiKey.PRODUCE, version, fields)
    assert encode_produce_response(version, topics, throttle_ms, endpoints) == expected
    response = decode_produce_response(version, expected)
    assert response.throttle_ms == throttle_ms
    assert response.node_endpoints == (endpoints if version >= 10 else [])
    again = encode_produce_response(
        version, response.topics, response.throttle_ms, response.node_endpoints
    )
    assert again == expected


@pytest.mark.parametrize("version", _VERSIONS)
@settings(max_examples=20, deadline=None)
@given(_topics_answered, st.integers(1, 4), _endpoints)
def test_a_response_in_parts_is_the_same(
    version: int, topics: list[TopicProduced], size: int, endpoints: list[NodeEndpoint]
) -> None:
    topics = [topic._replace(name=f"{number}") for number, topic in enumerate(topics)]
    parts = ProduceParts(version)
    for topic in topics:
        parts.add([topic._replace(partitions=topic.partitions[:size])])
        parts.add([topic._replace(partitions=topic.partitions[size:])])
    assert parts.encode(endpoints) == encode_produce_response(version, topics, 0, endpoints)


@pytest.mark.parametrize("version", [3, 9, 13])
@pytest.mark.parametrize("sizes", [[], [0], [SLICE_ITEMS - 1], [3, 0, 500], [1] * 300])
def test_a_request_in_slices_is_the_same(version: int, sizes: list[int]) -> None:
    topics = [
        (f"t{number}", UUID(int=number), [(index, b"records") for index in range(size)])
        for number, size in enumerate(sizes)
    ]
    body = memoryview(b"".join(encode_produce_request(version, "id", 1, 2, topics)))
    asked = decode_produce_request(version, body)
    assert [len(partitions) for _, _, partitions in asked.topics] == sizes
    items = len(sizes) + sum(sizes)
    small = decode_small_request(version, body)
    assert small == (asked if items <= SLICE_ITEMS else None)
    assert sum(1 for _ in decoding_produce_request(version, body)) == items // SLICE_ITEMS


def _response_fields(produced: PartitionProduced) -> dict[str, Any]:
    leader = produced.current_leader
    return {
        "index": produced.partition,
        "error_code": produced.error_code,
        "base_offset": produced.base_offset,
        "log_append_time": produced.log_append_time_ms,
        "log_start_offset": produced.log_start_offset,
        "record_errors": [
            {"batch_index": error.batch_index, "batch_index_error_message": error.message}
            for error in produced.record_errors
        ],
        "error_message": produced.error_message,
        **({} if leader is None else {"current_leader": leader._asdict()}),
    }


def test_kio_decodes_our_responses() -> None:
    time_ms = 1_700_000_000_000
    leader = CurrentLeader(4, 5)
    produced = PartitionProduced(3, 6, 42, time_ms, 7, [RecordError(1, "bad")], "worse", leader)
    body = encode_produce_response(12, [TopicProduced("t", None, [produced])])
    partition = codec.read_response(ApiKey.PRODUCE, 12, body).responses[0].partition_responses[0]
    assert partition.log_append_time == datetime.fromtimestamp(time_ms / 1000, tz=UTC)
    assert (partition.index, partition.error_code, partition.base_offset) == (3, 6, 42)
    assert partition.record_errors[0].batch_index_error_message == "bad"
    assert partition.current_leader.leader_epoch == 5


@pytest.mark.parametrize("version", [3, 8, 9, 13])
def test_records_are_writable_slices_of_the_received_bytes(version: int) -> None:
    pieces = encode_produce_request(version, None, 1, 1, [("t", UUID(int=5), [(0, b"abc")])])
    received = bytearray(b"".join(pieces))
    request = decode_produce_request(version, memoryview(received))
    records = request.topics[0][2][0][1]
    assert records is not None
    records[:] = b"XYZ"
    assert b"XYZ" in received


@pytest.mark.parametrize("version", _VERSIONS)
def test_a_request_cut_short_is_malformed(version: int) -> None:
    topics = [("topic", UUID(int=9), [(0, b"abc"), (1, None)])]
    body = b"".join(encode_produce_request(version, "tx", 1, 1, topics))
    for end in range(len(body)):
        with pytest.raises(MalformedRequest):
            decode_produce_request(version, memoryview(body[:end]))


@pytest.mark.parametrize("version", _VERSIONS)
def test_corrupted_bytes_end_in_a_message_or_in_malformed(version: int) -> None:
    chance = random.Random(version)
    for direction in Direction:
        for seed in range(150):
            _, _, body = sampled(ApiKey.PRODUCE, version, direction, seed)
            broken = bytearray(body)
            for _ in range(chance.choice((1, 2, 4))):
                at = chance.randrange(len(broken))
                broken[at : at + 2] = chance.choice((b"\xff\xff", b"\x7f\xff", b"\x80", b"\0"))
            try:
                if direction is Direction.REQUEST:
                    decode_produce_request(version, memoryview(broken))
                else:
                    decode_produce_response(version, broken)
            except MalformedMessage:
                pass


@pytest.mark.parametrize("count", [-2, -1, 2**31 - 1, 1000])
def test_an_impossible_count_of_topics_is_refused(count: int) -> None:
    with pytest.raises(MalformedRequest):
        decode_produce_request(7, memoryview(struct.pack(">hhii", -1, 1, 1, count) + bytes(50)))


@pytest.mark.parametrize("size_bytes", [-2, 2**31 - 1, 5])
def test_records_longer_than_the_request_are_refused(size_bytes: int) -> None:
    start = struct.pack(">hhiih", -1, 1, 1, 1, 1) + b"t" + struct.pack(">ii", 1, 0)
    with pytest.raises(MalformedRequest, match="records"):
        decode_produce_request(7, memoryview(start + struct.pack(">i", size_bytes) + bytes(4)))


def test_an_over_long_varint_is_refused() -> None:
    start = b"\0" + struct.pack(">hi", 1, 1)
    for varint in (b"\x80" * 5 + b"\x01", b"\xff\xff\xff\xff\x7f"):
        with pytest.raises(MalformedRequest, match="varint"):
            decode_produce_request(9, memoryview(start + varint + bytes(50)))


def test_unknown_tags_are_skipped() -> None:
    tags = b"\x01\x09\x02zz"
    body = (
        b"\0" + struct.pack(">hi", 1, 1) + b"\x02\x02t\x02" + struct.pack(">i", 4) + b"\x04abc"
    ) + tags * 3
    partition = decode_produce_request(9, memoryview(body)).topics[0][2][0]
    assert partition == (4, b"abc")


def test_a_response_that_ends_inside_a_tag_is_malformed() -> None:
    body = encode_produce_response(10, [], 0, [NodeEndpoint(1, "h", 2)])
    with pytest.raises(MalformedResponse):
        decode_produce_response(10, body[:-1])


@pytest.mark.parametrize("version", [8, 9])
def test_very_many_partitions_are_refused(version: int) -> None:
    def request(partitions: int) -> memoryview:
        topics = [("t", None, [(0, None)] * partitions)]
        return memoryview(b"".join(encode_produce_request(version, None, 1, 0, topics)))

    (topic,) = decode_produce_request(version, request(REQUEST_ITEMS_MAX - 1)).topics
    assert len(topic[2]) == REQUEST_ITEMS_MAX - 1
    with pytest.raises(MalformedRequest):
        decode_produce_request(version, request(REQUEST_ITEMS_MAX))


def test_a_section_of_very_many_tags_is_refused() -> None:
    body = b"".join(encode_produce_request(9, None, 1, 0, [("t", None, [(0, None)])]))
    assert body.endswith(b"\0\0\0\0")  # no records, and no tags for partition, topic and request
    with pytest.raises(MalformedRequest):
        decode_produce_request(9, memoryview(body[:-1] + b"\xff\x07" + b"\x05\x00" * 0x3FF))


def test_a_topic_name_longer_than_kafka_allows_is_refused() -> None:
    body = b"".join(encode_produce_request(9, None, 1, 0, [("n" * 32_768, None, [])]))
    with pytest.raises(MalformedRequest):
        decode_produce_request(9, memoryview(body))
