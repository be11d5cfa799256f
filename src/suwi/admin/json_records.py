"""Records as JSON: the format of `consume --json` and `produce --json`.

Bytes that are UTF-8 are strings; others are in base 64, in a field with the suffix `_base64`.
With a decoder a field is what it found: of JSON, Avro and Protobuf the values themselves.
"""

import base64
import binascii
import json
from typing import Any, NamedTuple

from suwi.decoders.decoder import Decoder, as_json
from suwi.records.record import Headers, Record


class BadLine(ValueError):
    """A line that is not a record; the text gives the reason."""


class GivenRecord(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: Headers
    partition: int | None
    timestamp: int | None


def record_fields(
    topic: str,
    partition: int,
    record: Record,
    key_decoder: Decoder | None = None,
    value_decoder: Decoder | None = None,
) -> dict[str, Any]:
    return {
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        **_decoded_field("key", record.key, key_decoder),
        **_decoded_field("value", record.value, value_decoder),
        "headers": [
            _field("name", name.encode("utf-8", "surrogateescape")) | _field("value", value)
            for name, value in record.headers
        ],
    }


def _decoded_field(name: str, data: bytes | None, decoder: Decoder | None) -> dict[str, Any]:
    if decoder is None:
        return _field(name, data)
    found = decoder.decode(data)
    more = {"schema": found.schema, "problem": found.problem}
    fields = {f"{name}_{what}": text for what, text in more.items() if text}
    if found.read_as == "bytes":
        return _field(name, data) | fields
    return {name: as_json(found.value)} | fields


def _field(name: str, data: bytes | None) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def parse_record(line: bytes) -> GivenRecord:
    """Raises `BadLine`."""
    try:
        found = json.loads(line)
    except json.JSONDecodeError as error:
        raise BadLine(f"not JSON: {error.msg} at column {error.colno}") from None
    except ValueError:
        raise BadLine("not JSON in UTF-8") from None
    if not isinstance(found, dict):
        raise BadLine('not a JSON object like {"key": "k", "value": "v"}')
    if not found.keys() & {"value", "value_base64"}:
        raise BadLine("it has no value; null means a deletion")
    return GivenRecord(
        _bytes(found, "key"),
        _bytes(found, "value"),
        _headers(found.get("headers") or []),
        _number(found, "partition"),
        _number(found, "timestamp"),
    )


def _bytes(found: dict[str, Any], name: str) -> bytes | None:
    encoded = found.get(f"{name}_base64")
    if encoded is not None:
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise BadLine(f"{name}_base64 is not in base 64") from None
    given = found.get(name)
    if given is None:
        return None
    text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")


def _headers(found: Any) -> Headers:
    if isinstance(found, dict):
        found = [{"name": name, "value": value} for name, value in found.items()]
    if not isinstance(found, list):
        raise BadLine('headers are an object, or a list of {"name": "n", "value": "v"}')
    headers = []
    for header in found:
        name = _bytes(header, "name") if isinstance(header, dict) else None
        if name is None:
            raise BadLine('a header is {"name": "n", "value": "v"}')
        headers.append((name.decode("utf-8", "surrogateescape"), _bytes(header, "value")))
    return tuple(headers)


def _number(found: dict[str, Any], name: str) -> int | None:
    number = found.get(name)
    if number is None:
        return None
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise BadLine(f"{name} is not a number >= 0")
    return number
