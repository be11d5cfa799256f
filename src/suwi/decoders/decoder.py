"""`Decoder`: one key or value of a record as a Python value, for whoever shows records.

Invariant: whatever the bytes are, `decode` returns, in time that is bounded by their size. What
cannot be read as it was asked for is text or bytes, with the problem beside it.
"""

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from math import isfinite
from typing import Any, Final, Literal, TypeVar, get_args

from suwi.decoders.avro import AvroSchema, complete_schema, require_fastavro
from suwi.decoders.confluent import HEADER_BYTES, split_header, split_message_index
from suwi.decoders.errors import BadRecord, CannotDecode, RegistryUnavailable
from suwi.decoders.limits import BYTES_MAX
from suwi.decoders.protobuf import MessageType, files_by_id, require_protobuf
from suwi.decoders.registry import Registry, schema_by_id
from suwi.decoders.text import NotJson, is_like_text, read_json, read_text
from suwi.env import Clock, SystemClock

Format = Literal["auto", "text", "json", "avro", "protobuf", "bytes"]
FORMATS: Final[tuple[Format, ...]] = get_args(Format)
ReadAs = Literal["null", "text", "json", "avro", "protobuf", "bytes"]

K = TypeVar("K")
V = TypeVar("V")

_TOO_DEEP = "it is nested too deeply"
_KEPT_MAX = 256
# Bytes that are no such values name schemas at random, and each would be one request.
_FAILURES_MAX = 20
_ASK_AGAIN_MS = 10_000


@dataclass(frozen=True, slots=True)
class Decoded:
    value: Any
    """None, str, bytes, numbers, lists and dicts of them; of Avro and Protobuf also dates, times,
    timedeltas and Decimals."""
    read_as: ReadAs
    schema: str = ""
    """What a schema called it: `shop.Order, schema 103`."""
    problem: str = ""
    """Why it is not what was asked for; the value is then text or bytes."""


@dataclass(frozen=True, slots=True)
class _Type:
    """What values with one header are."""

    read_as: ReadAs
    name: str
    read: Callable[[memoryview], Any]


class Decoder:
    """Decodes as one format; `auto` finds out which. It is synchronous: the first value of a schema
    waits for the registry's answer.

    With a registry, values of Avro, Protobuf and JSON begin with Confluent's header. Without one,
    Avro needs its schema, as JSON, and Protobuf a descriptor set and the name of a message.
    """

    def __init__(
        self,
        form: Format = "auto",
        *,
        registry: Registry | None = None,
        avro_schema: str | None = None,
        descriptor: bytes | None = None,
        message: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Raises `CannotDecode`."""
        self._form = form
        self._registry = registry
        self._clock = clock or SystemClock()
        self._kinds: dict[int, ReadAs] = {}
        self._types: dict[tuple[int, tuple[int, ...]], _Type] = {}
        self._failed: dict[object, tuple[str, int]] = {}
        """Why a lookup failed, and until when that counts."""
        self._failures = 0
        self._ask_from_ms = 0
        self._without_header: _Type | None = None
        match form:
            case "avro":
                require_fastavro()
                if avro_schema is not None:
                    schema = AvroSchema(avro_schema)
                    self._without_header = _Type("avro", schema.name, schema.read)
            case "protobuf":
                require_protobuf()
                if descriptor is not None and message is not None:
                    found = MessageType(descriptor, message)
                    self._without_header = _Type("protobuf", found.name, found.read)
        if form in ("avro", "protobuf") and registry is None and self._without_header is None:
            raise CannotDecode(f"{form} needs a schema: give it, or a schema registry")

    def decode(self, data: bytes | None) -> Decoded:
        if data is None:
            return Decoded(None, "null")
        problem = ""
        if self._form == "bytes":
            return Decoded(data, "bytes")
        if self._form != "text":
            try:
                found = self._structured(data)
            except RecursionError:
                problem = _TOO_DEEP
            except (BadRecord, CannotDecode, RegistryUnavailable) as error:
                problem = str(error)
            else:
                if found is not None:
                    return found
        return self._plain(data, problem)

    def _plain(self, data: bytes, problem: str) -> Decoded:
        try:
            text = read_text(data)
        except BadRecord as error:
            if self._form == "text":
                problem = str(error)
            return Decoded(data, "bytes", problem=problem)
        if self._form == "text" or is_like_text(text):
            return Decoded(text, "text", problem=problem)
        return Decoded(data, "bytes", problem=problem)

    def _structured(self, data: bytes) -> Decoded | None:
        """None where `auto` finds no structure."""
        if len(data) > BYTES_MAX:
            raise BadRecord(f"it is larger than {BYTES_MAX} bytes")
        if self._form == "auto":
            return self._guessed(data)
        if self._without_header is not None:
            return _decoded(self._without_header, memoryview(data), "")
        if self._registry is None:
            return Decoded(read_json(data), "json")
        return self._by_header(data, self._registry)

    def _guessed(self, data: bytes) -> Decoded | None:
        # Ids of schemas begin with 1; four zero bytes are those of a number.
        if self._registry is not None and data[:1] == b"\0" and any(data[1:HEADER_BYTES]):
            return self._by_header(data, self._registry)
        if data.lstrip()[:1] in (b"{", b"["):
            try:
                return Decoded(read_json(data), "json")
            except NotJson:
                pass  # `[info] started` is text.
        return None

    # -- with a schema registry ------------------------------------------------------------------

    def _by_header(self, data: bytes, registry: Registry) -> Decoded:
        schema_id, body = split_header(data)
        kind = self._looked_up(self._kinds, schema_id, lambda: _kind_of(registry, schema_id))
        if self._form not in ("auto", kind):
            raise BadRecord(f"schema {schema_id} is of {kind}, not of {self._form}")
        path: tuple[int, ...] = ()
        if kind == "protobuf":
            path, body = split_message_index(body)
        type_ = self._looked_up(
            self._types, (schema_id, path), lambda: _type_of(registry, schema_id, kind, path)
        )
        return _decoded(type_, body, f"schema {schema_id}")

    def _looked_up(self, known: dict[K, V], key: K, ask: Callable[[], V]) -> V:
        """From what is known, or by asking. Failures are remembered for `_ASK_AGAIN_MS`."""
        if key in known:
            return known[key]
        now_ms = self._clock.now_ms()
        problem, until_ms = self._failed.get(key, ("", 0))
        if now_ms < until_ms:
            raise BadRecord(problem)
        if now_ms < self._ask_from_ms:
            raise BadRecord("the schema registry is not asked for a while, after failures")
        try:
            found = ask()
        except RegistryUnavailable:
            self._ask_from_ms = now_ms + _ASK_AGAIN_MS
            raise
        except (BadRecord, CannotDecode, RecursionError) as error:
            is_deep = isinstance(error, RecursionError)
            self._note_failure(key, _TOO_DEEP if is_deep else str(error), now_ms)
            raise
        self._failures = 0
        if len(known) >= _KEPT_MAX:
            known.clear()
        known[key] = found
        return found

    def _note_failure(self, key: object, problem: str, now_ms: int) -> None:
        if len(self._failed) >= _KEPT_MAX:
            self._failed.clear()
        self._failed[key] = (problem, now_ms + _ASK_AGAIN_MS)
        self._failures += 1
        if self._failures >= _FAILURES_MAX:
            self._failures = 0
            self._ask_from_ms = now_ms + _ASK_AGAIN_MS


def _kind_of(registry: Registry, schema_id: int) -> ReadAs:
    schema = schema_by_id(registry, schema_id)
    match schema.kind:
        case "AVRO":
            return "avro"
        case "PROTOBUF":
            return "protobuf"
        case "JSON":
            return "json"
    raise BadRecord(f"schema {schema_id} is of the unknown kind {schema.kind}")


def _type_of(registry: Registry, schema_id: int, kind: ReadAs, path: tuple[int, ...]) -> _Type:
    match kind:
        case "avro":
            whole = complete_schema(schema_by_id(registry, schema_id), registry)
            schema = AvroSchema(json.dumps(whole))
            return _Type("avro", schema.name, schema.read)
        case "protobuf":
            require_protobuf()
            name, files = files_by_id(registry, schema_id, path)
            return _Type("protobuf", name, MessageType(files, name).read)
    return _Type("json", "", lambda body: read_json(bytes(body)))


def _decoded(type_: _Type, body: memoryview, schema: str) -> Decoded:
    described = ", ".join(filter(None, (type_.name, schema)))
    return Decoded(type_.read(body), type_.read_as, described)


def as_json(value: Any) -> Any:
    """A decoded value as JSON can hold it: bytes in base 64, moments in ISO 8601, Decimals as text,
    halves of surrogate pairs replaced."""
    match value:
        case dict():
            return {as_json(str(key)): as_json(one) for key, one in value.items()}
        case list():
            return [as_json(one) for one in value]
        case bytes():
            return base64.b64encode(value).decode()
        case str():
            if value.isascii():
                return value
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case float():
            return value if isfinite(value) else str(value)
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Decimal():
            return str(value)
    return value


def json_bytes(value: Any) -> bytes:
    """A decoded value as one line of JSON."""
    return json.dumps(as_json(value), ensure_ascii=False, separators=(",", ":")).encode()
