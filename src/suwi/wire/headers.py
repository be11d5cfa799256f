"""Hand-written codec of request and response headers.

The broker uses `read_request_header` and `response_header`, the client `request_header` and
`read_response_header`. The frame length before a header is handled in `net`.
"""

import struct
from typing import Final, TypeAlias

from typing_extensions import Buffer

from suwi.wire.errors import BROKEN_BYTES, MalformedRequest, MalformedResponse
from suwi.wire.primitives import Reader
from suwi.wire.versions import APIS

_START: Final = struct.Struct(">hhih")  # API key, version, correlation id, length of the client id
_START_BYTES: Final = _START.size
_CORRELATION_ID: Final = struct.Struct(">i")
_NEVER: Final = 1 << 15  # above every version
_FLEXIBLE_FROM: Final = {
    key: _NEVER if api.flexible_from is None else api.flexible_from for key, api in APIS.items()
}


# API key, version, correlation id, client id, and the position of the body in the buffer. A plain
# tuple, because creating a named tuple takes as long as decoding the header.
RequestHeader: TypeAlias = tuple[int, int, int, str | None, int]


def read_request_header(frame: memoryview) -> RequestHeader:
    """Decode the header of a request; `frame` is without the frame length.

    The caller checks whether the version is served: ApiVersions is answered in any version.
    """
    try:
        api_key, version, correlation_id, length = _START.unpack_from(frame)
        flexible_from = _FLEXIBLE_FROM.get(api_key)
        if flexible_from is None or version < 0:
            raise MalformedRequest(f"unknown API key {api_key} or version {version}")
        body_at = _START_BYTES
        client_id = None
        # The client id is not a compact string even in a header with tags.
        if length >= 0:
            body_at += length
            if body_at > len(frame):
                raise MalformedRequest(f"a client id of {length} bytes exceeds the frame")
            client_id = str(frame[_START_BYTES:body_at], "utf-8")
        elif length != -1:
            raise MalformedRequest(f"a client id of negative length {length}")
        if version >= flexible_from:
            if frame[body_at] == 0:
                body_at += 1
            else:
                body_at = _skip_tags(frame, body_at)
    except MalformedRequest:
        raise
    except BROKEN_BYTES as error:
        raise MalformedRequest(f"request header: {error}") from error
    return api_key, version, correlation_id, client_id, body_at


def response_header(api_key: int, version: int, correlation_id: int) -> bytes:
    start = _CORRELATION_ID.pack(correlation_id)
    return start + b"\0" if APIS[api_key].response_header_has_tags(version) else start


def request_header(api_key: int, version: int, correlation_id: int, client_id: str | None) -> bytes:
    name = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(name)
    start = _START.pack(api_key, version, correlation_id, length) + name
    return start + b"\0" if APIS[api_key].is_flexible(version) else start


def read_response_header(api_key: int, version: int, frame: Buffer) -> tuple[int, int]:
    """The correlation id, and the position of the body in the frame."""
    view = memoryview(frame)
    try:
        (correlation_id,) = _CORRELATION_ID.unpack_from(view)
        body_at = _CORRELATION_ID.size
        if APIS[api_key].response_header_has_tags(version):
            body_at = _skip_tags(view, body_at)
    except BROKEN_BYTES as error:
        raise MalformedResponse(f"response header: {error}") from error
    return correlation_id, body_at


def _skip_tags(frame: memoryview, at: int) -> int:
    reader = Reader(frame, at)
    reader.skip_tags()
    return reader.at
