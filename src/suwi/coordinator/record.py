"""A record of an internal topic: a typed key, and a typed value or None for a tombstone.

A key begins with the number of its record type, a value with its version (Kafka's coordinator
record schemas). `Codec` turns both into bytes and back, a `LongValue` in slices.
Invariant: bytes of another version of Kafka give a record, None for an unknown type, or
`MalformedMessage`; unknown tagged fields are ignored.
"""

import struct
from collections.abc import Callable, Generator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from suwi.env.slices import Slices, run_to_end
from suwi.model.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from suwi.wire.errors import MalformedMessage
from suwi.wire.primitives import Reader

_INT16: Final = struct.Struct(">h")
_MALFORMED: Final = (IndexError, UnicodeDecodeError, struct.error)

Decode: TypeAlias = Callable[[Reader], Any]


class LongValue:
    """A value whose encoding may take longer than one iteration of the event loop should."""

    __slots__ = ()

    @property
    def is_long(self) -> bool:
        """Whether it makes an event large that was decided at once."""
        return False

    def encoding(self) -> Slices[bytes]:
        raise NotImplementedError


class CoordinatorRecord(NamedTuple):
    key: Any
    value: Any | None
    """None: the key's state is deleted."""


class RecordFacts(NamedTuple):
    """Where a record lies in the log, and which transaction it belongs to."""

    offset: int
    is_committed: bool = True
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    is_transactional: bool = False


class RecordType(NamedTuple):
    """How the keys and values of one type are read."""

    read_key: Decode
    read_value: Callable[[Reader, int], Any]
    """Gets the version, too. That of a `LongValue` is a generator: it reads in slices."""
    value_version_max: int
    read_plain: Callable[[bytes, bytes | None], CoordinatorRecord | None] | None = None
    """Reads a record of the usual form at once; None for any other."""


def encode_in_slices(record: CoordinatorRecord) -> Slices[tuple[bytes, bytes | None]]:
    key, value = record
    if isinstance(value, LongValue):
        return key.encode(), (yield from value.encoding())
    return key.encode(), None if value is None else value.encode()


class Codec:
    def __init__(self, types: Mapping[int, RecordType]) -> None:
        self._types = types

    def encode(self, record: CoordinatorRecord) -> tuple[bytes, bytes | None]:
        return run_to_end(encode_in_slices(record))

    def decode(self, key: bytes, value: bytes | None) -> CoordinatorRecord | None:
        """None for a type that is not known here. Raises `MalformedMessage`."""
        return self.decode_plain(key, value) or run_to_end(self.decoding(key, value))

    def decode_plain(self, key: bytes, value: bytes | None) -> CoordinatorRecord | None:
        """A record of the usual form, if its type has one; None for any other."""
        record_type = self._types.get(int.from_bytes(key[:2], signed=True))
        if record_type is None or record_type.read_plain is None:
            return None
        try:
            return record_type.read_plain(key, value)
        except _MALFORMED:
            return None  # `decoding` says why.

    def decoding(self, key: bytes, value: bytes | None) -> Slices[CoordinatorRecord | None]:
        """As `decode`, in slices."""
        try:
            (number,) = _INT16.unpack_from(key)
            record_type = self._types.get(number)
            if record_type is None:
                return None
            reader = Reader(memoryview(key), _INT16.size)
            decoded_key = record_type.read_key(reader)
            if value is None:
                return CoordinatorRecord(decoded_key, None)
            reader = Reader(memoryview(value))
            (version,) = reader.unpack(_INT16)
            if not 0 <= version <= record_type.value_version_max:
                raise MalformedMessage(
                    f"unknown version {version} of a value of record type {number}"
                )
            decoded = record_type.read_value(reader, version)
            if isinstance(decoded, Generator):
                decoded = yield from decoded
            return CoordinatorRecord(decoded_key, decoded)
        except _MALFORMED as error:
            raise MalformedMessage(f"a coordinator record cannot be read: {error}") from error
