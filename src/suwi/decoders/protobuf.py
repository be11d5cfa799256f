"""Protobuf: descriptors from a file or a registry, and messages as Python values.

Messages are read by Google's own library with no generated code; it refuses what is nested more
than 100 levels deep.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from suwi.decoders.confluent import FIRST_MESSAGE
from suwi.decoders.errors import BadRecord, CannotDecode
from suwi.decoders.limits import Budget
from suwi.decoders.registry import (
    Registry,
    Schema,
    newest_schema,
    referenced_schema,
    schema_by_id,
)
from suwi.env import local_env

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

_WELL_KNOWN = "google/protobuf/"
_TYPES = "any api duration empty field_mask source_context struct timestamp type wrappers"
_WRAPPERS = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in "Double Float Int64 UInt64 Int32 UInt32 Bool String Bytes".split()
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def require_protobuf() -> None:
    """Raises `CannotDecode`."""
    try:
        import google.protobuf.descriptor_pb2  # noqa: F401
    except ImportError:
        raise CannotDecode("Protobuf needs its package: `pip install suwi[protobuf]`") from None


# -- descriptors ---------------------------------------------------------------------------------


def descriptor_bytes(descriptor: str | bytes) -> bytes:
    """Of a file by its name. Raises `CannotDecode`."""
    if isinstance(descriptor, bytes):
        return descriptor
    try:
        return local_env().disk.read_bytes(descriptor)
    except OSError as error:
        raise CannotDecode(f"{descriptor}: {error.strerror}") from None


def newest_files(registry: Registry, subject: str) -> tuple[str, bytes]:
    """The name of the first message of a subject's newest schema, and its files.

    Raises `CannotDecode`, `RegistryUnavailable`.
    """
    schema = newest_schema(registry, subject, serialized=True)
    if schema.kind != "PROTOBUF":
        raise CannotDecode(f"the schema of {subject!r} is {schema.kind}, not PROTOBUF")
    try:
        return _files(registry, schema, FIRST_MESSAGE)
    except BadRecord as error:
        raise CannotDecode(str(error)) from None


def files_by_id(registry: Registry, schema_id: int, path: tuple[int, ...]) -> tuple[str, bytes]:
    """The name of the message at a place of a schema, and the files that define it.

    Raises `BadRecord`, `CannotDecode`, `RegistryUnavailable`.
    """
    return _files(registry, schema_by_id(registry, schema_id, serialized=True), path)


def _files(registry: Registry, schema: Schema, path: tuple[int, ...]) -> tuple[str, bytes]:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    file = file_of(schema)
    if file is None:
        raise CannotDecode(
            f"the schema registry at {registry.url} gives schemas as text only: "
            "name a descriptor instead"
        )
    files = FileDescriptorSet()
    _add_references(files, schema, registry, set())
    name = name_at(file, path)
    files.file.append(file)
    return name, files.SerializeToString()


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
        file = file_of(found)
        if file is None:
            raise BadRecord(f"the schema registry gives {reference.name!r} as text only")
        file.name = reference.name
        files.file.append(file)


def file_of(schema: Schema) -> FileDescriptorProto | None:
    """None where the registry answered with the text of a .proto file. Raises `BadRecord`."""
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


def name_at(file: FileDescriptorProto, path: tuple[int, ...]) -> str:
    """Raises `BadRecord`."""
    names, level = [file.package] if file.package else [], file.message_type
    for index in path:
        if index >= len(level):
            raise BadRecord(f"its header names message {list(path)}, which the schema has not")
        names.append(level[index].name)
        level = level[index].nested_type
    return ".".join(names)


def find_message(files: bytes, name: str) -> Descriptor:
    """A message of a FileDescriptorSet. Raises `CannotDecode`."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message import DecodeError

    pool, given = DescriptorPool(), FileDescriptorSet()
    try:
        given.ParseFromString(files)
        own = [file for file in given.file if not file.name.startswith(_WELL_KNOWN)]
        for file in [*_well_known(), *own]:
            pool.Add(file)
        return pool.FindMessageTypeByName(name)
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


# -- messages ------------------------------------------------------------------------------------


class MessageType:
    """Reads messages of one type."""

    def __init__(self, files: bytes, name: str) -> None:
        """Raises `CannotDecode`."""
        require_protobuf()
        from google.protobuf import message_factory

        self.name = name
        self._new: Callable[[], Any] = message_factory.GetMessageClass(find_message(files, name))

    def read(self, body: bytes | memoryview) -> dict[str, Any]:
        """Enums are their names, a Timestamp is a moment. A field that tells whether it is set is
        left out where it is not. Raises `BadRecord`."""
        from google.protobuf.message import DecodeError

        message = self._new()
        try:
            message.ParseFromString(bytes(body))
        except DecodeError:
            raise BadRecord(f"not a Protobuf message {self.name}") from None
        return _fields(message, Budget(), 0)


def _fields(message: Any, budget: Budget, depth: int) -> dict[str, Any]:
    fields = message.DESCRIPTOR.fields
    budget.spend(len(fields), depth)
    values: dict[str, Any] = {}
    for field in fields:
        if not field.has_presence:
            values[field.name] = _field(field, getattr(message, field.name), budget, depth + 1)
        elif message.HasField(field.name):
            values[field.name] = _single(field, getattr(message, field.name), budget, depth + 1)
    return values


def _field(field: FieldDescriptor, found: Any, budget: Budget, depth: int) -> Any:
    if not field.is_repeated:
        return _single(field, found, budget, depth)
    budget.spend(len(found), depth)
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        item = entry.fields_by_name["value"]
        return {str(key): _single(item, found[key], budget, depth) for key in found}
    return [_single(field, one, budget, depth) for one in found]


def _single(field: FieldDescriptor, found: Any, budget: Budget, depth: int) -> Any:
    if field.enum_type is not None:
        names = field.enum_type.values_by_number
        return names[found].name if found in names else found
    if field.message_type is None:
        return found
    name = field.message_type.full_name
    if name in ("google.protobuf.Timestamp", "google.protobuf.Duration"):
        try:
            span = timedelta(seconds=found.seconds, microseconds=found.nanos // 1000)
            return _EPOCH + span if name.endswith("Timestamp") else span
        except OverflowError:
            pass  # beyond the calendar: its seconds and nanos
    elif name in _WRAPPERS:
        return found.value
    return _fields(found, budget, depth)
