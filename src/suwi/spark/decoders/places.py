"""The parts of a decoder: what it returns (`Parsed`), and where a schema holds values.

`places` walks a type once, for every check. A place's `where` makes of a check of one value a check
of all values there: of a row, or of the variant that the row's text was parsed to.

Moments and dates are bounded: years 1 to 9999, and optionally not too far in the future
(`out_of_bounds`, at any depth; `record_time_fault` is for the record's own time). Spark holds years
up to 294247, Python and most readers of tables up to 9999; one such value moves an event-time
watermark by centuries, after which every record is late.
Invariant: these conditions depend on the record alone, not on when it is looked at. Good and bad
records may be found by two queries, and a batch may be run again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

Check: TypeAlias = "Callable[[Column], Column]"
Where: TypeAlias = "Callable[[Column, Check], Column]"
ROW = "__row"


class Parsed(NamedTuple):
    value: Column
    """A struct whose field `ROW` holds the columns; other fields are what the checks need."""
    schema: StructType
    """The columns for the user; what else `ROW` has is dropped."""
    is_good: Check
    """Whether such a struct is as it should be."""
    reason: Check
    """Why it is not; null where nothing is known to be wrong."""


class Fault(NamedTuple):
    """A condition under which a record is bad, which is never null, and the reason."""

    condition: Column
    reason: str


class Place(NamedTuple):
    path: str
    """The names of fields. What an array or map holds has the path of the field."""
    type: DataType
    nullable: bool
    field_type: DataType
    """That of the field: an array, where `type` is that of its elements."""
    where: Where
    """Whether a check holds for a value at this place, given the struct with the fields."""

    def fault(self, holder: Column, check: Check, reason: str) -> Fault:
        return Fault(surely(self.where(holder, check)), f"field {self.path!r} {reason}")

    @property
    def type_name(self) -> str:
        return self.field_type.simpleString().upper()


def places(schema: StructType, *, of_variant: bool = False) -> Iterator[Place]:
    for field in schema.fields:
        kind, member = field.dataType, _member(field.name, of_variant)
        yield from _within(Place(field.name, kind, field.nullable, kind, member), of_variant)


def _within(place: Place, of_variant: bool) -> Iterator[Place]:
    """The place, and those inside of it."""
    from pyspark.sql import types as t

    yield place
    match place.type:
        case t.StructType() as struct:
            for inner in places(struct, of_variant=of_variant):
                path, where = f"{place.path}.{inner.path}", _joined(place.where, inner.where)
                yield inner._replace(path=path, where=where)
            return
        case t.ArrayType() as array:
            inside, nullable = array.elementType, array.containsNull
        case t.MapType() as mapping:
            inside, nullable = mapping.valueType, mapping.valueContainsNull
        case _:
            return
    where = _joined(place.where, _element(place.type, of_variant))
    yield from _within(place._replace(type=inside, nullable=nullable, where=where), of_variant)


def _joined(outer: Where, inner: Where) -> Where:
    return lambda holder, check: outer(holder, lambda value: inner(value, check))


def _member(name: str, of_variant: bool) -> Where:
    def where(holder: Column, check: Check) -> Column:
        quote = '"' if "'" in name else "'"
        value = variant_at(holder, f"$[{quote}{name}{quote}]") if of_variant else holder[name]
        return holder.isNotNull() & check(value)

    return where


def _element(kind: DataType, of_variant: bool) -> Where:
    from pyspark.sql import functions as f
    from pyspark.sql import types as t

    is_map = isinstance(kind, t.MapType)

    def where(holder: Column, check: Check) -> Column:
        if of_variant:
            kind = "map<string,variant>" if is_map else "array<variant>"
            holder = f.try_variant_get(holder, "$", kind)
        elements = f.map_values(holder) if is_map else holder
        return f.exists(elements, lambda value: surely(check(value)))

    return where


def variant_at(variant: Column, path: str) -> Column:
    from pyspark.sql import functions as f

    return f.try_variant_get(variant, path, "variant")


def surely(condition: Column) -> Column:
    """False instead of null."""
    from pyspark.sql import functions as f

    return f.coalesce(condition, f.lit(False))


# -- bounds of time --------------------------------------------------------------------------------

TIME = "timestamp"
"""The column with the record's own time."""
_YEARS = "is not in years 1 to 9999"
_YEAR_1_S = -62_135_596_800
_YEAR_10000_S = 253_402_300_800
_PART = r"\d+ +(?:(?:micro|milli)?second|minute|hour|day|week)s?"
_INTERVAL = re.compile(rf"{_PART}(?: +{_PART})*", re.IGNORECASE)


def is_interval(text: str) -> bool:
    """As Spark takes it for triggers, watermarks and INTERVAL: it has no short units, as `10 s`."""
    return _INTERVAL.fullmatch(text) is not None


def out_of_bounds(row: Column, schema: StructType, max_future: str | None) -> Iterator[Fault]:
    """`max_future` is an interval after the record's own time, as `1 day`; None, or a record
    without a time: the year 9999 is the only bound."""
    for place in places(schema):
        if is_time(place.type):
            yield place.fault(row, partial(_is_outside, place.type), _YEARS)
            if max_future is not None:
                reason = f"is more than {max_future} after the record's time"
                yield place.fault(row, partial(_is_late, max_future), reason)


def record_time_fault() -> Fault:
    """Without `max_future`: it would be one after the time of a look, and differ between looks."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import TimestampType

    return Fault(surely(_is_outside(TimestampType(), f.col(TIME))), f"the record's time {_YEARS}")


def is_time(kind: DataType) -> bool:
    from pyspark.sql import types as t

    return isinstance(kind, t.TimestampType | t.TimestampNTZType | t.DateType)


def _is_late(max_future: str, value: Column) -> Column:
    from pyspark.sql import functions as f

    written = f.col(TIME)
    # A record without a time is shown a millisecond before 1970. What is too large would overflow.
    first, end = f.timestamp_seconds(f.lit(0)), f.timestamp_seconds(f.lit(_YEAR_10000_S))
    latest = f.when(
        (written >= first) & (written < end), written + f.expr(f"INTERVAL {max_future}")
    )
    return value > latest


def _is_outside(kind: DataType, value: Column) -> Column:
    from pyspark.sql import functions as f
    from pyspark.sql import types as t

    if isinstance(kind, t.DateType):
        return (value < f.make_date(*map(f.lit, (1, 1, 1)))) | (
            value > f.make_date(*map(f.lit, (9999, 12, 31)))
        )
    first, end = f.timestamp_seconds(f.lit(_YEAR_1_S)), f.timestamp_seconds(f.lit(_YEAR_10000_S))
    if isinstance(kind, t.TimestampNTZType):
        first = f.expr("make_timestamp_ntz(1, 1, 1, 0, 0, 0)")
        end = f.expr("make_timestamp_ntz(9999, 12, 31, 23, 59, 59.999999)")
        return (value < first) | (value > end)
    return (value < first) | (value >= end)
