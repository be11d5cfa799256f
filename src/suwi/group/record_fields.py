"""Fields that records of `__consumer_offsets` are made of."""

import struct
from collections.abc import Iterable
from typing import Final

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


def strings(values: Iterable[str]) -> bytes:
    encoded = [compact_string(value) for value in values]
    return count(len(encoded), True) + b"".join(encoded)


def read_strings(reader: Reader) -> tuple[str, ...]:
    return tuple(reader.string(True) for _ in range(reader.count(True, 1)))
