"""Encodes messages from plain dicts, with encoders compiled per message version from kio's schemas.

`compile_encoder` makes an encoder. The dicts have the fields of all versions at once: fields that
the version does not have are left out, missing ones take the schema's default. The items of a
large array may be already encoded (`EncodedItems`).
Invariant: the bytes equal those of kio's own writer; encoding takes about a quarter of its time.
"""

import struct
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias

from suwi.wire.errors import InvalidFields
from suwi.wire.primitives import tag_section, uvarint
from suwi.wire.schema import FIXED, REQUIRED, UUID_BYTES, Field, Structure

Fields: TypeAlias = Mapping[str, Any]
Path: TypeAlias = tuple[str, ...]
_Write: TypeAlias = Callable[[Any, list[bytes]], None]
# Raises `InvalidFields` for names that no version has at this path.
CheckNames: TypeAlias = Callable[[Path, Collection[str]], None]

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_MILLISECOND: Final = timedelta(milliseconds=1)
_NO_UUID: Final = bytes(UUID_BYTES)
_WRONG_VALUE: Final = (TypeError, ValueError, AttributeError, struct.error)


class EncodedItems(NamedTuple):
    """The already encoded items of an array; the value of the array in place of the items."""

    length: int
    data: bytes


def compile_encoder(
    structure: Structure, check_names: CheckNames, path: Path = ()
) -> Callable[[Fields], bytes]:
    """`path` locates the structure in its message, for error texts."""
    write = _structure_writer(structure, path, check_names)

    def encode(fields: Fields) -> bytes:
        out: list[bytes] = []
        write(fields, out)
        return b"".join(out)

    return encode


def _structure_writer(structure: Structure, path: Path, check_names: CheckNames) -> _Write:
    steps: list[_Write] = []
    run: list[Field] = []
    for field in structure.fields:
        if not field.is_array and field.kafka_type in FIXED:
            run.append(field)
            continue
        if run:
            steps.append(_fixed_run(run, path))
            run = []
        steps.append(_field_step(field, structure.flexible, path, check_names))
    if run:
        steps.append(_fixed_run(run, path))
    if structure.flexible:
        steps.append(_tags_step(structure, path, check_names))
    accepted = {field.name for field in structure.all_fields()}

    def write(fields: Fields, out: list[bytes]) -> None:
        if not fields.keys() <= accepted:
            foreign = fields.keys() - accepted
            check_names(path, foreign)
            accepted.update(foreign)
        for step in steps:
            step(fields, out)

    return write


def _value(fields: Fields, field: Field, path: Path) -> Any:
    value = fields.get(field.name, field.default)
    if value is REQUIRED:
        raise InvalidFields(f"{'.'.join((*path, field.name))} is missing")
    return value


def _fixed_run(run: list[Field], path: Path) -> _Write:
    """Adjacent fields of fixed size are packed in one call; defaults and times take longer."""
    pack = struct.Struct(">" + "".join(FIXED[field.kafka_type] for field in run)).pack
    names = tuple(field.name for field in run)
    get: Callable[[Fields], Iterable[Any]] = itemgetter(*names)
    if len(names) == 1:
        (name,) = names

        def get(fields: Fields) -> Iterable[Any]:
            return (fields[name],)

    def write(fields: Fields, out: list[bytes]) -> None:
        try:
            out.append(pack(*get(fields)))
        except (KeyError, struct.error, TypeError):
            values = [_number(_value(fields, field, path), field.kafka_type) for field in run]
            try:
                out.append(pack(*values))
            except struct.error as error:
                raise InvalidFields(f"{'.'.join(path)} {names}: {error}") from error

    return write


def _number(value: Any, kafka_type: str) -> Any:
    if isinstance(value, timedelta):
        return value // _MILLISECOND
    if isinstance(value, datetime):
        return round(value.timestamp() * 1000)
    if value is None and kafka_type == "datetime_i64":
        return -1
    return value


def _field_step(field: Field, flexible: bool, path: Path, check_names: CheckNames) -> _Write:
    write = _value_writer(field, flexible, path, check_names)
    name = field.name

    def step(fields: Fields, out: list[bytes]) -> None:
        try:
            value = fields[name]
        except KeyError:
            value = _value(fields, field, path)
        try:
            write(value, out)
        except _WRONG_VALUE as error:
            raise InvalidFields(f"{'.'.join((*path, name))}: {error}") from error

    return step


def _value_writer(field: Field, flexible: bool, path: Path, check_names: CheckNames) -> _Write:
    here = (*path, field.name)
    if field.is_array:
        write = _array_writer(field, flexible, here, check_names)
    else:
        write = _scalar_writer(field, flexible, here, check_names)
    if not field.nullable or (field.kafka_type == "uuid" and not field.is_array):
        return write
    return _nullable(write, _null(field, flexible))


def _null(field: Field, flexible: bool) -> bytes:
    if field.structure is not None and not field.is_array:
        return b"\xff"  # KIP-893
    if flexible:
        return b"\0"
    return b"\xff\xff" if field.kafka_type == "string" and not field.is_array else b"\xff" * 4


def _nullable(write: _Write, null: bytes) -> _Write:
    def write_nullable(value: Any, out: list[bytes]) -> None:
        if value is None:
            out.append(null)
        else:
            write(value, out)

    return write_nullable


def _scalar_writer(field: Field, flexible: bool, path: Path, check_names: CheckNames) -> _Write:
    if field.structure is not None:
        write = _structure_writer(field.structure, path, check_names)
        return _marked(write) if field.nullable and field.tag is None else write
    kafka_type = field.kafka_type
    if kafka_type == "string":
        return _write_compact_string if flexible else _write_string
    if kafka_type == "uuid":
        return _write_uuid
    if kafka_type in FIXED:
        return _number_writer(kafka_type)
    return _write_compact_bytes if flexible else _write_bytes


def _marked(write: _Write) -> _Write:
    def write_marked(value: Any, out: list[bytes]) -> None:
        out.append(b"\1")  # KIP-893
        write(value, out)

    return write_marked


def _number_writer(kafka_type: str) -> _Write:
    pack = struct.Struct(">" + FIXED[kafka_type]).pack

    def write(value: Any, out: list[bytes]) -> None:
        out.append(pack(_number(value, kafka_type)))

    return write


def _write_compact_string(value: Any, out: list[bytes]) -> None:
    data = value.encode()
    out.append(uvarint(len(data) + 1) + data)


def _write_string(value: Any, out: list[bytes]) -> None:
    data = value.encode()
    out.append(_INT16.pack(len(data)) + data)


def _write_compact_bytes(value: Any, out: list[bytes]) -> None:
    out.append(uvarint(len(value) + 1))
    out.append(value)


def _write_bytes(value: Any, out: list[bytes]) -> None:
    out.append(_INT32.pack(len(value)))
    out.append(value)


def _write_uuid(value: Any, out: list[bytes]) -> None:
    out.append(_NO_UUID if value is None else value.bytes)


def _array_writer(field: Field, flexible: bool, path: Path, check_names: CheckNames) -> _Write:
    if field.structure is None and field.kafka_type in FIXED:
        return _number_array_writer(FIXED[field.kafka_type], flexible)
    if field.structure is not None:
        write_item = _structure_writer(field.structure, path, check_names)
    else:
        write_item = _scalar_writer(field, flexible, path, check_names)

    def write(items: Collection[Any], out: list[bytes]) -> None:
        encoded = items if isinstance(items, EncodedItems) else None
        count = len(items) if encoded is None else encoded.length
        out.append(uvarint(count + 1) if flexible else _INT32.pack(count))
        if encoded is not None:
            out.append(encoded.data)
            return
        for item in items:
            write_item(item, out)

    return write


@lru_cache(maxsize=256)
def _packer(layout: str, count: int) -> Callable[..., bytes]:
    return struct.Struct(f">{count}{layout}").pack


def _number_array_writer(layout: str, flexible: bool) -> _Write:
    def write(items: Collection[Any], out: list[bytes]) -> None:
        count = len(items)
        numbers = _packer(layout, count)(*items)
        out.append((uvarint(count + 1) if flexible else _INT32.pack(count)) + numbers)

    return write


def _tags_step(structure: Structure, path: Path, check_names: CheckNames) -> _Write:
    if not structure.tagged:

        def write_none(fields: Fields, out: list[bytes]) -> None:
            out.append(b"\0")

        return write_none
    tagged = [
        (field, _value_writer(field, True, path, check_names), _default_bytes(field, path))
        for field in structure.tagged
    ]

    def write(fields: Fields, out: list[bytes]) -> None:
        values = {}
        for field, write_value, default in tagged:
            value = fields.get(field.name)
            if value is None and (field.default is None or field.name not in fields):
                continue
            encoded: list[bytes] = []
            write_value(value, encoded)
            data = b"".join(encoded)
            if data != default and field.tag is not None:
                values[field.tag] = data
        out.append(tag_section(values))

    return write


def _default_bytes(field: Field, path: Path) -> bytes | None:
    """The encoded default of a tagged field, which is not sent. None if the default is null."""
    if field.default is None:
        return None
    default: Any = field.default
    if field.structure is not None and not field.is_array:
        default = {inner.name: getattr(default, inner.name) for inner in field.structure.fields}
    out: list[bytes] = []
    _value_writer(field, True, path, lambda path, names: None)(default, out)
    return b"".join(out)
