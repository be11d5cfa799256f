"""Protobuf values, by Google's own library, with no generated code: from descriptors.

The message is read as we know it, whatever newer fields it was written with: that is what field
numbers are for. Columns: enums are their names, unsigned numbers the next wider type, `Timestamp`,
`Duration` and the wrappers what they stand for; fields with presence are null where they are not
set. Refused: messages that contain themselves.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from suwi.env import local_env
from suwi.spark.decoders.confluent import FIRST_MESSAGE, split_header, split_message_index
from suwi.spark.decoders.in_python import Decoder
from suwi.spark.decoders.parsed import BadRecord, CannotDecode
from suwi.spark.decoders.registry import (
    Registry,
    Schema,
    newest_schema,
    referenced_schema,
    schema_by_id,
)

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

_WELL_KNOWN = "google/protobuf/"
_TYPES = "any api duration empty field_mask source_context struct timestamp type wrappers"
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
    try:
        import google.protobuf.descriptor_pb2  # noqa: F401
    except ImportError:
        raise CannotDecode("Protobuf needs its package: `pip install suwi[protobuf]`") from None
    if descriptor is not None:
        if not isinstance(protobuf, str):
            raise CannotDecode("protobuf= must name the message, such as 'shop.Order'")
        name, files = protobuf, _descriptor_bytes(descriptor)
    elif registry is not None and subject is not None:
        first, files = _from_registry(registry, subject)
        name = protobuf if isinstance(protobuf, str) else first
    else:
        raise CannotDecode("a message is defined in a descriptor, or in a registry under a subject")
    form = ProtobufFormat(files, name, registry, has_header)
    _ = form.schema  # What is wrong with it is said now.
    return form


def _descriptor_bytes(descriptor: str | bytes) -> bytes:
    if isinstance(descriptor, bytes):
        return descriptor
    try:
        return local_env().disk.read_bytes(descriptor)
    except OSError as error:
        raise CannotDecode(f"{descriptor}: {error.strerror}") from None


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
            file = _file(schema)
            if file is not None:
                found = _name_at(file, path)
                if found != self._form.message:
                    raise BadRecord(f"it is a message {found}, not {self._form.message}")
        self._checked.add((schema_id, path))


# -- descriptors from a registry -----------------------------------------------------------------


def _from_registry(registry: Registry, subject: str) -> tuple[str, bytes]:
    """The name of the first message of a subject's newest schema, and its files."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    schema = newest_schema(registry, subject, serialized=True)
    if schema.kind != "PROTOBUF":
        raise CannotDecode(f"the schema of {subject!r} is {schema.kind}, not PROTOBUF")
    file = _file(schema)
    if file is None:
        raise CannotDecode(
            f"the schema registry at {registry.url} gives schemas as text only: "
            "name a descriptor instead"
        )
    files = FileDescriptorSet()
    try:
        _add_references(files, schema, registry, set())
        first = _name_at(file, FIRST_MESSAGE)
    except BadRecord as error:
        raise CannotDecode(str(error)) from None
    files.file.append(file)
    return first, files.SerializeToString()


def _add_references(
    files: FileDescriptorSet, schema: Schema, registry: Registry, seen: set[str]
) -> None:
    """Those that others build on come first."""
    for reference in schema.references:
        if reference.name in seen:
            continue
        seen.add(reference.name)
        found = referenced_schema(registry, reference, serialized=True)
        _add_references(files, found, registry, seen)
        file = _file(found)
        if file is None:
            raise BadRecord(f"the schema registry gives {reference.name!r} as text only")
        file.name = reference.name
        files.file.append(file)


def _file(schema: Schema) -> FileDescriptorProto | None:
    """None where the registry answered with the text of a .proto file."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import DecodeError

    if schema.kind != "PROTOBUF":
        raise BadRecord(f"schema {schema.id} is {schema.kind}, not PROTOBUF")
    file = FileDescriptorProto()
    try:
        file.ParseFromString(base64.b64decode(schema.text, validate=True))
    except (binascii.Error, ValueError, DecodeError):
        return None
    file.name = file.name or f"schema-{schema.id}.proto"
    return file


def _name_at(file: FileDescriptorProto, path: tuple[int, ...]) -> str:
    names, level = [file.package] if file.package else [], file.message_type
    for index in path:
        if index >= len(level):
            raise BadRecord(f"its header names message {list(path)}, which the schema has not")
        names.append(level[index].name)
        level = level[index].nested_type
    return ".".join(names)


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
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message import DecodeError

    pool, given = DescriptorPool(), FileDescriptorSet()
    try:
        given.ParseFromString(files)
        own = [file for file in given.file if not file.name.startswith(_WELL_KNOWN)]
        for file in [*_well_known(), *own]:
            pool.Add(file)
        descriptor = pool.FindMessageTypeByName(name)
    except DecodeError:
        raise CannotDecode(
            "the descriptor is not what protoc --descriptor_set_out writes"
        ) from None
    except KeyError:
        listed = ", ".join(_names(given)) or "none"
        raise CannotDecode(f"there is no message {name!r}; there are: {listed}") from None
    except TypeError as error:
        raise CannotDecode(
            f"the descriptor is incomplete (protoc has --include_imports): {error}"
        ) from None
    kind, row = _struct(descriptor, ())
    return _Message(kind, message_factory.GetMessageClass(descriptor), row)


def _well_known() -> Iterator[FileDescriptorProto]:
    """Google's own types, which registries and descriptors may leave out."""
    import importlib

    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    for word in sorted(_TYPES.split(), key=lambda word: (word in ("api", "type"), word == "api")):
        file = FileDescriptorProto()
        importlib.import_module(f"google.protobuf.{word}_pb2").DESCRIPTOR.CopyToProto(file)
        yield file


def _names(files: FileDescriptorSet) -> list[str]:
    return [
        f"{file.package}.{message.name}".lstrip(".")
        for file in files.file
        for message in file.message_type
        if not file.name.startswith(_WELL_KNOWN)
    ]


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
