"""Corrupted bytes of peers: decoding ends in a message or in MalformedMessage.

A wrong count that the guard does not reject would abort the test process, see `suwi.wire.guard`.
"""

import random
import struct
from typing import Any

import pytest

from suwi.wire import codec
from suwi.wire.errors import MalformedMessage, MalformedRequest
from suwi.wire.guard import Walk, structure_step
from suwi.wire.primitives import uvarint
from suwi.wire.schema import Direction, structure
from suwi.wire.versions import APIS, REQUEST_ITEMS_MAX, ApiKey
from tests.wire.samples import KAFKAS, every_message, sampled

_FAR_TOO_MANY = (2**31 - 1, 2**28, 100_000)
_SOFTWARE = {"client_software_name": "n", "client_software_version": "v"}


@pytest.mark.parametrize("api_key", KAFKAS, ids=lambda key: APIS[key].name)
def test_the_guard_steps_over_exactly_what_kio_writes(api_key: int) -> None:
    for version, direction in every_message(api_key):
        step = structure_step(structure(api_key, version, direction))
        for seed in range(3):
            _, _, body = sampled(api_key, version, direction, seed)
            assert step(memoryview(body), 0, Walk(10_000)) == len(body)


@pytest.mark.parametrize("api_key", KAFKAS, ids=lambda key: APIS[key].name)
def test_a_message_cut_short_is_malformed(api_key: int) -> None:
    for version, direction in every_message(api_key):
        _, _, body = sampled(api_key, version, direction, seed=1)
        read = codec.read_request if direction is Direction.REQUEST else codec.read_response
        for end in range(0, len(body), max(1, len(body) // 20)):
            with pytest.raises(MalformedMessage):
                read(api_key, version, body[:end])


@pytest.mark.parametrize("api_key", KAFKAS, ids=lambda key: APIS[key].name)
def test_flipped_bytes_end_in_a_message_or_in_malformed(api_key: int) -> None:
    chance = random.Random(api_key)
    for version, direction in every_message(api_key):
        _, _, body = sampled(api_key, version, direction, seed=2)
        read = codec.read_request if direction is Direction.REQUEST else codec.read_response
        for _ in range(40):
            broken = bytearray(body)
            for _ in range(chance.choice((1, 1, 2, 5))):
                if broken:
                    at = chance.randrange(len(broken))
                    broken[at : at + 4] = chance.choice(
                        (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\x80")
                    )
            try:
                read(api_key, version, broken)
            except MalformedMessage:
                pass


@pytest.mark.parametrize("count", _FAR_TOO_MANY)
def test_a_count_beyond_the_bytes_left_is_refused(count: int) -> None:
    with pytest.raises(MalformedRequest, match="announced"):
        codec.read_request(ApiKey.METADATA, 8, struct.pack(">i", count) + bytes(100))
    with pytest.raises(MalformedRequest, match="announced"):
        codec.read_request(ApiKey.METADATA, 12, uvarint(count) + bytes(100))
    with pytest.raises(MalformedRequest, match="announced"):
        codec.read_request(ApiKey.DELETE_GROUPS, 2, uvarint(count) + bytes(100))


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(MalformedRequest):
        codec.read_request(ApiKey.METADATA, 8, struct.pack(">i", -2) + bytes(100))


@pytest.mark.parametrize("start", [b"\xff\xff\xff\xff\x0f", b"\x80" * 5 + b"\0", b"\xff" * 12])
def test_an_over_long_varint_is_refused(start: bytes) -> None:
    with pytest.raises(MalformedRequest, match="varint"):
        codec.read_request(ApiKey.METADATA, 12, start + bytes(100))


def test_unknown_tags_are_skipped_at_every_depth() -> None:
    fields = {
        "max_wait": 1,
        "min_bytes": 2,
        "replica_state": {"replica_id": 7, "replica_epoch": 9},
        "topics": [],
        "forgotten_topics_data": [],
    }
    body = codec.encode_request(ApiKey.FETCH, 15, fields)
    state = struct.pack(">iq", 7, 9)
    known = b"\x01\x01\x0d" + state + b"\0"
    assert body.endswith(known)
    unknown = b"\x63\x02ab"
    with_unknown = (
        body.removesuffix(known) + b"\x02\x01\x11" + state + b"\x01" + unknown + unknown + b"tail"
    )
    assert codec.read_request(ApiKey.FETCH, 15, with_unknown) == codec.read_request(
        ApiKey.FETCH, 15, body
    )


def test_unknown_tags_in_the_items_of_an_array_are_skipped() -> None:
    body = codec.encode_request(
        ApiKey.METADATA,
        12,
        {
            "topics": [{"name": "a", "topic_id": None}, {"name": "b", "topic_id": None}],
            "include_topic_authorized_operations": False,
        },
    )
    item = bytes(16) + b"\x02a\0"
    assert item in body
    tagged = body.replace(item, bytes(16) + b"\x02a\x01\x05\x01z")
    assert codec.read_request(ApiKey.METADATA, 12, tagged) == codec.read_request(
        ApiKey.METADATA, 12, body
    )


def test_a_tag_of_another_size_than_announced_is_malformed() -> None:
    limits = struct.pack(">iiiibii", -1, 0, 0, 0, 0, 0, 0) + b"\1\1\1"
    with pytest.raises(MalformedRequest, match="announced size"):
        codec.read_request(ApiKey.FETCH, 12, limits + b"\x01\x00\x05\x02a\x01\x01\x01")
    with pytest.raises(MalformedRequest):
        codec.read_request(ApiKey.FETCH, 12, limits + b"\x01\x00\x01\x02a")


def test_null_where_the_schema_forbids_it_is_malformed() -> None:
    one_key = codec.encode_request(
        ApiKey.FIND_COORDINATOR, 5, {"key_type": 0, "coordinator_keys": ["group"]}
    )
    assert one_key == b"\x00\x02\x06group\x00"
    with pytest.raises(MalformedRequest):
        codec.read_request(ApiKey.FIND_COORDINATOR, 5, b"\x00\x00\x00")  # no array
    with pytest.raises(MalformedRequest):
        codec.read_request(ApiKey.FIND_COORDINATOR, 5, b"\x00\x02\x00\x00")  # no key
    with pytest.raises(MalformedRequest):
        codec.read_request(ApiKey.FIND_COORDINATOR, 0, b"\xff\xff")
    with pytest.raises(MalformedRequest):
        codec.read_request(ApiKey.METADATA, 0, b"\xff\xff\xff\xff")
    assert codec.read_request(ApiKey.METADATA, 1, b"\xff\xff\xff\xff").topics is None


@pytest.mark.parametrize("version", [0, 12])
def test_more_items_than_the_limit_are_refused(version: int) -> None:
    def names(count: int) -> dict[str, Any]:
        topics = [{"name": "", "topic_id": None}] * count
        return {"topics": topics, "include_topic_authorized_operations": False}

    most = codec.encode_request(ApiKey.METADATA, version, names(REQUEST_ITEMS_MAX))
    assert len(codec.read_request(ApiKey.METADATA, version, most).topics) == REQUEST_ITEMS_MAX
    more = codec.encode_request(ApiKey.METADATA, version, names(REQUEST_ITEMS_MAX + 1))
    with pytest.raises(MalformedRequest, match="items"):
        codec.read_request(ApiKey.METADATA, version, more)


def test_the_item_limit_holds_for_all_arrays_of_a_request_together() -> None:
    def topics(count: int, partitions: int) -> bytes:
        asked = [{"partition_index": 0, "timestamp": -1}] * partitions
        named = [{"name": "t", "partitions": asked}] * count
        fields = {"replica_id": -1, "isolation_level": 0, "topics": named, "timeout": 0}
        return codec.encode_request(ApiKey.LIST_OFFSETS, 11, fields)

    codec.read_request(ApiKey.LIST_OFFSETS, 11, topics(2, REQUEST_ITEMS_MAX // 2 - 1))
    with pytest.raises(MalformedRequest, match="items"):
        codec.read_request(ApiKey.LIST_OFFSETS, 11, topics(2, REQUEST_ITEMS_MAX // 2))


def test_very_many_tags_are_refused_before_they_are_skipped() -> None:
    body = codec.encode_request(ApiKey.API_VERSIONS, 3, _SOFTWARE)
    tags = uvarint(1_000_000) + b"\x63\x00" * 1_000_000
    with pytest.raises(MalformedRequest, match="tags"):
        codec.read_request(ApiKey.API_VERSIONS, 3, body[:-1] + tags)


def test_a_compact_string_has_the_length_limit_of_a_legacy_string() -> None:
    longest = codec.encode_request(
        ApiKey.API_VERSIONS, 3, {**_SOFTWARE, "client_software_name": "n" * 32_767}
    )
    assert len(codec.read_request(ApiKey.API_VERSIONS, 3, longest).client_software_name) == 32_767
    longer = codec.encode_request(
        ApiKey.API_VERSIONS, 3, {**_SOFTWARE, "client_software_name": "n" * 32_768}
    )
    with pytest.raises(MalformedRequest):
        codec.read_request(ApiKey.API_VERSIONS, 3, longer)
