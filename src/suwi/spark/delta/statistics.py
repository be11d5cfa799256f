"""What a Parquet file says about its columns, as Delta's file statistics.

`describe_file` takes the footers that were just written; the data is not read again.
Invariant: no value of the file lies outside of the bounds stated. Where that cannot be said
cheaply (NaN, bounds that Parquet left out, numbers that JSON would round) nothing is stated.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

# Delta truncates long texts, to keep the log small.
_TEXT_MAX: Final = 32
_HIGHEST: Final = "\U0010ffff"


@dataclass(frozen=True, slots=True)
class Leaf:
    """A column of the file that has no columns inside."""

    number: int
    path: tuple[str, ...]
    is_single: bool
    """One value in each row: not inside of a list or a map."""


def describe_file(
    footer: "pq.FileMetaData", schema: "pa.Schema", with_nan: frozenset[str], columns_max: int
) -> str:
    """As JSON. `with_nan`: floating-point columns in which one was seen."""
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    for leaf in leaves(schema):
        if not leaf.is_single or (0 <= columns_max <= leaf.number):
            continue
        found = _Bounds.of(footer, leaf.number)
        if found.null_count is not None:
            _put(nulls, leaf.path, found.null_count)
        if leaf.path[0] in with_nan or found.lowest is None:
            continue
        low, high = lower_bound(found.lowest), upper_bound(found.highest)
        if low is not None and high is not None:
            _put(lowest, leaf.path, low)
            _put(highest, leaf.path, high)
    stated = {
        "numRecords": footer.num_rows,
        "minValues": lowest,
        "maxValues": highest,
        "nullCount": nulls,
    }
    return json.dumps(stated, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def leaves(schema: "pa.Schema") -> list[Leaf]:
    """In the order of the file's columns: depth first."""
    found: list[Leaf] = []
    for field in schema:
        for path, is_single in _walk(field, (), True):
            found.append(Leaf(len(found), path, is_single))
    return found


def _walk(
    field: "pa.Field", above: tuple[str, ...], is_single: bool
) -> Iterator[tuple[tuple[str, ...], bool]]:
    import pyarrow.types as kinds

    path = (*above, field.name)
    if kinds.is_struct(field.type):
        for number in range(field.type.num_fields):
            yield from _walk(field.type.field(number), path, is_single)
    elif kinds.is_map(field.type):
        yield from _walk(field.type.key_field, path, False)
        yield from _walk(field.type.item_field, path, False)
    elif kinds.is_list(field.type) or kinds.is_large_list(field.type):
        yield from _walk(field.type.value_field, path, False)
    else:
        yield path, is_single


@dataclass(slots=True)
class _Bounds:
    """Of one column, over all row groups; None where it is not known."""

    null_count: int | None = 0
    lowest: Any = None
    highest: Any = None

    @classmethod
    def of(cls, footer: "pq.FileMetaData", number: int) -> "_Bounds":
        bounds = cls()
        known = True
        for group in range(footer.num_row_groups):
            chunk = footer.row_group(group).column(number)
            said = chunk.statistics if chunk.is_stats_set else None
            if said is None or not said.has_null_count:
                bounds.null_count = None
            elif bounds.null_count is not None:
                bounds.null_count += said.null_count
            if said is not None and said.has_min_max:
                known &= bounds._widen(said)
            elif said is None or not said.has_null_count or said.null_count < chunk.num_values:
                known = False  # There are values, and nobody says which.
        if not known:
            bounds.lowest = bounds.highest = None
        return bounds

    def _widen(self, said: Any) -> bool:
        """Whether it could: Python has no moments before the year 1 or after 9999."""
        try:
            low, high = said.min, said.max
        except (OverflowError, ValueError):
            return False
        self.lowest = low if self.lowest is None else min(self.lowest, low)
        self.highest = high if self.highest is None else max(self.highest, high)
        return True


def _put(into: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        into = into.setdefault(name, {})
    into[path[-1]] = value


def lower_bound(value: Any) -> Any:
    """As JSON has it, rounded down; None where it cannot be said."""
    match value:
        case str():
            return value[:_TEXT_MAX]
        case datetime():
            return _time(value.replace(microsecond=value.microsecond // 1000 * 1000))
    return _exact(value)


def upper_bound(value: Any) -> Any:
    """As JSON has it, rounded up; None where it cannot be said."""
    match value:
        case str() if len(value) > _TEXT_MAX:
            return None if value[_TEXT_MAX] == _HIGHEST else value[:_TEXT_MAX] + _HIGHEST
        case datetime():
            # Milliseconds are what Delta has: cut off, a file would be passed over by mistake.
            rest = -value.microsecond % 1000
            try:
                return _time(value + timedelta(microseconds=rest))
            except OverflowError:
                return None
    return _exact(value)


def _exact(value: Any) -> Any:
    match value:
        case bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case Decimal():
            number = float(value)
            return number if math.isfinite(number) and Decimal(repr(number)) == value else None
        case date():
            return value.isoformat()
    return None  # Binary has no order that readers agree on.


def _time(moment: datetime) -> str:
    if moment.tzinfo is None:
        return moment.isoformat(sep=" ", timespec="milliseconds")
    utc = moment.astimezone(UTC).replace(tzinfo=None)
    return utc.isoformat(timespec="milliseconds") + "Z"
