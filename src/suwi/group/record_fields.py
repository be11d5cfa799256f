"""Fields that records of `__consumer_offsets` are made of."""

import struct
from collections.abc import Sequence
from typing import Final

from suwi.env.slices import Pace, Slices
from suwi.wire.primitives import Reader, compact_string, count, uvarint

INT8: Final = struct.Struct(">b")
INT16: Final = struct.Struct(">h")
INT32: Final = struct.Struct(">i")
INT64: Final = struct.Struct(">q")
NO_TAGS: Final = b"\0"


def read_int32(reader: Reader) -> int:
    value: int = reader.unpack(INT32)[0]
    return value


def read_int64(reader: Reader) -> int:
    value: int = reader.unpack(INT64)[0]
    return value


def read_bytes(reader: Reader, flexible: bool) -> bytes:
    return bytes(reader.nullable_bytes(flexible) or b"")


def sized(data: bytes, flexible: bool) -> bytes:
    return count(len(data), flexible) + data


def int32s(values: tuple[int, ...]) -> bytes:
    return uvarint(len(values) + 1) + struct.pack(f">{len(values)}i", *values)


def read_int32s(reader: Reader) -> tuple[int, ...]:
    items = reader.count(True, 4)
    return struct.unpack_from(f">{items}i", reader.buffer, reader.take(4 * items))


def strings(values: Sequence[str]) -> Slices[bytes]:
    pace, encoded = Pace(), [count(len(values), True)]
    for value in values:
        encoded.append(compact_string(value))
        if pace.is_over(1):
            yield
    return b"".join(encoded)


def read_strings(reader: Reader) -> Slices[tuple[str, ...]]:
    pace, found = Pace(), []
    for _ in range(reader.count(True, 1)):
        found.append(reader.string(True))
        if pace.is_over(2):
            yield
    return tuple(found)
