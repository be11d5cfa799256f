"""`decode`: the rows of a topic into the columns of its values, and those that could not be.

Invariant: a row that comes in goes out once, in `good` or in `bad`; only `nulls="drop"` drops any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from suwi.decoders.confluent import HEADER_BYTES, NO_HEADER, TOO_SHORT
from suwi.decoders.errors import CannotDecode
from suwi.spark.declarative import columns_of
from suwi.spark.decoders.places import (
    ROW,
    TIME,
    Fault,
    Parsed,
    is_interval,
    out_of_bounds,
    record_time_fault,
    surely,
)
from suwi.spark.rules import BAD

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from suwi.decoders.registry import Registry

Nulls = Literal["bad", "keep", "drop"]

SOURCE_COLUMNS = ("key", "topic", "partition", "offset", "timestamp", "headers")
"""Columns of the source that are kept, if the frame has them."""
REASON = "reason"
_CHOICES = ("json", "string", "raw", "avro", "protobuf")
_PARSED = "__parsed"
_PARSED_NAME = "__parsed_name"
_TASK = "__task"


class Decoded(NamedTuple):
    good: DataFrame
    """The value's columns; then `_key`, `_topic`, `_partition`, `_offset`, `_timestamp`."""
    bad: DataFrame
    """`topic`, `partition`, `offset`, `timestamp`, `key`, the raw `value`, and the `reason`."""


def decode(
    df: DataFrame,
    *,
    json: str | StructType | None = None,
    string: bool = False,
    raw: bool = False,
    avro: str | dict[str, Any] | bool | None = None,
    protobuf: str | bool | None = None,
    descriptor: str | bytes | None = None,
    registry: str | Registry | None = None,
    subject: str | None = None,
    confluent_header: bool | None = None,
    nulls: Nulls = "bad",
    lenient: bool = False,
    max_future: str | None = None,
    read_once: bool = False,
) -> Decoded:
    """Decode the `value` of each row; the result unpacks as `good, bad`.

    One of these says what the values are:

    - `json`: objects, with the columns of this schema (a StructType, or text such as
      "id BIGINT NOT NULL, at TIMESTAMP"). NOT NULL is checked; other fields are ignored. `lenient`
      takes what Spark's parser takes: single quotes, NaN, equal keys, numbers as moments.
    - `string`: text in UTF-8, as one column `value`; `raw`: bytes, likewise.
    - `avro`: a schema (JSON text, a dict, or the name of an .avsc file), or True: the newest of the
      `subject` in the `registry`.
    - `protobuf`: the name of a message, defined in `descriptor` (a file that protoc wrote with
      --descriptor_set_out --include_imports, or its bytes) or in the `registry`; True: the first
      message of the newest schema there.

    With a `registry` (an address, or a `Registry`) values begin with Confluent's header: a zero
    byte and the id of the schema they were written with. `confluent_header` says so, or that they
    do not, whatever else is given.

    `nulls` says where a row without a value goes: to `bad`, to good with all columns null (`keep`:
    the tombstones of a compacted topic), or away (`drop`).

    Moments and dates outside of the years 1 to 9999 are bad, also the record's own `timestamp`, and
    with `max_future`, an interval as "1 day", those that are later than that by more: one of them
    would move an event-time watermark to where every other record is late. `raw` takes everything.

    `read_once` is for one stream that writes both, with `to_outputs(good, …, bad=bad)`: a batch is
    then read and decoded once, and both come from a shuffle of its rows.

    Raises `CannotDecode` where the arguments do not fit together or a schema cannot be used.
    """
    rows, parsed = _parse(
        df,
        {"json": json, "string": string, "raw": raw, "avro": avro, "protobuf": protobuf},
        _How(descriptor, registry, subject, confluent_header, nulls, lenient, max_future),
    )
    if parsed is None:
        return rows.all_good()
    return rows.split_once(parsed) if read_once else rows.split(parsed)


def decode_together(df: DataFrame, *, pipeline: str | None = None, **how: Any) -> DataFrame:
    """As `decode`, in one pass: good and bad records in one DataFrame, for `to_outputs`.

    A bad record is a row whose column `__bad` is its dead letter; of others it is null.

    pipeline: who could not use it, for the headers of dead letters.
    how: the arguments of `decode`.
    """
    given = {name: how.pop(name, None) for name in _CHOICES}
    rows, parsed = _parse(df, given, _How(**how))
    return rows.all_good().good if parsed is None else rows.together(parsed, pipeline)


class _How(NamedTuple):
    """The other arguments of `decode`."""

    descriptor: str | bytes | None = None
    registry: str | Registry | None = None
    subject: str | None = None
    confluent_header: bool | None = None
    nulls: Nulls = "bad"
    lenient: bool = False
    max_future: str | None = None


def _parse(df: DataFrame, given: dict[str, Any], how: _How) -> tuple[_Rows, Parsed | None]:
    """None: every record is good. Raises `CannotDecode`."""
    chosen = [name for name in _CHOICES if given[name] not in (None, False)]
    if len(chosen) != 1:
        listed = ", ".join(chosen) or "none"
        raise CannotDecode(f"say what the values are with one of {', '.join(_CHOICES)}: {listed}")
    if how.nulls not in ("bad", "keep", "drop"):
        raise CannotDecode(f"nulls={how.nulls!r}: bad, keep or drop")
    if how.lenient and chosen != ["json"]:
        raise CannotDecode("lenient is for json")
    if how.max_future is not None and not is_interval(how.max_future):
        raise CannotDecode(
            f"max_future={how.max_future!r}: an interval, as '1 day' or '90 minutes'"
        )
    registry = how.registry
    if isinstance(registry, str):
        from suwi.decoders.registry import Registry

        registry = Registry(registry)
    has_header = registry is not None if how.confluent_header is None else how.confluent_header
    rows = _Rows(df, how.nulls, how.max_future)
    (kind,) = chosen
    if kind == "raw":
        return rows, None
    if kind in ("string", "json"):
        from suwi.spark.decoders.text import decode_json, decode_string

        body = rows.without_header() if has_header else df["value"]
        if kind == "string":
            return rows, decode_string(body)
        return rows, decode_json(body, given["json"], lenient=how.lenient)
    from suwi.spark.decoders.in_python import Format, decode_in_python

    form: Format
    if kind == "avro":
        from suwi.spark.decoders.avro import avro_format

        form = avro_format(given["avro"], registry, how.subject, has_header)
    else:
        from suwi.spark.decoders.protobuf import protobuf_format

        form = protobuf_format(given["protobuf"], how.descriptor, registry, how.subject, has_header)
    return rows, decode_in_python(df["value"], form)


class _Rows:
    def __init__(self, df: DataFrame, nulls: Nulls, max_future: str | None) -> None:
        columns = columns_of(df, [*SOURCE_COLUMNS[:-1], "value"])
        missing = [name for name in ("topic", "partition", "offset") if name not in columns]
        if "value" not in columns or missing:
            raise CannotDecode(
                f"the frame has no column {', '.join(missing or ['value'])}: "
                "decode what `read_topics` gives, before columns are chosen"
            )
        if max_future is not None and TIME not in columns:
            raise CannotDecode("max_future needs the column timestamp: the record's own time")
        self._df = df
        self._nulls = nulls
        self._max_future = max_future
        self._kept = [name for name in SOURCE_COLUMNS if name in columns]
        self._faults = [record_time_fault()] if TIME in columns else []
        """What is wrong with a record, whatever its value says."""

    def without_header(self) -> Column:
        """The value without Confluent's header. It is not looked up; without it a record is bad."""
        from pyspark.sql import functions as f

        value = f.col("value")
        is_short = f.octet_length(value) < HEADER_BYTES
        is_other = f.substring(value, 1, 1) != f.lit(b"\0")
        self._faults += [Fault(surely(is_short), TOO_SHORT), Fault(surely(is_other), NO_HEADER)]
        return f.expr(f"substring(value, {HEADER_BYTES + 1})")

    def all_good(self) -> Decoded:
        from pyspark.sql import functions as f

        good = self._df.select("value", *self._source())
        if self._nulls == "drop":
            good = good.filter(f.col("value").isNotNull())
        bad = self._df.select(*self._bad_columns(f.lit(""))).filter(f.lit(False))
        return Decoded(good, bad)

    def split(self, parsed: Parsed) -> Decoded:
        from pyspark.sql import functions as f

        df, one = self._with(parsed)
        is_bad = ~self._is_good(parsed, one)
        if self._nulls == "drop":
            is_bad &= f.col("value").isNotNull()
        good = df.filter(self._is_good(parsed, one)).select(*self._columns(parsed, one))
        bad_columns = self._bad_columns(self._why(parsed, one))
        return Decoded(good, df.filter(is_bad).select(*bad_columns))

    def split_once(self, parsed: Parsed) -> Decoded:
        """As `split`. Of equal shuffles in a query Spark runs one, and these stay equal: conditions
        and choices of columns are not moved below a generator. What a task has read stays together,
        in its order."""
        from pyspark.sql import functions as f

        both = self._in_one_pass(parsed, self._bad_columns)
        row = f.struct(*(f.col(_quoted(name)) for name in both.columns if name != BAD))
        one = f.array(f.struct(row.alias(ROW), f.col(BAD)))
        kept = both.select(one.alias(_PARSED), f.spark_partition_id().alias(_TASK))
        kept = kept.repartition(_TASK)
        good = f.filter(_PARSED, lambda one: one[BAD].isNull())
        bad = f.filter(_PARSED, lambda one: one[BAD].isNotNull())
        return Decoded(
            kept.select(f.inline(f.transform(good, lambda one: one[ROW]))),
            kept.select(f.inline(f.transform(bad, lambda one: one[BAD]))),
        )

    def together(self, parsed: Parsed, pipeline: str | None) -> DataFrame:
        from suwi.spark.write import letter_columns

        names = self._df.columns
        return self._in_one_pass(parsed, lambda reason: letter_columns(names, reason, pipeline))

    def _in_one_pass(
        self, parsed: Parsed, bad_columns: Callable[[Column], list[Column]]
    ) -> DataFrame:
        """All rows; of those that are bad the column `BAD` has these columns."""
        from pyspark.sql import functions as f

        df, one = self._with(parsed)
        if self._nulls == "drop":
            df = df.filter(f.col("value").isNotNull())
        bad = f.when(~self._is_good(parsed, one), f.struct(*bad_columns(self._why(parsed, one))))
        return df.select(*self._columns(parsed, one), bad.alias(BAD))

    def _with(self, parsed: Parsed) -> tuple[DataFrame, Column]:
        """The rows with what was parsed, and its column."""
        from pyspark.sql import functions as f

        taken = {f"_{name}" for name in self._kept}
        for name in parsed.schema.names:
            if name.lower() in taken:
                raise CannotDecode(f"the field {name!r} has the name of a column that decode adds")
        # What `unpivot` gives is not computed again for each use, as a column would be: conditions
        # on it and choices of columns stay above it. Unlike a generator's it is compiled.
        kept = [*self._kept, "value"]
        df = self._df.unpivot(kept, [parsed.value.alias(_PARSED)], _PARSED_NAME, _PARSED)
        return df, f.col(_PARSED)

    def _columns(self, parsed: Parsed, one: Column) -> list[Column]:
        return [one[ROW][name].alias(name) for name in parsed.schema.names] + self._source()

    def _why(self, parsed: Parsed, one: Column) -> Column:
        """What is wrong with a bad record."""
        from pyspark.sql import functions as f

        return f.coalesce(
            *_reasons(self._faults),
            f.when(f.col("value").isNull(), "the value is null"),
            parsed.reason(one),
            *_reasons(self._bounds(parsed, one)),
        )

    def _is_good(self, parsed: Parsed, one: Column) -> Column:
        from pyspark.sql import functions as f

        good = one[ROW].isNotNull() & parsed.is_good(one)
        for fault in self._bounds(parsed, one):
            good &= ~fault.condition
        good = surely(good)
        if self._nulls == "keep":
            good |= f.col("value").isNull()
        for fault in self._faults:
            good &= ~fault.condition
        return good

    def _bounds(self, parsed: Parsed, one: Column) -> Iterator[Fault]:
        return out_of_bounds(one[ROW], parsed.schema, self._max_future)

    def _source(self) -> list[Column]:
        from pyspark.sql import functions as f

        return [f.col(name).alias(f"_{name}") for name in self._kept]

    def _bad_columns(self, reason: Column) -> list[Column]:
        from pyspark.sql import functions as f

        return [*(f.col(name) for name in (*self._kept, "value")), reason.alias(REASON)]


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _reasons(faults: Iterable[Fault]) -> list[Column]:
    from pyspark.sql import functions as f

    return [f.when(fault.condition, fault.reason) for fault in faults]
