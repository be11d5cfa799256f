"""Protobuf values, by Google's own library, with no generated code: from descriptors.

The message is read as we know it, whatever newer fields it was written with: that is what field
numbers are for. Columns: enums are their names, unsigned numbers the next wider type, `Timestamp`,
`Duration` and the wrappers what they stand for; fields with presence are null where they are not
set. Refused: messages that contain themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from suwi.decoders.confluent import split_header, split_message_index
from suwi.decoders.errors import BadRecord, CannotDecode
from suwi.decoders.protobuf import (
    descriptor_bytes,
    file_of,
    find_message,
    name_at,
    newest_files,
    require_protobuf,
)
from suwi.decoders.registry import Registry, schema_by_id
from suwi.spark.decoders.in_python import Decoder

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class ProtobufFormat:
    files: bytes
    """A FileDescriptorSet with all that the message is made of."""
    message: str
    registry: Registry | None
    has_header: bool

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(list(_message(self.files, self.message).type))

    def open(self) -> Decoder:
        return _Decoder(self)


def protobuf_format(
    protobuf: str | bool | None,
    descriptor: str | bytes | None,
    registry: Registry | None,
    subject: str | None,
    has_header: bool,
) -> ProtobufFormat:
    """Raises `CannotDecode` and `RegistryUnavailable`."""
    require_protobuf()
    if descriptor is not None:
        if not isinstance(protobuf, str):
            raise CannotDecode("protobuf= must name the message, such as 'shop.Order'")
        name, files = protobuf, descriptor_bytes(descriptor)
    elif registry is not None and subject is not None:
        first, files = newest_files(registry, subject)
        name = protobuf if isinstance(protobuf, str) else first
    else:
        raise CannotDecode("a message is defined in a descriptor, or in a registry under a subject")
    form = ProtobufFormat(files, name, registry, has_header)
    _ = form.schema  # What is wrong with it is said now.
    return form


class _Decoder:
    def __init__(self, form: ProtobufFormat) -> None:
        self._form = form
        self._message = _message(form.files, form.message)
        self._checked: set[tuple[int, tuple[int, ...]]] = set()

    def __call__(self, value: bytes) -> dict[str, Any]:
        from google.protobuf.message import DecodeError

        body = memoryview(value)
        if self._form.has_header:
            schema_id, rest = split_header(value)
            path, body = split_message_index(rest)
            if (schema_id, path) not in self._checked:
                self._check(schema_id, path)
        message = self._message.new()
        try:
            message.ParseFromString(bytes(body))
        except DecodeError:
            raise BadRecord(f"not a Protobuf message {self._form.message}") from None
        return self._message.row(message)

    def _check(self, schema_id: int, path: tuple[int, ...]) -> None:
        """That the record is the message that is wanted, as far as the registry can tell."""
        if self._form.registry is not None:
            schema = schema_by_id(self._form.registry, schema_id, serialized=True)
            file = file_of(schema)
            if file is not None:
                found = name_at(file, path)
                if found != self._form.message:
                    raise BadRecord(f"it is a message {found}, not {self._form.message}")
        self._checked.add((schema_id, path))


# -- messages as columns -------------------------------------------------------------------------

Read = Callable[[Any], Any]
"""From a field's value to what Arrow takes."""


@dataclass(frozen=True, slots=True)
class _Message:
    type: pa.StructType
    new: Callable[[], Any]
    row: Callable[[Any], dict[str, Any]]


@lru_cache(maxsize=64)
def _message(files: bytes, name: str) -> _Message:
    from google.protobuf import message_factory

    descriptor = find_message(files, name)
    kind, row = _struct(descriptor, ())
    return _Message(kind, message_factory.GetMessageClass(descriptor), row)


def _struct(
    message: Descriptor, inside: tuple[str, ...]
) -> tuple[pa.StructType, Callable[[Any], dict[str, Any]]]:
    if message.full_name in inside:
        raise CannotDecode(f"message {message.full_name} contains itself: no columns can hold that")
    if not message.fields:
        raise CannotDecode(f"message {message.full_name} has no fields")
    inside = (*inside, message.full_name)
    types: list[tuple[str, pa.DataType]] = []
    always: list[tuple[str, Read]] = []
    if_set: list[tuple[str, Read]] = []
    for field in message.fields:
        kind, read = _field(field, inside)
        types.append((field.name, kind))
        (if_set if field.has_presence else always).append((field.name, read))

    def row(found: Any) -> dict[str, Any]:
        values = {name: read(getattr(found, name)) for name, read in always}
        for name, read in if_set:
            values[name] = read(getattr(found, name)) if found.HasField(name) else None
        return values

    return pa.struct(types), row


def _field(field: FieldDescriptor, inside: tuple[str, ...]) -> tuple[pa.DataType, Read]:
    if not field.is_repeated:
        return _single(field, inside)
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        key, read_key = _single(entry.fields_by_name["key"], inside)
        item, read_item = _single(entry.fields_by_name["value"], inside)
        return pa.map_(key, item), lambda found: [(read_key(k), read_item(found[k])) for k in found]
    kind, read = _single(field, inside)
    return pa.list_(kind), lambda found: [read(one) for one in found]


def _single(field: FieldDescriptor, inside: tuple[str, ...]) -> tuple[pa.DataType, Read]:
    if field.enum_type is not None:
        names = field.enum_type.values_by_number
        return pa.string(), lambda number: names[number].name if number in names else str(number)
    if field.message_type is not None:
        name = field.message_type.full_name
        if name == "google.protobuf.Timestamp":
            return pa.timestamp("us", "UTC"), _micros
        if name == "google.protobuf.Duration":
            return pa.duration("us"), _micros
        if name.startswith("google.protobuf.") and name.endswith("Value"):
            wrapped = field.message_type.fields_by_name.get("value")
            if wrapped is not None and len(field.message_type.fields) == 1:
                kind, read = _single(wrapped, inside)
                return kind, lambda found: read(found.value)
        return _struct(field.message_type, inside)
    return _scalars()[field.type]


def _micros(found: Any) -> int:
    micros: int = found.seconds * _MILLION + found.nanos // 1000
    return micros


@lru_cache(maxsize=1)
def _scalars() -> dict[int, tuple[pa.DataType, Read]]:
    from google.protobuf.descriptor import FieldDescriptor as Field

    def same(value: Any) -> Any:
        return value

    kinds: dict[int, tuple[pa.DataType, Read]] = {
        Field.TYPE_DOUBLE: (pa.float64(), same),
        Field.TYPE_FLOAT: (pa.float32(), same),
        Field.TYPE_BOOL: (pa.bool_(), same),
        Field.TYPE_STRING: (pa.string(), same),
        Field.TYPE_BYTES: (pa.binary(), same),
    }
    for type_ in (Field.TYPE_INT32, Field.TYPE_SINT32, Field.TYPE_SFIXED32):
        kinds[type_] = (pa.int32(), same)
    for type_ in (
        Field.TYPE_INT64,
        Field.TYPE_SINT64,
        Field.TYPE_SFIXED64,
        Field.TYPE_UINT32,
        Field.TYPE_FIXED32,
    ):
        kinds[type_] = (pa.int64(), same)
    for type_ in (Field.TYPE_UINT64, Field.TYPE_FIXED64):
        kinds[type_] = (pa.decimal128(20, 0), Decimal)
    return kinds
