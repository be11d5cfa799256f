"""A record of an internal topic: a typed key, and a typed value or None for a tombstone.

A key begins with the number of its record type, a value with its version (Kafka's coordinator
record schemas). `Codec` turns both into bytes and back.
Invariant: bytes of another version of Kafka end in a record, in None for a type that is not known
here, or in `MalformedMessage`; unknown tagged fields are no error.
"""

import struct
from collections.abc import Callable, Generator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from suwi.wire.errors import MalformedMessage
from suwi.wire.primitives import Reader, run_to_end

_INT16: Final = struct.Struct(">h")

Decode: TypeAlias = Callable[[Reader], Any]


class CoordinatorRecord(NamedTuple):
    key: Any
    value: Any | None
    """None: the key's state is deleted."""


class RecordType(NamedTuple):
    """How the keys and values of one type are read."""

    read_key: Decode
    read_value: Callable[[Reader, int], Any]
    value_version_max: int
    read_plain: Callable[[bytes, bytes | None], CoordinatorRecord | None] | None = None
    """Reads a record of the usual form at once; None for any other."""
    is_read_in_slices: bool = False
    """Whether `read_value` makes a generator. Then values are written with `encoding`, too."""


def encode_in_slices(
    record: CoordinatorRecord,
) -> Generator[None, None, tuple[bytes, bytes | None]]:
    """In slices, where the value may have many items."""
    key, value = record
    if value is None:
        return key.encode(), None
    in_slices = getattr(value, "encoding", None)
    return key.encode(), value.encode() if in_slices is None else (yield from in_slices())


class Codec:
    def __init__(self, types: Mapping[int, RecordType]) -> None:
        self._types = types

    def encode(self, record: CoordinatorRecord) -> tuple[bytes, bytes | None]:
        return run_to_end(self.encoding(record))

    def encoding(
        self, record: CoordinatorRecord
    ) -> Generator[None, None, tuple[bytes, bytes | None]]:
        return encode_in_slices(record)

    def decode(self, key: bytes, value: bytes | None) -> CoordinatorRecord | None:
        """None for a type that is not known here. Raises `MalformedMessage`."""
        return run_to_end(self.decoding(key, value))

    def decoding(
        self, key: bytes, value: bytes | None
    ) -> Generator[None, None, CoordinatorRecord | None]:
        """As `decode`, in slices."""
        try:
            return (yield from self._decode(key, value))
        except (IndexError, UnicodeDecodeError, struct.error) as error:
            raise MalformedMessage(f"a coordinator record that cannot be read: {error}") from error

    def _decode(
        self, key: bytes, value: bytes | None
    ) -> Generator[None, None, CoordinatorRecord | None]:
        (number,) = _INT16.unpack_from(key)
        record_type = self._types.get(number)
        if record_type is None:
            return None
        if record_type.read_plain is not None:
            plain = record_type.read_plain(key, value)
            if plain is not None:
                return plain
        reader = Reader(memoryview(key), _INT16.size)
        decoded_key = record_type.read_key(reader)
        if value is None:
            return CoordinatorRecord(decoded_key, None)
        reader = Reader(memoryview(value))
        (version,) = reader.unpack(_INT16)
        if not 0 <= version <= record_type.value_version_max:
            raise MalformedMessage(f"version {version} of a value of record type {number}")
        decoded = record_type.read_value(reader, version)
        if record_type.is_read_in_slices:
            decoded = yield from decoded
        return CoordinatorRecord(decoded_key, decoded)
