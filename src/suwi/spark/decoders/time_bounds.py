"""Bounds for moments and dates: years 1 to 9999, and optionally not too far in the future.

Spark holds years up to 294247, Python and most readers of tables up to 9999; one such value moves
an event-time watermark by centuries, after which every record is late.
`out_of_bounds` yields a condition for each field that holds moments or dates, at any depth.
Invariant: conditions depend on the record alone, not on when it is looked at. Good and bad records
are found by two queries, and a batch may be run again.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

_YEAR_1_S = -62_135_596_800
_YEAR_10000_S = 253_402_300_800


class Fault(NamedTuple):
    """A condition under which a record is bad, and the reason."""

    condition: Column
    reason: str


def out_of_bounds(row: Column, schema: StructType, max_future: str | None) -> Iterator[Fault]:
    """`max_future` is an interval after the column `timestamp`, as `1 day`; None, or a record
    without a time: the year 9999 is the only bound."""
    for field in schema.fields:
        yield from _field(row[field.name], field.dataType, field.name, max_future)


def _field(value: Column, kind: DataType, path: str, max_future: str | None) -> Iterator[Fault]:
    from pyspark.sql.types import StructType

    if isinstance(kind, StructType):
        for field in kind.fields:
            yield from _field(value[field.name], field.dataType, f"{path}.{field.name}", max_future)
        return
    if not has_times(kind):
        return
    yield Fault(_surely(_outside(value, kind)), f"field {path!r} is not in years 1 to 9999")
    if max_future is not None:
        late = _surely(_outside(value, kind, max_future))
        yield Fault(late, f"field {path!r} is more than {max_future} after the record's time")


def _outside(value: Column, kind: DataType, max_future: str | None = None) -> Column | None:
    """Whether a moment or date, or one inside of a list or map, is outside; None: there is none."""
    from pyspark.sql import functions as f
    from pyspark.sql import types as t

    if not has_times(kind):
        return None
    if isinstance(kind, t.ArrayType):
        return f.exists(value, lambda one: _surely(_outside(one, kind.elementType, max_future)))
    if isinstance(kind, t.MapType):
        return _outside(f.map_values(value), t.ArrayType(kind.valueType), max_future)
    if isinstance(kind, t.StructType):
        parts = [one for one in kind.fields if has_times(one.dataType)]
        found = [_surely(_outside(value[one.name], one.dataType, max_future)) for one in parts]
        return functools.reduce(operator.or_, found)
    return _plain(value, kind, max_future)


def _surely(condition: Column | None) -> Column:
    from pyspark.sql import functions as f

    assert condition is not None
    return f.coalesce(condition, f.lit(False))


def _plain(value: Column, kind: DataType, max_future: str | None) -> Column:
    from pyspark.sql import functions as f
    from pyspark.sql import types as t

    if max_future is not None:
        written = f.col("timestamp")
        # A record without a time is shown a millisecond before 1970.
        has_time = written >= f.timestamp_seconds(f.lit(0))
        return has_time & (value > written + f.expr(f"INTERVAL {max_future}"))
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


def has_times(kind: DataType) -> bool:
    from pyspark.sql import types as t

    match kind:
        case t.ArrayType():
            return has_times(kind.elementType)
        case t.MapType():
            return has_times(kind.valueType)
        case t.StructType():
            return any(has_times(one.dataType) for one in kind.fields)
    return isinstance(kind, t.TimestampType | t.TimestampNTZType | t.DateType)
