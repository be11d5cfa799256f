"""The hand-written OffsetCommit codec against kio's reader and writer, for every version."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suwi.wire import codec
from suwi.wire.errors import MalformedMessage, MalformedRequest
from suwi.wire.offset_commit import (
    NO_RETENTION_MS,
    OffsetCommitRequest,
    TopicErrors,
    decode_offset_commit_request,
    encode_offset_commit_response,
)
from suwi.wire.schema import Direction
from suwi.wire.versions import APIS, REQUEST_ITEMS_MAX, SMALL_REQUEST_BYTES_MAX, ApiKey
from tests.wire.samples import sampled

_API = APIS[ApiKey.OFFSET_COMMIT]
_VERSIONS = range(_API.min_version, _API.max_version + 1)
_TXN_API = APIS[ApiKey.TXN_OFFSET_COMMIT]
_int32 = st.integers(-(2**31), 2**31 - 1)
_int64 = st.integers(-(2**63), 2**63 - 1)
_text = st.text(max_size=200)
_partitions = st.lists(st.tuples(_int32, _int64, _int32, st.none() | _text), max_size=3)
_requests = st.builds(
    OffsetCommitRequest,
    _text,
    _int32,
    _text,
    st.none() | _text,
    st.integers(-1, 10**12),
    st.lists(st.tuples(_text, st.uuids(), _partitions), max_size=3),
)


def _fields(request: OffsetCommitRequest) -> dict[str, Any]:
    return {
        "group_id": request.group_id,
        "generation_id_or_member_epoch": request.generation,
        "member_id": request.member_id,
        "group_instance_id": request.instance_id,
        "retention_time": request.retention_ms,
        "topics": [
            {
                "name": name,
                "topic_id": topic_id,
                "partitions": [
                    {
                        "partition_index": index,
                        "committed_offset": offset,
                        "committed_leader_epoch": leader_epoch,
                        "committed_metadata": metadata,
                    }
                    for index, offset, leader_epoch, metadata in partitions
                ],
            }
            for name, topic_id, partitions in request.topics
        ],
    }


def _as_of(version: int, request: OffsetCommitRequest) -> OffsetCommitRequest:
    """Without what the version has no place for."""
    return request._replace(
        instance_id=request.instance_id if version >= 7 else None,
        retention_ms=request.retention_ms if version <= 4 else NO_RETENTION_MS,
        topics=[
            (
                name if version < 10 else None,
                topic_id if version >= 10 else None,
                [(i, offset, e if version >= 6 else -1, text) for i, offset, e, text in partitions],
            )
            for name, topic_id, partitions in request.topics
        ],
    )


@pytest.mark.parametrize("version", _VERSIONS)
@settings(max_examples=20, deadline=None)
@given(_requests)
def test_requests_are_decoded_as_kio_encodes_them(
    version: int, request: OffsetCommitRequest
) -> None:
    data = codec.encode_request(ApiKey.OFFSET_COMMIT, version, _fields(request))
    decoded = decode_offset_commit_request(version, memoryview(data + b"tail"))
    assert decoded == _as_of(version, request)


def _encode(api_key: ApiKey, version: int, topics: list[TopicErrors]) -> tuple[bytes, bytes]:
    api = APIS[api_key]
    has_throttle = api_key is ApiKey.TXN_OFFSET_COMMIT or version >= 3
    expected = codec.encode_response(
        api_key,
        version,
        {
            "throttle_time": 7,
            "topics": [
                {
                    ("name" if isinstance(key, str) else "topic_id"): key,
                    "partitions": [
                        {"partition_index": index, "error_code": error} for index, error in errors
                    ],
                }
                for key, errors in topics
            ],
        },
    )
    throttle_ms = 7 if has_throttle else None
    flexible = api.is_flexible(version)
    return expected, encode_offset_commit_response(topics, throttle_ms, flexible=flexible)


_errors = st.lists(st.tuples(_int32, st.integers(-1, 130)), max_size=3)


@pytest.mark.parametrize("version", _VERSIONS)
@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(_text, st.uuids(), _errors), max_size=3))
def test_responses_are_encoded_as_kio_does(version: int, topics: list[Any]) -> None:
    keyed = [(name if version < 10 else topic_id, errors) for name, topic_id, errors in topics]
    expected, encoded = _encode(ApiKey.OFFSET_COMMIT, version, keyed)
    assert encoded == expected


@pytest.mark.parametrize("version", range(_TXN_API.min_version, _TXN_API.max_version + 1))
@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(_text, _errors), max_size=3))
def test_responses_to_transactional_commits_are_encoded_as_kio_does(
    version: int, topics: list[TopicErrors]
) -> None:
    expected, encoded = _encode(ApiKey.TXN_OFFSET_COMMIT, version, topics)
    assert encoded == expected


@pytest.mark.parametrize("version", _VERSIONS)
@pytest.mark.parametrize("seed", range(20))
def test_what_kio_cannot_read_is_malformed(version: int, seed: int) -> None:
    chance = random.Random(f"{version} {seed}")
    _, _, data = sampled(ApiKey.OFFSET_COMMIT, version, Direction.REQUEST, seed)
    broken = bytearray(data)
    if chance.random() < 0.5:
        del broken[chance.randrange(len(broken)) :]
    else:
        broken[chance.randrange(len(broken))] ^= chance.randrange(1, 256)
    try:
        codec.read_request(ApiKey.OFFSET_COMMIT, version, broken)
    except MalformedMessage as error:
        if "milliseconds" in str(error) or "days" in str(error):
            return  # kio has no place for so long a retention
        with pytest.raises(MalformedRequest):
            decode_offset_commit_request(version, memoryview(broken))
    else:
        decode_offset_commit_request(version, memoryview(broken))


def test_unknown_tags_are_skipped() -> None:
    topic = b"\2t" + b"\2" + bytes(4) + bytes(8) + bytes(4) + b"\1" + b"\1\x63\1x" + b"\1\x07\0"
    data = b"\2g" + b"\xff" * 4 + b"\1" + b"\0" + b"\2" + topic + b"\1\x05\1y"
    request = decode_offset_commit_request(8, memoryview(data))
    assert request == ("g", -1, "", None, NO_RETENTION_MS, [("t", None, [(0, 0, 0, "")])])


def test_a_request_is_limited_in_bytes_and_items() -> None:
    with pytest.raises(MalformedRequest, match="bytes"):
        decode_offset_commit_request(8, memoryview(bytes(SMALL_REQUEST_BYTES_MAX + 1)))
    topics = [{"name": "t", "partitions": []}] * (REQUEST_ITEMS_MAX + 1)
    fields = {**_fields(OffsetCommitRequest("g", -1, "", None, -1, [])), "topics": topics}
    data = codec.encode_request(ApiKey.OFFSET_COMMIT, 8, fields)
    with pytest.raises(MalformedRequest, match="items"):
        decode_offset_commit_request(8, memoryview(data))
