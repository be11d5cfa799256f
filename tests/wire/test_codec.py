"""Encoding and decoding any message: the same bytes as kio's writer, for every version."""

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from suwi.wire import codec
from suwi.wire.errors import InvalidFields, MalformedRequest, MalformedResponse
from suwi.wire.schema import Direction, Field, Structure, structure
from suwi.wire.versions import APIS, ApiKey
from tests.wire.samples import KAFKAS, every_message, sample, sampled

_SAMPLES = 6


@pytest.mark.parametrize("api_key", KAFKAS, ids=lambda key: APIS[key].name)
def test_every_version_is_encoded_as_kio_does_and_decoded_back(api_key: int) -> None:
    for version, direction in every_message(api_key):
        is_request = direction is Direction.REQUEST
        encode = codec.encode_request if is_request else codec.encode_response
        read = codec.read_request if is_request else codec.read_response
        for seed in range(_SAMPLES):
            values, message, expected = sampled(api_key, version, direction, seed)
            where = f"{direction.value} v{version} seed {seed}"
            assert encode(api_key, version, values) == expected, where
            assert read(api_key, version, expected) == message, where
            assert read(api_key, version, bytearray(b"head" + expected), 4) == message, where


@pytest.mark.parametrize("api_key", KAFKAS, ids=lambda key: APIS[key].name)
def test_fields_of_other_versions_are_left_out(api_key: int) -> None:
    versions = range(APIS[api_key].min_version, APIS[api_key].max_version + 1)
    for direction in Direction:
        encode = codec.encode_request if direction is Direction.REQUEST else codec.encode_response
        described = [structure(api_key, version, direction) for version in versions]
        superset = sample(_union(described), random.Random(api_key))
        for version, exact in zip(versions, described, strict=True):
            expected = encode(api_key, version, _only(superset, exact))
            assert encode(api_key, version, superset) == expected


@pytest.mark.parametrize("api_key", KAFKAS, ids=lambda key: APIS[key].name)
def test_an_array_encoded_piece_by_piece_gives_the_same_bytes(api_key: int) -> None:
    for version, direction in every_message(api_key):
        if direction is Direction.REQUEST:
            continue
        for seed in range(_SAMPLES):
            values, _, expected = sampled(api_key, version, direction, seed)
            described = structure(api_key, version, direction)
            in_pieces = _in_pieces(values, described, (api_key, version), ())
            assert codec.encode_response(api_key, version, in_pieces) == expected


def _in_pieces(
    values: dict[str, Any], described: Structure, message: tuple[int, int], path: tuple[str, ...]
) -> dict[str, Any]:
    """Every array of structures encoded item by item, from the innermost to the outermost."""
    result = dict(values)
    for field in described.all_fields():
        items = values.get(field.name)
        if field.structure is None or not field.is_array or items is None:
            continue
        here = (*path, field.name)
        inner = [_in_pieces(item, field.structure, message, here) for item in items]
        result[field.name] = codec.join_items(
            [codec.encode_items(*message, here, [item]) for item in inner]
        )
    return result


def _union(described: Sequence[Structure]) -> Structure:
    """A structure with the fields of all versions, none of them null."""
    by_name: dict[str, list[Field]] = {}
    for one in described:
        for field in one.all_fields():
            by_name.setdefault(field.name, []).append(field)
    fields = []
    for same in by_name.values():
        inner = [field.structure for field in same if field.structure is not None]
        fields.append(replace(same[-1], nullable=False, structure=_union(inner) if inner else None))
    return Structure("union", flexible=True, fields=tuple(fields), tagged=())


def _only(values: dict[str, Any], described: Structure) -> dict[str, Any]:
    exact = {}
    for field in described.all_fields():
        value = values[field.name]
        if field.structure is not None and isinstance(value, list):
            value = [_only(item, field.structure) for item in value]
        elif field.structure is not None and value is not None:
            value = _only(value, field.structure)
        exact[field.name] = value
    return exact


def test_a_missing_field_takes_the_default_of_the_schema() -> None:
    topic = {"name": "t", "error_code": 0, "partitions": [], "topic_id": None}
    fields = {"throttle_time": 0, "brokers": [], "controller_id": 1, "topics": [topic]}
    message = codec.read_response(
        ApiKey.METADATA, 12, codec.encode_response(ApiKey.METADATA, 12, fields)
    )
    assert message.cluster_id is None
    assert message.topics[0].is_internal is False
    assert message.topics[0].topic_authorized_operations == -(2**31)


def test_a_missing_field_without_a_default_is_an_error_that_names_it() -> None:
    with pytest.raises(InvalidFields, match=r"topics\.name is missing"):
        codec.encode_response(
            ApiKey.METADATA,
            1,
            {"brokers": [], "controller_id": 1, "topics": [{"error_code": 0, "partitions": []}]},
        )


def test_a_name_that_no_version_has_is_refused() -> None:
    with pytest.raises(InvalidFields, match=r"Metadata response\.brokers has no field \['prot'\]"):
        codec.encode_response(
            ApiKey.METADATA,
            1,
            {
                "brokers": [{"node_id": 1, "host": "h", "prot": 9092, "rack": None}],
                "controller_id": 1,
                "topics": [],
            },
        )


def test_times_may_be_milliseconds_and_error_codes_may_be_kio_s() -> None:
    plain = codec.encode_response(ApiKey.HEARTBEAT, 1, {"throttle_time": 1500, "error_code": 27})
    typed = codec.encode_response(
        ApiKey.HEARTBEAT,
        1,
        {
            "throttle_time": timedelta(seconds=1.5),
            "error_code": ErrorCode.rebalance_in_progress,
        },
    )
    assert plain == typed == b"\0\0\x05\xdc\0\x1b"


@pytest.mark.parametrize(
    "fields",
    [
        {"key": None, "key_type": 0, "coordinator_keys": []},
        {"key": 7, "key_type": 0, "coordinator_keys": []},
        {"key": "k", "key_type": "group", "coordinator_keys": []},
        {"key": "k", "key_type": 300, "coordinator_keys": []},
        {"key": "x" * 40_000, "key_type": 0, "coordinator_keys": []},
    ],
)
def test_values_that_do_not_fit_are_invalid_fields(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidFields):
        codec.encode_request(ApiKey.FIND_COORDINATOR, 2, fields)


def test_a_tagged_field_is_encoded_only_if_it_differs_from_its_default() -> None:
    base = {"throttle_time": 0, "error_code": 0, "api_keys": []}
    bare = codec.encode_response(ApiKey.API_VERSIONS, 3, base)
    same = codec.encode_response(
        ApiKey.API_VERSIONS, 3, {**base, "supported_features": [], "zk_migration_ready": False}
    )
    other = codec.encode_response(ApiKey.API_VERSIONS, 3, {**base, "finalized_features_epoch": 4})
    assert bare == same
    assert codec.read_response(ApiKey.API_VERSIONS, 3, other).finalized_features_epoch == 4


def test_a_zero_uuid_is_decoded_as_none() -> None:
    body = codec.encode_request(
        ApiKey.DELETE_TOPICS,
        6,
        {"topics": [{"name": "t", "topic_id": None}], "timeout": 1},
    )
    same = codec.encode_request(
        ApiKey.DELETE_TOPICS,
        6,
        {"topics": [{"name": "t", "topic_id": UUID(int=0)}], "timeout": 1},
    )
    assert body == same
    assert codec.read_request(ApiKey.DELETE_TOPICS, 6, body).topics[0].topic_id is None


def test_bytes_after_the_end_of_a_request_are_ignored() -> None:
    body = codec.encode_request(ApiKey.LIST_GROUPS, 0, {}) + b"more"
    assert codec.read_request(ApiKey.LIST_GROUPS, 0, body) is not None


def test_the_error_for_malformed_bytes_names_api_and_version() -> None:
    with pytest.raises(MalformedRequest, match="Metadata v1"):
        codec.read_request(ApiKey.METADATA, 1, b"\0\0")
    with pytest.raises(MalformedResponse, match="Metadata v1"):
        codec.read_response(ApiKey.METADATA, 1, b"\0\0")
