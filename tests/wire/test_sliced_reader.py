"""Decoding in slices: the same verdict and the same entities as in one piece."""

import random
from collections.abc import Generator
from copy import deepcopy
from typing import Any

import pytest

from suwi.wire import codec
from suwi.wire.errors import MalformedRequest
from suwi.wire.primitives import SLICE_BYTES, SLICE_ITEMS
from suwi.wire.schema import Direction, Structure, structure
from suwi.wire.versions import APIS, REQUEST_ITEMS_MAX, ApiKey
from tests.wire.samples import KAFKAS, sampled

_SAMPLES = 4
_READ = [key for key in KAFKAS if not APIS[key].raw_body]


def read_in_slices(api_key: int, version: int, body: bytes, at: int = 0) -> tuple[Any, int]:
    """The message, and the number of slices."""
    return _drain(codec.reading_request(api_key, version, body, at))


def _drain(work: Generator[None, None, Any]) -> tuple[Any, int]:
    slices = 1
    while True:
        try:
            next(work)
        except StopIteration as done:
            return done.value, slices
        slices += 1


def verdicts(api_key: int, version: int, body: bytes) -> tuple[Any, Any]:
    """What both decoders make of the bytes; None if they are malformed."""
    results = []
    for read in (codec.read_request, lambda *asked: read_in_slices(*asked)[0]):
        try:
            results.append(read(api_key, version, body))
        except MalformedRequest:
            results.append(None)
    return results[0], results[1]


def versions(api_key: int) -> range:
    return range(APIS[api_key].min_version, APIS[api_key].max_version + 1)


@pytest.mark.parametrize("api_key", _READ, ids=lambda key: APIS[key].name)
def test_both_decoders_read_the_same_message(api_key: int) -> None:
    for version in versions(api_key):
        for seed in range(_SAMPLES):
            _, message, body = sampled(api_key, version, Direction.REQUEST, seed)
            assert read_in_slices(api_key, version, body)[0] == message
            assert read_in_slices(api_key, version, b"head" + body + b"tail", 4)[0] == message


@pytest.mark.parametrize("api_key", _READ, ids=lambda key: APIS[key].name)
def test_both_decoders_have_the_same_verdict_on_a_message_cut_short(api_key: int) -> None:
    for version in versions(api_key):
        _, _, body = sampled(api_key, version, Direction.REQUEST, seed=1)
        for end in range(0, len(body), max(1, len(body) // 40)):
            one, other = verdicts(api_key, version, body[:end])
            assert one == other


@pytest.mark.parametrize("api_key", _READ, ids=lambda key: APIS[key].name)
def test_both_decoders_have_the_same_verdict_on_flipped_bytes(api_key: int) -> None:
    chance = random.Random(api_key)
    replacements = (
        b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\x80", b"\0", b"\1\x63\0"
    )  # fmt: skip
    for version in versions(api_key):
        for seed in range(_SAMPLES):
            _, _, body = sampled(api_key, version, Direction.REQUEST, seed)
            for _ in range(20):
                broken = bytearray(body)
                for _ in range(chance.choice((1, 1, 2, 5))):
                    at = chance.randrange(len(broken) + 1)
                    flipped = chance.choice(replacements)
                    broken[at : at + chance.choice((1, len(flipped)))] = flipped
                one, other = verdicts(api_key, version, bytes(broken))
                assert one == other


def test_unknown_tags_are_skipped_at_every_depth() -> None:
    body = codec.encode_request(
        ApiKey.LIST_OFFSETS,
        11,
        {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": [
                {"name": "a", "partitions": [{"partition_index": 7, "timestamp": -1}]},
                {"name": "b", "partitions": [{"partition_index": 8, "timestamp": -2}]},
            ],
            "timeout": 9,
        },
    )
    tags = b"\x02\x63\x02ab\x64\x00"
    timestamps = (b"\xff" * 8, b"\xff" * 7 + b"\xfe")
    tagged = body
    for timestamp in timestamps:  # of a partition, then of its topic
        tagged = tagged.replace(timestamp + b"\0\0", timestamp + tags + tags)
    assert len(tagged) == len(body) + 4 * (len(tags) - 1)
    tagged = tagged[:-1] + tags
    expected = codec.read_request(ApiKey.LIST_OFFSETS, 11, body)
    assert verdicts(ApiKey.LIST_OFFSETS, 11, tagged) == (expected, expected)


def long_request(api_key: int, version: int, seed: int) -> bytes:
    """Each array of structures or strings has many items, in turn."""
    values, _, _ = sampled(api_key, version, Direction.REQUEST, seed)
    _lengthen(values, structure(api_key, version, Direction.REQUEST))
    return codec.encode_request(api_key, version, values)


def _lengthen(values: dict[str, Any], described: Structure) -> None:
    for field in described.fields:
        items = values[field.name]
        if not field.is_array or not items:
            continue
        # Nested arrays would multiply: only the first item has a long one.
        values[field.name] = [deepcopy(items[0])] + [items[-1]] * (2 * SLICE_ITEMS)
        if field.structure is not None:
            _lengthen(values[field.name][0], field.structure)


@pytest.mark.parametrize("api_key", _READ, ids=lambda key: APIS[key].name)
def test_a_long_message_is_read_in_slices_at_every_depth(api_key: int) -> None:
    for version in versions(api_key):
        for seed in range(_SAMPLES):
            body = long_request(api_key, version, seed)
            message, slices = read_in_slices(api_key, version, body)
            assert message == codec.read_request(api_key, version, body)
            described = structure(api_key, version, Direction.REQUEST)
            if any(field.is_array and getattr(message, field.name) for field in described.fields):
                assert slices > 2, version


def test_a_slice_ends_after_a_counted_number_of_items() -> None:
    names = {"groups_names": [f"g{number}" for number in range(4 * SLICE_ITEMS + 1)]}
    body = codec.encode_request(ApiKey.DELETE_GROUPS, 2, names)
    assert read_in_slices(ApiKey.DELETE_GROUPS, 2, body)[1] == 5


def test_a_slice_ends_after_a_counted_number_of_bytes() -> None:
    each = 32_000
    names = {"groups_names": ["g" * each] * (4 * SLICE_BYTES // each + 1)}
    body = codec.encode_request(ApiKey.DELETE_GROUPS, 2, names)
    assert 4 <= read_in_slices(ApiKey.DELETE_GROUPS, 2, body)[1] <= 5


def test_tags_count_as_items_of_a_slice() -> None:
    tags = b"\x64" + b"\x63\x00" * 100
    name = bytes(16) + b"\x02a"
    body = b"\x0b" + (name + tags) * 10 + b"\0\0\0"
    message, slices = read_in_slices(ApiKey.METADATA, 12, body)
    assert len(message.topics) == 10
    assert slices == 2


def test_a_request_is_refused_at_the_item_limit_in_both_forms() -> None:
    for count, is_refused in ((REQUEST_ITEMS_MAX, False), (REQUEST_ITEMS_MAX + 1, True)):
        body = codec.encode_request(ApiKey.DELETE_GROUPS, 2, {"groups_names": ["g"] * count})
        one, other = verdicts(ApiKey.DELETE_GROUPS, 2, body)
        assert one == other
        assert (one is None) is is_refused
