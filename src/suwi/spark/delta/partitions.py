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
NULL_DIRECTORY: Final = "__HIVE_DEFAULT_PARTITION__"
# Delta does not read directory names, so a long value is cut to the limits of file systems.
_NAME_MAX: Final = 120


def split(table: "pa.Table", columns: Sequence[str]) -> Iterator[tuple[Values, "pa.Table"]]:
    """The table's parts by partition values, without the columns that hold them."""
    rest = table.drop_columns(list(columns))
    for scalars, rows in grouped(rest, [table.column(name) for name in columns]):
        texts = (_text_of(name, value) for name, value in zip(columns, scalars, strict=True))
        yield tuple(texts), rows


def grouped(
    table: "pa.Table", by: Sequence["pa.ChunkedArray"]
) -> Iterator[tuple[list["pa.Scalar"], "pa.Table"]]:
    """The table's parts by the values of other columns."""
    if not by:
        yield [], table
        return
    import pyarrow as pa

    keys = [f"c{at}" for at in range(len(by))]
    columns = dict(zip(keys, by, strict=True))
    numbered = pa.table({**columns, "row": pa.array(range(table.num_rows), pa.int64())})
    groups = numbered.group_by(keys, use_threads=False).aggregate([("row", "list")])
    rows = groups.column("row_list")
    for at in range(groups.num_rows):
        chosen = table if groups.num_rows == 1 else table.take(rows[at].values)
        yield [groups.column(key)[at] for key in keys], chosen


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
        f"{_name(column)}={NULL_DIRECTORY if value is None else _name(value)}"
        for column, value in zip(columns, values, strict=True)
    )


def _name(text: str) -> str:
    # As Hive and Spark do it: letters beyond ASCII stay, or Spark's Parquet source misreads them.
    escaped = (one if one > "\x7f" else quote(one, safe=" ,;@()[]") for one in text)
    return "".join(escaped)[:_NAME_MAX].rstrip()
