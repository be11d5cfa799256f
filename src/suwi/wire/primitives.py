"""Kafka's primitive types: a bounds-checked reader, and encoders.

Invariant: a length or count is compared with the bytes left before it is used.
"""

import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from suwi.wire.errors import MalformedMessage, TooManyItems

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_UVARINT_BITS_MAX: Final = 31  # lengths, counts and tags are non-negative int32
# Kafka's limit, even where the length is a varint.
STRING_BYTES_MAX: Final = 32_767
_ITEMS_UNLIMITED: Final = 2**62
_CACHED_CHARS_MAX: Final = 249
# Of one structure. Few tags are defined; each unknown one takes time to skip.
TAGS_MAX: Final = 1_000

SLICE_ITEMS: Final = 512
"""How much of a large message is decoded at once: one or two milliseconds."""
SLICE_BYTES: Final = 256 * 1024


def uvarint(value: int) -> bytes:
    """An unsigned varint: seven bits per byte, lowest first."""
    if value < 0x80:
        return _ONE_BYTE[value]
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 0x20_0000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_ONE_BYTE: Final = tuple(bytes([value]) for value in range(0x80))


def read_uvarint(buffer: memoryview, at: int) -> tuple[int, int]:
    """The value and the position after it."""
    byte = buffer[at]
    if byte < 0x80:
        return byte, at + 1
    value = byte & 0x7F
    at += 1
    byte = buffer[at]
    if byte < 0x80:
        return value | byte << 7, at + 1
    value |= (byte & 0x7F) << 7
    third = buffer[at + 1]
    if third < 0x80:  # as the size of batches of more than 16 KiB
        return value | third << 14, at + 2
    shift = 14
    while True:
        at += 1
        byte = buffer[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > _UVARINT_BITS_MAX:
            raise MalformedMessage("a varint is longer than five bytes")
    if value >> _UVARINT_BITS_MAX:
        raise MalformedMessage("a varint exceeds the largest int32")
    return value, at + 1


@lru_cache(maxsize=4096)
def uuid_of(data: bytes) -> UUID:
    """The UUID with these 16 bytes. Cached, because creating one takes longer than a request."""
    return UUID(bytes=data)


class SliceCounter:
    """Ends a slice of decoding after a number of items or of bytes.

    Not after a time, so that simulation runs are deterministic.
    """

    __slots__ = ("_end", "_items_left")

    def __init__(self, at: int = 0) -> None:
        self._items_left = SLICE_ITEMS
        self._end = at + SLICE_BYTES

    def is_full(self, at: int, items: int = 1) -> bool:
        """Count items up to the position `at`. True if the slice ends there."""
        self._items_left -= items
        if self._items_left > 0 and at < self._end:
            return False
        self._items_left = SLICE_ITEMS
        self._end = at + SLICE_BYTES
        return True


class Reader:
    """Decodes a message from front to back."""

    __slots__ = ("at", "buffer", "end", "items_left")

    def __init__(
        self,
        buffer: memoryview,
        at: int = 0,
        end: int | None = None,
        items_max: int = _ITEMS_UNLIMITED,
    ) -> None:
        """`items_max` limits all arrays and tags together."""
        self.buffer = buffer
        self.at = at
        self.end = len(buffer) if end is None else end
        self.items_left = items_max

    def take(self, size_bytes: int) -> int:
        """Skip `size_bytes`; return the position where they start."""
        at = self.at
        after = at + size_bytes
        if size_bytes < 0 or after > self.end:
            raise MalformedMessage(f"{size_bytes} bytes announced, {self.end - at} left")
        self.at = after
        return at

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        return layout.unpack_from(self.buffer, self.take(layout.size))

    def uvarint(self) -> int:
        at = self.at
        byte = self.buffer[at]
        if byte < 0x80 and at < self.end:
            self.at = at + 1
            return byte
        value, at = read_uvarint(self.buffer, at)
        if at > self.end:
            raise MalformedMessage("a varint extends past the end")
        self.at = at
        return value

    def uuid(self) -> UUID:
        at = self.take(16)
        return uuid_of(bytes(self.buffer[at : at + 16]))

    def string(self, flexible: bool) -> str:
        value = self.nullable_string(flexible)
        if value is None:
            raise MalformedMessage("null in place of a string")
        return value

    def nullable_string(self, flexible: bool) -> str | None:
        length = self.uvarint() - 1 if flexible else self.unpack(_INT16)[0]
        if length == -1:
            return None
        if length == 0:
            return ""
        if length > STRING_BYTES_MAX:
            raise MalformedMessage(f"a string of {length} bytes is too long")
        at = self.take(length)
        return str(self.buffer[at : at + length], "utf-8")

    def nullable_bytes(self, flexible: bool) -> memoryview | None:
        """A slice of the buffer: no copy."""
        length = self.uvarint() - 1 if flexible else self.unpack(_INT32)[0]
        if length == -1:
            return None
        at = self.take(length)
        return self.buffer[at : at + length]

    def count(self, flexible: bool, item_bytes_min: int) -> int:
        count = self.nullable_count(flexible, item_bytes_min)
        if count is None:
            raise MalformedMessage("null in place of an array")
        return count

    def nullable_count(self, flexible: bool, item_bytes_min: int) -> int | None:
        """The number of items of an array; `item_bytes_min` is the minimum size of an item."""
        count: int = self.uvarint() - 1 if flexible else self.unpack(_INT32)[0]
        if count == -1:
            return None
        if count < 0 or count * item_bytes_min > self.end - self.at:
            raise MalformedMessage(f"{count} items announced, {self.end - self.at} bytes left")
        if count:
            self._count_items(count)
        return count

    def _count_items(self, items: int) -> None:
        self.items_left -= items
        if self.items_left < 0:
            raise TooManyItems(f"too many items: {items} more")

    def tags(self) -> Iterator[tuple[int, "Reader"]]:
        """Each tag with a reader of its value. A value that is not read is skipped."""
        count = self.uvarint()
        if count > TAGS_MAX:
            raise MalformedMessage(f"{count} tags")
        self._count_items(count)
        for _ in range(count):
            tag = self.uvarint()
            size_bytes = self.uvarint()
            at = self.take(size_bytes)
            yield tag, Reader(self.buffer, at, at + size_bytes)

    def skip_tags(self) -> None:
        at = self.at
        if at < self.end and not self.buffer[at]:
            self.at = at + 1
            return
        for _ in self.tags():
            pass


def compact_string(value: str | None) -> bytes:
    if value is None:
        return b"\0"
    data = value.encode()
    return uvarint(len(data) + 1) + data


def legacy_string(value: str | None) -> bytes:
    if value is None:
        return b"\xff\xff"
    data = value.encode()
    return _INT16.pack(len(data)) + data


def string(value: str | None, flexible: bool) -> bytes:
    """An encoded string. Cached, because most strings are topic names that repeat; long ones, which
    no topic has, are not kept."""
    if value is None or len(value) <= _CACHED_CHARS_MAX:
        return _cached_string(value, flexible)
    return compact_string(value) if flexible else legacy_string(value)


@lru_cache(maxsize=4096)
def _cached_string(value: str | None, flexible: bool) -> bytes:
    return compact_string(value) if flexible else legacy_string(value)


def count(value: int | None, flexible: bool) -> bytes:
    """The encoded length of an array or of bytes; None for null."""
    if flexible:
        return b"\0" if value is None else uvarint(value + 1)
    return _INT32.pack(-1 if value is None else value)


def tag_section(fields: dict[int, bytes]) -> bytes:
    """The encoded tagged fields at the end of a flexible structure."""
    if not fields:
        return b"\0"
    out = [uvarint(len(fields))]
    for tag in sorted(fields):
        value = fields[tag]
        out += (uvarint(tag), uvarint(len(value)), value)
    return b"".join(out)
