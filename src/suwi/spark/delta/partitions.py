"""Partition columns: rows by their values, and the values as Delta writes them.

`split` takes a table apart, `value_text` is what stands in the log, `directory` where files lie.
Invariant: rows of one part have one value in each partition column.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from suwi.spark.delta.errors import DeltaSinkError

if TYPE_CHECKING:
    import pyarrow as pa

Values = tuple[str | None, ...]
"""One for each partition column; None is null."""
_NULL_DIRECTORY: Final = "__HIVE_DEFAULT_PARTITION__"
# The name of a directory says nothing to Delta; a long value must not break a file system's limit.
_NAME_MAX: Final = 120


def split(table: "pa.Table", columns: Sequence[str]) -> Iterator[tuple[Values, "pa.Table"]]:
    """The table's parts by partition values, without the columns that hold them."""
    rest = table.drop_columns(list(columns))
    if not columns:
        yield (), rest
        return
    import pyarrow as pa

    numbered = pa.table(
        {
            **{f"c{at}": table.column(name) for at, name in enumerate(columns)},
            "row": pa.array(range(table.num_rows), pa.int64()),
        }
    )
    keys = [f"c{at}" for at in range(len(columns))]
    groups = numbered.group_by(keys, use_threads=False).aggregate([("row", "list")])
    rows = groups.column("row_list")
    for at in range(groups.num_rows):
        values = tuple(
            _text_of(name, groups.column(key)[at]) for name, key in zip(columns, keys, strict=True)
        )
        chosen = rest if groups.num_rows == 1 else rest.take(rows[at].values)
        yield values, chosen


def _text_of(column: str, value: "pa.Scalar") -> str | None:
    try:
        return value_text(value.as_py())
    except (OverflowError, ValueError):
        raise DeltaSinkError(
            f"`{column}` partitions the table and holds a time that is not in years 1 to 9999"
        ) from None


def value_text(value: Any) -> str | None:
    """As Delta's protocol has it. The empty text is null there, and so it is here."""
    match value:
        case None | "":
            return None
        case bool():
            return "true" if value else "false"
        case datetime() if value.tzinfo is not None:
            utc = value.astimezone(UTC).replace(tzinfo=None)
            return utc.isoformat(timespec="microseconds") + "Z"
        case datetime():
            return value.isoformat(sep=" ", timespec="microseconds")
        case date():
            return value.isoformat()
        case Decimal():
            return format(value, "f")
        case float():
            return repr(value)
        case bytes():
            return value.decode()
    return str(value)


def directory(columns: Sequence[str], values: Values) -> str:
    """`day=2026-01-31/country=KR`, relative to the table; empty where nothing partitions it."""
    return "/".join(
        f"{_name(column)}={_NULL_DIRECTORY if value is None else _name(value)}"
        for column, value in zip(columns, values, strict=True)
    )


def _name(text: str) -> str:
    return quote(text, safe=" ,;@()[]")[:_NAME_MAX].rstrip()
