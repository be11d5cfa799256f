"""Where a response has its throttle time, which is known when the response is encoded already.

Responses are encoded with 0; `with_throttle_time` replaces it.
"""

import struct
from functools import cache
from typing import Final

from typing_extensions import Buffer

from suwi.wire.schema import FIXED, Direction, structure
from suwi.wire.versions import APIS, ApiKey

THROTTLE_TIME: Final = "throttle_time"
_INT32: Final = struct.Struct(">i")


@cache
def position(api_key: int, version: int) -> int | None:
    """None if the response has none, or after fields whose size varies: in Produce and
    ApiVersions."""
    at = 0
    if api_key == ApiKey.FETCH:
        return at  # Nothing else needs its schema, and it takes longest to load.
    if APIS[api_key].is_kafkas:
        for field in structure(api_key, version, Direction.RESPONSE).fields:
            if field.name == THROTTLE_TIME:
                return at
            if field.is_array or field.kafka_type not in FIXED:
                break
            at += struct.calcsize(">" + FIXED[field.kafka_type])
    return None


def with_throttle_time(body: Buffer, at: int, throttle_ms: int) -> bytes:
    changed = bytearray(body)
    _INT32.pack_into(changed, at if at >= 0 else len(changed) + at, throttle_ms)
    return bytes(changed)


def throttle_time_of(api_key: int, version: int, body: Buffer) -> int:
    """The throttle time in a response; 0 if it has none at a fixed position."""
    at = position(api_key, version)
    return 0 if at is None else int(_INT32.unpack_from(body, at)[0])
