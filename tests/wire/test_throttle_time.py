"""The throttle time is put into responses that are already encoded."""

from typing import Any

import pytest

from suwi.wire.codec import _nothing, encode_response, read_response
from suwi.wire.produce import encode_produce_response, throttle_at
from suwi.wire.schema import Direction, structure
from suwi.wire.throttle_time import (
    THROTTLE_TIME,
    position,
    throttle_time_of,
    with_throttle_time,
)
from suwi.wire.versions import APIS, ApiKey

VERSIONS = [
    (api.key, version)
    for api in APIS.values()
    if api.is_kafkas
    for version in range(api.min_version, api.max_version + 1)
]


def empty(api_key: int, version: int) -> bytes:
    fields = structure(api_key, version, Direction.RESPONSE).fields
    return encode_response(api_key, version, {field.name: _nothing(field) for field in fields})


@pytest.mark.parametrize(("api_key", "version"), VERSIONS)
def test_every_response_that_has_a_throttle_time_can_be_given_one(
    api_key: ApiKey, version: int
) -> None:
    at = position(api_key, version)
    fields = structure(api_key, version, Direction.RESPONSE).fields
    if at is None:
        has_one = any(field.name == THROTTLE_TIME for field in fields)
        # These two say where it is.
        assert has_one is (
            api_key in (ApiKey.PRODUCE, ApiKey.API_VERSIONS) and not _is_v0(version, api_key)
        )
        return
    changed = with_throttle_time(empty(api_key, version), at, 1234)
    answer: Any = read_response(api_key, version, changed)
    assert answer.throttle_time.total_seconds() == 1.234
    assert throttle_time_of(api_key, version, changed) == 1234


def _is_v0(version: int, api_key: int) -> bool:
    return api_key == ApiKey.API_VERSIONS and version == 0


@pytest.mark.parametrize("version", range(3, 14))
def test_produce_has_it_at_its_end(version: int) -> None:
    body = with_throttle_time(encode_produce_response(version, []), throttle_at(version), 5)
    assert read_response(ApiKey.PRODUCE, version, body).throttle_time.total_seconds() == 0.005
