"""Confluent's header: a zero byte, the id of the schema in four bytes, then the value.

For Protobuf the value is preceded by which message of the schema it is.
"""

import struct

from suwi.decoders.errors import BadRecord

_HEADER = struct.Struct(">bI")
HEADER_BYTES = _HEADER.size
TOO_SHORT = "too short for the header with the schema's id"
NO_HEADER = "no header with a schema's id: the first byte is not 0"
_DEPTH_MAX = 32
FIRST_MESSAGE = (0,)


def split_header(value: bytes) -> tuple[int, memoryview]:
    """The schema's id, and the rest. Raises `BadRecord`."""
    if len(value) < HEADER_BYTES:
        raise BadRecord(TOO_SHORT)
    magic, schema_id = _HEADER.unpack_from(value)
    if magic != 0:
        raise BadRecord(NO_HEADER)
    return schema_id, memoryview(value)[HEADER_BYTES:]


def split_message_index(rest: memoryview) -> tuple[tuple[int, ...], memoryview]:
    """Which message it is, as positions in the file and then within messages; and the message."""
    if bytes(rest[:1]) == b"\0":  # short for one index that is 0
        return FIRST_MESSAGE, rest[1:]
    count, rest = _zigzag(rest)
    if not 0 < count <= _DEPTH_MAX:
        raise BadRecord(f"{count} message indexes in the header")
    path = []
    for _ in range(count):
        index, rest = _zigzag(rest)
        if index < 0:
            raise BadRecord(f"message index {index} in the header")
        path.append(index)
    return tuple(path), rest


def _zigzag(data: memoryview) -> tuple[int, memoryview]:
    number = 0
    for position, byte in enumerate(data[:5]):
        number |= (byte & 0x7F) << 7 * position
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), data[position + 1 :]
    raise BadRecord("the message indexes in the header are cut off")
