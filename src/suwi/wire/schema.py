"""kio's schemas, converted once to plain descriptions that `guard` and `encoder` compile.

`structure(api_key, version, direction)` is the entrance. Loading a schema imports a module of kio,
which takes milliseconds; it happens at the first use of a version, not at the start.
"""

from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, NamedTuple, Union, get_args, get_origin

from kio.index import load_request_schema, load_response_schema
from kio.static.primitive import TZAware

from suwi.wire.versions import ApiKey

# The `struct` formats of the types with a fixed size.
FIXED: Final = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
    "float64": "d",
    "error_code": "h",
    "timedelta_i32": "i",
    "timedelta_i64": "q",
    "datetime_i64": "q",
}
UUID_BYTES: Final = 16


class Direction(Enum):
    REQUEST = "request"
    RESPONSE = "response"


class _Required(Enum):
    REQUIRED = "required"


REQUIRED: Final = _Required.REQUIRED


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    kafka_type: str
    """One of `FIXED`, or string, bytes, records, uuid, struct."""
    is_array: bool
    nullable: bool
    tag: int | None
    default: Any
    """`REQUIRED` if there is none."""
    structure: "Structure | None"
    """Of the field or its items, if they are structures."""


class Structure(NamedTuple):
    name: str
    flexible: bool
    fields: tuple[Field, ...]
    """In wire order, without the tagged fields."""
    tagged: tuple[Field, ...]

    def all_fields(self) -> tuple[Field, ...]:
        return self.fields + self.tagged


def entity_type(api_key: int, version: int, direction: Direction) -> type[Any]:
    """kio's class for a message."""
    if direction is Direction.REQUEST:
        return load_request_schema(api_key, version)
    cls = load_response_schema(api_key, version)
    if api_key == ApiKey.DESCRIBE_TRANSACTIONS:
        _allow_no_start_time(cls)
    return cls


def _allow_no_start_time(cls: type[Any]) -> None:
    """Without an open transaction Kafka says -1, which kio cannot read into its field."""
    (states,) = (field for field in fields(cls) if field.name == "transaction_states")
    for field in fields(get_args(states.type)[0]):
        if field.name == "transaction_start_time":
            field.type = TZAware | None


@cache
def structure(api_key: int, version: int, direction: Direction) -> Structure:
    return _describe(entity_type(api_key, version, direction))


def _describe(cls: type[Any]) -> Structure:
    described = [_describe_field(field) for field in fields(cls)]
    return Structure(
        name=cls.__name__,
        flexible=cls.__flexible__,
        fields=tuple(field for field in described if field.tag is None),
        tagged=tuple(
            sorted(
                (field for field in described if field.tag is not None),
                key=lambda field: field.tag or 0,
            )
        ),
    )


def _describe_field(field: Any) -> Field:
    inner, nullable = _without_none(field.type)
    is_array = get_origin(inner) is tuple
    if is_array:
        inner, _ = _without_none(get_args(inner)[0])  # kio represents a zero UUID as None
    return Field(
        name=field.name,
        kafka_type="struct" if is_dataclass(inner) else field.metadata["kafka_type"],
        is_array=is_array,
        nullable=nullable,
        tag=field.metadata.get("tag"),
        default=REQUIRED if field.default is MISSING else field.default,
        structure=_describe(inner) if isinstance(inner, type) and is_dataclass(inner) else None,
    )


def _without_none(annotation: Any) -> tuple[Any, bool]:
    if get_origin(annotation) not in (UnionType, Union):
        return annotation, False
    (inner,) = (part for part in get_args(annotation) if part is not NoneType)
    return inner, True
