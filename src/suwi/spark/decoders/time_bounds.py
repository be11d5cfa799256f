"""Bounds for moments and dates: years 1 to 9999, and optionally not too far in the future.

Spark holds years up to 294247, Python and most readers of tables up to 9999; one such value moves
an event-time watermark by centuries, after which every record is late.
`out_of_bounds` yields a fault for each field that holds moments or dates, at any depth,
`record_time_fault` that of the record's own time.
Invariant: conditions depend on the record alone, not on when it is looked at. Good and bad records
are found by two queries, and a batch may be run again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from suwi.spark.decoders.places import Fault, places, surely

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

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
