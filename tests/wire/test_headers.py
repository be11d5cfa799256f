"""Request and response headers against kio's."""

import importlib
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suwi.wire.errors import MalformedMessage, MalformedRequest, MalformedResponse
from suwi.wire.headers import (
    read_request_header,
    read_response_header,
    request_header,
    response_header,
)
from suwi.wire.versions import APIS, Api, ApiKey
from tests.wire.samples import kio_bytes

_ENTRIES = [pytest.param(api, id=api.name) for api in APIS.values()]


def _kio_header(kind: str, version: int, **fields: Any) -> bytes:
    module = importlib.import_module(f"kio.schema.{kind}_header.v{version}")
    cls = getattr(module, f"{kind.capitalize()}Header")
    return kio_bytes(cls, cls(**fields))


@pytest.mark.parametrize("api", _ENTRIES)
@pytest.mark.parametrize("client_id", [None, "", "rdkafka", "é" * 300])
def test_request_headers_equal_those_of_kio(api: Api, client_id: str | None) -> None:
    for version in range(api.min_version, api.max_version + 1):
        expected = _kio_header(
            "request",
            2 if api.is_flexible(version) else 1,
            request_api_key=int(api.key),
            request_api_version=version,
            correlation_id=-7,
            client_id=client_id,
        )
        assert request_header(api.key, version, -7, client_id) == expected
        header = read_request_header(memoryview(expected + b"body"))
        assert header == (api.key, version, -7, client_id, len(expected))


@pytest.mark.parametrize("api", _ENTRIES)
def test_response_headers_equal_those_of_kio(api: Api) -> None:
    for version in range(api.min_version, api.max_version + 1):
        expected = _kio_header(
            "response", int(api.response_header_has_tags(version)), correlation_id=99
        )
        assert response_header(api.key, version, 99) == expected
        assert read_response_header(api.key, version, expected + b"body") == (99, len(expected))


def test_api_versions_of_an_unknown_version_has_a_readable_header() -> None:
    frame = struct.pack(">hhih", ApiKey.API_VERSIONS, 99, 5, -1) + b"\0whatever"
    assert read_request_header(memoryview(frame))[:4] == (ApiKey.API_VERSIONS, 99, 5, None)


def test_the_api_versions_response_has_no_tags_in_its_header() -> None:
    assert response_header(ApiKey.API_VERSIONS, 4, 1) == b"\0\0\0\1"


def test_tags_in_a_header_are_skipped() -> None:
    frame = struct.pack(">hhih", ApiKey.METADATA, 12, 5, -1) + b"\x02\x00\x01a\x07\x02bcBODY"
    assert bytes(memoryview(frame)[read_request_header(memoryview(frame))[4] :]) == b"BODY"
    assert read_response_header(ApiKey.METADATA, 12, b"\0\0\0\1\x01\x00\x01a") == (1, 8)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\0\3\0\1\0\0\0",
        struct.pack(">hhih", 999, 0, 1, -1),
        struct.pack(">hhih", -1, 0, 1, -1),
        struct.pack(">hhih", ApiKey.METADATA, -1, 1, -1),
        struct.pack(">hhih", ApiKey.METADATA, 1, 1, -2),
        struct.pack(">hhih", ApiKey.METADATA, 1, 1, 5) + b"abcd",
        struct.pack(">hhih", ApiKey.METADATA, 1, 1, 2) + b"\xff\xfe",
        struct.pack(">hhih", ApiKey.METADATA, 12, 1, 0),
        struct.pack(">hhih", ApiKey.METADATA, 12, 1, 0) + b"\x01\x00\x05a",
        struct.pack(">hhih", ApiKey.METADATA, 12, 1, 0) + b"\xff\xff\xff\xff\xff\x01",
    ],
)
def test_a_broken_request_header_is_malformed(frame: bytes) -> None:
    with pytest.raises(MalformedRequest):
        read_request_header(memoryview(frame))


@pytest.mark.parametrize("frame", [b"", b"\0\0\0", b"\0\0\0\1", b"\0\0\0\1\x01\x00"])
def test_a_broken_response_header_is_malformed(frame: bytes) -> None:
    with pytest.raises(MalformedResponse):
        read_response_header(ApiKey.METADATA, 12, frame)


@given(st.binary(max_size=40))
def test_any_bytes_end_in_a_header_or_in_malformed(frame: bytes) -> None:
    try:
        header = read_request_header(memoryview(frame))
    except MalformedMessage:
        return
    assert header[4] <= len(frame)


def test_a_header_of_very_many_tags_is_malformed() -> None:
    start = struct.pack(">hhih", ApiKey.METADATA, 12, 5, -1)
    few = start + b"\x05" + b"\x07\x00" * 5 + b"BODY"
    assert few[read_request_header(memoryview(few))[4] :] == b"BODY"
    # 50 million of them fit into the largest request, and each takes a microsecond.
    many = start + b"\xff\xff\x03" + b"\x07\x00" * 0xFFFF
    with pytest.raises(MalformedRequest, match="tags"):
        read_request_header(memoryview(many))
