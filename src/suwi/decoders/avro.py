"""Avro: schemas with those that they refer to, and values read with the schema of their writer.

`AvroSchema.read` reads values itself, because fastavro has no bounds: a value of a schema that
contains itself overflows its stack and ends the process, an array of nulls has any number of items
in a few bytes. fastavro parses the schemas.
"""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from struct import Struct
from typing import Any, Final
from uuid import UUID

from suwi.decoders.errors import BadRecord, CannotDecode, RegistryUnavailable
from suwi.decoders.limits import Budget, is_deeper_than
from suwi.decoders.registry import Registry, Schema, referenced_schema

PRIMITIVES: Final = frozenset("null boolean int long float double bytes string".split())
_SCHEMA_LEVELS_MAX = 256
_REFERENCES_MAX = 1000
_VARINT_BYTES_MAX = 10
_DECIMAL_BYTES_MAX = 64
_FLOAT, _DOUBLE = Struct("<f"), Struct("<d")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def require_fastavro() -> None:
    """Raises `CannotDecode`."""
    try:
        import fastavro  # noqa: F401
    except ImportError:
        raise CannotDecode("Avro needs fastavro: `pip install suwi[avro]`") from None


# -- schemas -------------------------------------------------------------------------------------


def complete_schema(schema: Schema, registry: Registry) -> Any:
    """A schema as JSON, with those that it refers to written out where they are first used.

    Raises `BadRecord`, `CannotDecode`, `RegistryUnavailable`.
    """
    return _Completion(registry).complete(schema, ())


class _Completion:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._references = 0

    def complete(self, schema: Schema, inside: tuple[int, ...]) -> Any:
        """`inside`: the ids of the schemas that refer to it."""
        if schema.kind != "AVRO":
            raise BadRecord(f"schema {schema.id} is {schema.kind}, not AVRO")
        if schema.id in inside:
            raise RegistryUnavailable(f"schema {schema.id} of the registry refers to itself")
        known: dict[str, Any] = {}
        for reference in schema.references:
            self._references += 1
            if self._references > _REFERENCES_MAX:
                raise RegistryUnavailable(f"schema {schema.id} refers to too many others")
            found = referenced_schema(self._registry, reference)
            known[reference.name] = self.complete(found, (*inside, schema.id))
        return _inline(load_schema(schema.text), known)


def _inline(schema: Any, known: dict[str, Any]) -> Any:
    if isinstance(schema, str):
        return known.pop(schema, schema)
    if isinstance(schema, list):
        return [_inline(one, known) for one in schema]
    if not isinstance(schema, dict):
        return schema
    nested = {
        key: _inline(schema[key], known) for key in ("type", "items", "values") if key in schema
    }
    if isinstance(schema.get("fields"), list):
        nested["fields"] = [_inline(one, known) for one in schema["fields"]]
    return {**schema, **nested}


def load_schema(text: str) -> Any:
    """Raises `CannotDecode`."""
    try:
        schema = json.loads(text)
    except RecursionError:
        schema = None
    except ValueError:
        if text in PRIMITIVES:
            return text  # Some registries write `string` without quotes.
        raise CannotDecode(f"the Avro schema is not JSON: {text[:100]!r}") from None
    if schema is None or is_deeper_than(_SCHEMA_LEVELS_MAX, schema):
        raise CannotDecode(f"the Avro schema has more than {_SCHEMA_LEVELS_MAX} levels")
    return schema


class AvroSchema:
    """Reads values that were written with one schema."""

    def __init__(self, text: str) -> None:
        """Raises `CannotDecode`."""
        require_fastavro()
        from fastavro import parse_schema

        self._named: dict[str, Any] = {}
        try:
            self._schema = parse_schema(load_schema(text), self._named, _write_hint=False)
        except CannotDecode:
            raise
        except Exception as error:  # A schema can be wrong in many ways: KeyError, TypeError, …
            raise CannotDecode(f"the Avro schema is not understood: {error!r}") from None

    @property
    def name(self) -> str:
        schema = self._schema
        if isinstance(schema, dict):
            return str(schema.get("name") or schema["type"])
        return "union" if isinstance(schema, list) else str(schema)

    def read(self, body: bytes | memoryview) -> Any:
        """Logical types are dates, times and Decimals; beyond the calendar they are numbers.

        Raises `BadRecord`.
        """
        reader = _Reader(bytes(body), self._named)
        try:
            value = reader.value(self._schema, 0)
        except (LookupError, TypeError, AttributeError) as error:  # of what fastavro lets pass
            raise BadRecord(f"the Avro schema is not understood: {error!r}") from None
        if reader.left:
            raise _not_of_this_schema(f"{reader.left} bytes too many")
        return value


def _not_of_this_schema(reason: str) -> BadRecord:
    return BadRecord(f"not an Avro value of this schema: {reason}")


# -- values --------------------------------------------------------------------------------------


class _Reader:
    def __init__(self, data: bytes, named: dict[str, Any]) -> None:
        self._data = data
        self._at = 0
        self._named = named
        self._budget = Budget()

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def value(self, schema: Any, depth: int) -> Any:
        self._budget.spend(1, depth)
        if isinstance(schema, list):
            return self.value(schema[self._index(schema, "branch")], depth + 1)
        if isinstance(schema, str):
            if schema in PRIMITIVES:
                return self._primitive(schema)
            return self.value(self._named[schema], depth)
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self.value(kind, depth + 1)
        match kind:
            case "record" | "error":
                return {f["name"]: self.value(f["type"], depth + 1) for f in schema["fields"]}
            case "array":
                items: list[Any] = []
                self._blocks(lambda: items.append(self.value(schema["items"], depth + 1)))
                return items
            case "map":
                entries: dict[str, Any] = {}

                def add() -> None:
                    key = self._string()
                    entries[key] = self.value(schema["values"], depth + 1)

                self._blocks(add)
                return entries
            case "enum":
                return schema["symbols"][self._index(schema["symbols"], "symbol")]
            case "fixed":
                value: Any = self._take(schema["size"])
            case _:
                value = self.value(kind, depth)
        return _logical(schema, value)

    def _primitive(self, kind: str) -> Any:
        match kind:
            case "null":
                return None
            case "boolean":
                return self._take(1) != b"\0"
            case "int" | "long":
                return self._long()
            case "float":
                return _FLOAT.unpack(self._take(_FLOAT.size))[0]
            case "double":
                return _DOUBLE.unpack(self._take(_DOUBLE.size))[0]
            case "bytes":
                return self._take(self._long())
        return self._string()

    def _blocks(self, read_item: Callable[[], None]) -> None:
        while count := self._long():
            if count < 0:  # A block that says how long it is, to be skipped.
                self._long()
            for _ in range(abs(count)):
                read_item()

    def _index(self, choices: list[Any], noun: str) -> int:
        index = self._long()
        if not 0 <= index < len(choices):
            raise _not_of_this_schema(f"{noun} {index} of {len(choices)}")
        return index

    def _string(self) -> str:
        try:
            return self._take(self._long()).decode()
        except UnicodeDecodeError:
            raise _not_of_this_schema("a string is not in UTF-8") from None

    def _take(self, size: int) -> bytes:
        if not 0 <= size <= self.left:
            raise _not_of_this_schema(f"{size} bytes are expected where {self.left} are left")
        self._at += size
        return self._data[self._at - size : self._at]

    def _long(self) -> int:
        number = 0
        for position, byte in enumerate(self._data[self._at : self._at + _VARINT_BYTES_MAX]):
            number |= (byte & 0x7F) << 7 * position
            if byte < 0x80:
                self._at += position + 1
                return (number >> 1) ^ -(number & 1)
        raise _not_of_this_schema("a number is cut off")


def _logical(schema: dict[str, Any], value: Any) -> Any:
    """The value that a logical type stands for; the plain one where it stands for none."""
    kind = schema.get("logicalType")
    try:
        match kind:
            case "date":
                return _EPOCH.date() + timedelta(days=value)
            case "timestamp-millis" | "local-timestamp-millis":
                moment = _EPOCH + timedelta(milliseconds=value)
            case "timestamp-micros" | "local-timestamp-micros":
                moment = _EPOCH + timedelta(microseconds=value)
            case "time-millis" | "time-micros":
                unit = 1000 if kind == "time-millis" else 1
                of_day = _EPOCH + timedelta(microseconds=value * unit)
                return of_day.time() if of_day.date() == _EPOCH.date() else value
            case "decimal" if len(value) <= _DECIMAL_BYTES_MAX:
                number = int.from_bytes(value, "big", signed=True)
                digits = tuple(map(int, str(abs(number))))
                return Decimal((int(number < 0), digits, -int(schema.get("scale", 0))))
            case "uuid" if isinstance(value, bytes):
                return str(UUID(bytes=value))
            case _:
                return value
        return moment if kind.startswith("timestamp") else moment.replace(tzinfo=None)
    except (OverflowError, TypeError, ValueError):
        return value
