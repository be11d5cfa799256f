"""Random messages for every API version, as plain dicts and as kio's entities."""

import io
import random
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from types import NoneType
from typing import Any, get_args, get_origin
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from suwi.wire.schema import Direction, Field, Structure, entity_type, structure
from suwi.wire.versions import APIS, ApiKey

KAFKAS = [key for key in APIS if key < ApiKey.DESCRIBE_REPLICAS]
"""Kafka's APIs, for which kio has schemas; without Suwi's own."""

_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64, "timedelta_i32": 32}
_ERROR_CODES = [int(code) for code in ErrorCode]


def every_message(api_key: int) -> Iterator[tuple[int, Direction]]:
    api = APIS[api_key]
    for version in range(api.min_version, api.max_version + 1):
        for direction in Direction:
            yield version, direction


def sample(described: Structure, chance: random.Random) -> dict[str, Any]:
    return {field.name: _field(field, chance) for field in described.all_fields()}


def _field(field: Field, chance: random.Random) -> Any:
    if field.nullable and (field.tag is None or field.default is None) and chance.random() < 0.3:
        return None
    if field.is_array:
        return [_scalar(field, chance) for _ in range(chance.choice((0, 1, 2, 3)))]
    return _scalar(field, chance)


def _scalar(field: Field, chance: random.Random) -> Any:
    if field.structure is not None:
        return sample(field.structure, chance)
    match field.kafka_type:
        case "bool":
            return chance.random() < 0.5
        case "error_code":
            return chance.choice(_ERROR_CODES)
        case "float64":
            return chance.uniform(-1e9, 1e9)
        case "timedelta_i64":
            return chance.randrange(-(10**12), 10**12)
        case "datetime_i64":
            return chance.randrange(0, 4 * 10**9) * 1000
        case "uuid":
            return UUID(int=chance.getrandbits(128) | 1)
        case "string":
            return "".join(chance.choices("abcxyz.-_é€", k=chance.choice((0, 3, 9, 200))))
        case "bytes" | "records":
            return chance.randbytes(chance.choice((0, 1, 20, 300)))
        case kafka_type:
            bits = _BITS[kafka_type]
            edge = 1 << (bits - 1)
            return chance.choice((0, -1, 1, edge - 1, -edge, chance.randrange(-edge, edge)))


def entity(cls: type[Any], values: dict[str, Any]) -> Any:
    """kio's entity for a dict of plain values."""
    return cls(
        **{
            field.name: _native(field.type, field.metadata.get("kafka_type"), values[field.name])
            for field in fields(cls)
        }
    )


def _native(annotation: Any, kafka_type: str | None, value: Any) -> Any:
    if value is None:
        return None
    parts = [part for part in get_args(annotation) if part is not NoneType]
    if get_origin(annotation) is tuple:
        return tuple(_native(parts[0], kafka_type, item) for item in value)
    if parts:
        return _native(parts[0], kafka_type, value)
    if is_dataclass(annotation):
        assert isinstance(annotation, type)
        return entity(annotation, value)
    if kafka_type == "error_code":
        return ErrorCode(value)
    if kafka_type in ("timedelta_i32", "timedelta_i64"):
        return timedelta(milliseconds=value)
    if kafka_type == "datetime_i64":
        return datetime.fromtimestamp(value / 1000, tz=UTC)
    return value


def kio_bytes(cls: type[Any], message: Any) -> bytes:
    """A message encoded by kio's own writer."""
    buffer = io.BytesIO()
    entity_writer(cls)(buffer, message)
    return buffer.getvalue()


def sampled(
    api_key: int, version: int, direction: Direction, seed: int
) -> tuple[dict[str, Any], Any, bytes]:
    """A message as a dict, as kio's entity and as kio's bytes."""
    cls = entity_type(api_key, version, direction)
    values = sample(structure(api_key, version, direction), random.Random(seed))
    message = entity(cls, values)
    return values, message, kio_bytes(cls, message)
