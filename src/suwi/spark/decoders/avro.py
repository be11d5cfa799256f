"""Avro values, by fastavro: read with the schema they were written with, resolved to ours.

Columns are what Spark's own Avro functions make of a schema: unions with null are nullable columns,
`date`, `timestamp-*`, `local-timestamp-*` and `decimal` have types of their own, other logical
types are the plain type beneath them. Refused: recursive records, unions of several types.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa

from suwi.decoders.avro import complete_schema, load_schema, require_fastavro
from suwi.decoders.confluent import split_header
from suwi.decoders.errors import BadRecord, CannotDecode
from suwi.decoders.registry import Registry, newest_schema, schema_by_id
from suwi.env import local_env
from suwi.spark.decoders.in_python import Decoder

_PLAIN = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
}
# As numbers, of days and microseconds: fastavro's own datetimes end with the year 9999, and what is
# beyond would be no record of the schema. So these types have names here that it does not know.
_OURS = "suwi-"
_LOGICAL = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("us", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
}
_WIDER = {frozenset(("int", "long")): "long", frozenset(("float", "double")): "double"}
_DECIMAL_DIGITS_MAX = 38
_VALUE = "value"

Convert = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class AvroFormat:
    reader: str
    """The schema that says which columns there are, as JSON."""
    registry: Registry | None
    has_header: bool

    @property
    def schema(self) -> pa.Schema:
        return _columns(self.reader).schema

    def open(self) -> Decoder:
        return _Decoder(self)


def avro_format(
    avro: str | dict[str, Any] | bool | None,
    registry: Registry | None,
    subject: str | None,
    has_header: bool,
) -> AvroFormat:
    """Raises `CannotDecode` and `RegistryUnavailable`."""
    require_fastavro()
    if avro is True:
        if registry is None or subject is None:
            raise CannotDecode("avro=True takes the schema from a registry: give it and a subject")
        try:
            text = json.dumps(complete_schema(newest_schema(registry, subject), registry))
        except BadRecord as error:
            raise CannotDecode(str(error)) from None
    elif isinstance(avro, dict):
        text = json.dumps(avro)
    else:
        assert isinstance(avro, str)
        text = avro
        if avro.endswith(".avsc"):
            try:
                text = local_env().disk.read_bytes(avro).decode()
            except (OSError, UnicodeDecodeError) as error:
                raise CannotDecode(f"{avro}: {error}") from None
    form = AvroFormat(text, registry, has_header)
    _ = form.schema  # What is wrong with it is said now.
    return form


class _Decoder:
    def __init__(self, form: AvroFormat) -> None:
        self._form = form
        self._columns = _columns(form.reader)
        self._reader = _parsed(form.reader)
        self._writers: dict[int, Any] = {}

    def __call__(self, value: bytes) -> dict[str, Any]:
        from fastavro import schemaless_reader

        writer, body = self._reader, memoryview(value)
        if self._form.has_header:
            schema_id, body = split_header(value)
            writer = self._writer(schema_id)
        stream = io.BytesIO(body)
        try:
            found = schemaless_reader(
                stream, writer, None if writer is self._reader else self._reader
            )
        except Exception as error:
            # Bytes that are something else fail in many ways: EOFError, IndexError, …
            text = str(error) or type(error).__name__
            raise BadRecord(f"not an Avro record of this schema: {text}") from None
        left = len(body) - stream.tell()
        if left:
            raise BadRecord(f"not an Avro record of this schema: {left} bytes too many")
        row: dict[str, Any] = self._columns.convert(found)
        return row

    def _writer(self, schema_id: int) -> Any:
        """The schema a record was written with; ours if there is no registry to ask."""
        if self._form.registry is None:
            return self._reader
        if schema_id not in self._writers:
            schema = schema_by_id(self._form.registry, schema_id)
            try:
                text = json.dumps(complete_schema(schema, self._form.registry))
                self._writers[schema_id] = _parsed(text)
            except CannotDecode as error:
                raise BadRecord(f"schema {schema_id}: {error}") from None
        return self._writers[schema_id]


def _parsed(text: str) -> Any:
    from fastavro import parse_schema
    from fastavro.read import LOGICAL_READERS
    from fastavro.schema import SchemaParseException, UnknownType

    for name in ("timestamp-millis", "local-timestamp-millis"):
        LOGICAL_READERS[f"long-{_OURS}{name}"] = _to_micros
    try:
        parsed = parse_schema(_with_our_types(load_schema(text)))
    except (SchemaParseException, UnknownType, KeyError, TypeError, AttributeError) as error:
        raise CannotDecode(f"the Avro schema is not understood: {error!r}") from None
    _refuse_recursion(parsed, ())
    return parsed


def _refuse_recursion(schema: Any, inside: tuple[str, ...]) -> None:
    """No columns can hold a record that contains itself, and a value of it that is nested deeply
    ends the process: fastavro has no bound. A name is defined before it is used, so only the
    records around a name can be meant by it again. Raises `CannotDecode`.
    """
    match schema:
        case str() if schema in inside:
            raise CannotDecode(f"record {schema} contains itself: no columns can hold that")
        case list():
            for one in schema:
                _refuse_recursion(one, inside)
        case {"fields": fields, "name": name}:
            for field in fields:
                _refuse_recursion(field["type"], (*inside, name))
        case dict():
            for key in ("type", "items", "values"):
                _refuse_recursion(schema.get(key), inside)


def _with_our_types(schema: Any) -> Any:
    """Without logical types that have no column type: fastavro would make objects of them."""
    if isinstance(schema, list):
        return [_with_our_types(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: _with_our_types(value) for key, value in schema.items() if key != "default"}
    if "default" in schema:
        kept["default"] = schema["default"]
    logical = kept.pop("logicalType", None)
    if logical == "decimal":
        kept["logicalType"] = logical
    elif logical in _LOGICAL:
        kept["logicalType"] = f"{_OURS}{logical}"
    return kept


def _to_micros(millis: int, *_: Any) -> int:
    return millis * 1000


# -- columns -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Columns:
    schema: pa.Schema
    convert: Convert
    """From what fastavro gives to what Arrow takes."""


@dataclass(frozen=True, slots=True)
class _Kind:
    type: pa.DataType
    convert: Convert | None = None


@lru_cache(maxsize=64)
def _columns(text: str) -> _Columns:
    found = _Types().kind(_parsed(text))
    if pa.types.is_struct(found.type):
        return _Columns(pa.schema(list(found.type)), found.convert or (lambda row: row))
    convert = found.convert or (lambda value: value)
    return _Columns(pa.schema([(_VALUE, found.type)]), lambda value: {_VALUE: convert(value)})


class _Types:
    """Avro types as Arrow types; names are known after they were defined."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}

    def kind(self, schema: Any) -> _Kind:
        if isinstance(schema, list):
            return self._union(schema)
        if isinstance(schema, str):
            if schema in _PLAIN:
                return _Kind(_PLAIN[schema])
            if schema not in self._named:
                raise CannotDecode(f"the Avro type {schema!r} has no column type")
            return self.kind(self._named[schema])
        logical = schema.get("logicalType", "").removeprefix(_OURS)
        if logical in _LOGICAL:
            return _Kind(_LOGICAL[logical])
        if logical == "decimal":
            digits = schema["precision"]
            if digits > _DECIMAL_DIGITS_MAX:
                raise CannotDecode(f"a decimal of {digits} digits; columns have 38 at most")
            return _Kind(pa.decimal128(digits, schema.get("scale", 0)))
        match schema["type"]:
            case "record" | "error":
                return self._record(schema)
            case "enum":
                self._named[schema["name"]] = schema
                return _Kind(pa.string())
            case "fixed":
                self._named[schema["name"]] = schema
                return _Kind(pa.binary())
            case "array":
                return _list_of(self.kind(schema["items"]))
            case "map":
                return _map_of(self.kind(schema["values"]))
            case other:
                return self.kind(other)

    def _record(self, schema: dict[str, Any]) -> _Kind:
        name = schema["name"]
        self._named[name] = schema
        fields = {f["name"]: self.kind(f["type"]) for f in schema["fields"]}
        if not fields:
            raise CannotDecode(f"record {name} has no fields")
        struct = pa.struct([(field, kind.type) for field, kind in fields.items()])
        converts = {field: kind.convert for field, kind in fields.items() if kind.convert}
        if not converts:
            return _Kind(struct)

        def convert(row: dict[str, Any]) -> dict[str, Any]:
            for field, one in converts.items():
                if row[field] is not None:
                    row[field] = one(row[field])
            return row

        return _Kind(struct, convert)

    def _union(self, members: list[Any]) -> _Kind:
        kinds = [member for member in members if member != "null"]
        if len(kinds) == 1:
            return self.kind(kinds[0])
        if all(isinstance(member, str) for member in kinds):
            wider = _WIDER.get(frozenset(kinds))
            if wider is not None:
                return _Kind(_PLAIN[wider])
        raise CannotDecode("a union of several types has no column type: decode it yourself")


def _list_of(item: _Kind) -> _Kind:
    one = item.convert
    if one is None:
        return _Kind(pa.list_(item.type))
    return _Kind(pa.list_(item.type), lambda values: [v if v is None else one(v) for v in values])


def _map_of(item: _Kind) -> _Kind:
    one = item.convert or (lambda value: value)
    return _Kind(
        pa.map_(pa.string(), item.type),
        lambda found: [(key, v if v is None else one(v)) for key, v in found.items()],
    )
