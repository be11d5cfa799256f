"""Decoding in Python, on Arrow batches: what Spark's pip package has no jars for.

`decode_in_python` runs a format's decoder in Spark's Python workers. A `Format` travels there; what
it opens there is kept for as long as the worker lives.
Invariant: a record that cannot be decoded is a bad row, whatever it holds; anything else that goes
wrong (a registry that is down) fails the task.
"""

from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from suwi.decoders.errors import BadRecord, CannotDecode
from suwi.spark.decoders.places import ROW, Parsed

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

Decoder = Callable[[bytes], dict[str, Any]]
"""The fields of one value. Raises `BadRecord`."""

_REASON = "__reason"
_DOES_NOT_FIT = (pa.ArrowException, ValueError, TypeError, OverflowError)


class Format(Hashable, Protocol):
    """How values are decoded: hashable, and small enough to be sent to every task."""

    @property
    def schema(self) -> pa.Schema: ...

    def open(self) -> Decoder: ...


def decode_in_python(body: "Column", form: Format) -> Parsed:
    # Not mapInArrow: PySpark asks for pandas there, though it does not use it.
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    def parse(values: pa.Array) -> pa.Array:
        return decode_values(values, form)

    arrow_udf = getattr(f, "arrow_udf", None)
    if arrow_udf is None:
        raise CannotDecode("Avro and Protobuf need PySpark 4.1 or newer")
    struct = arrow_udf(parse, spark_type(_row_type(form)))(body)
    schema = spark_type(pa.struct(list(form.schema)))
    assert isinstance(schema, StructType)
    return Parsed(
        value=f.struct(struct.alias(ROW)),
        schema=schema,
        is_good=lambda one: one[ROW][_REASON].isNull(),
        reason=lambda one: one[ROW][_REASON],
    )


def decode_values(values: pa.Array, form: Format) -> pa.Array:
    """A struct of the columns and the reason, which is null where a value is good."""
    decoder, kind = _open(form), _row_type(form)
    rows = [v if v is None else _decode(v, decoder) for v in values.to_pylist()]
    try:
        return pa.array(rows, kind)
    except _DOES_NOT_FIT:
        # Some value has no place in its column: a moment or a number that is too large.
        return pa.array([_checked(row, kind) for row in rows], kind)


def _decode(value: bytes, decoder: Decoder) -> dict[str, Any]:
    try:
        return decoder(value)
    except BadRecord as bad:
        return {_REASON: str(bad)}


def _checked(row: dict[str, Any] | None, kind: pa.StructType) -> dict[str, Any] | None:
    reason = _misfit(row, kind, "")
    return row if reason is None else {_REASON: reason}


def _misfit(value: Any, kind: pa.DataType, path: str) -> str | None:
    """Why a value has no place in its column, by the innermost field; None: it has."""
    try:
        pa.array([value], kind)
        return None
    except _DOES_NOT_FIT as error:
        reason = (
            f"field {path!r} does not fit into {spark_type(kind).simpleString().upper()}: {error}"
        )
    inside: list[tuple[Any, pa.DataType, str]] = []
    if pa.types.is_struct(kind):
        above = f"{path}." if path else ""
        inside = [(value.get(one.name), one.type, f"{above}{one.name}") for one in kind]
    elif pa.types.is_map(kind):
        inside = [(one, kind.item_type, path) for _, one in value]
    elif pa.types.is_list(kind):
        inside = [(one, kind.value_type, path) for one in value]
    return next(filter(None, (_misfit(*one) for one in inside)), reason)


def _row_type(form: Format) -> pa.StructType:
    return pa.struct([*form.schema, (_REASON, pa.string())])


@lru_cache(maxsize=64)
def _open(form: Format) -> Decoder:
    return form.open()


def spark_type(kind: pa.DataType) -> "DataType":
    from pyspark.sql import types as t

    simple = {
        pa.bool_(): t.BooleanType(),
        pa.int32(): t.IntegerType(),
        pa.int64(): t.LongType(),
        pa.float32(): t.FloatType(),
        pa.float64(): t.DoubleType(),
        pa.string(): t.StringType(),
        pa.binary(): t.BinaryType(),
        pa.date32(): t.DateType(),
        pa.timestamp("us", "UTC"): t.TimestampType(),
        pa.timestamp("us"): t.TimestampNTZType(),
        pa.duration("us"): t.DayTimeIntervalType(),
    }
    if kind in simple:
        return simple[kind]
    if pa.types.is_decimal(kind):
        return t.DecimalType(kind.precision, kind.scale)
    if pa.types.is_map(kind):
        return t.MapType(spark_type(kind.key_type), spark_type(kind.item_type))
    if pa.types.is_list(kind):
        return t.ArrayType(spark_type(kind.value_type))
    assert pa.types.is_struct(kind), kind
    return t.StructType([t.StructField(one.name, spark_type(one.type)) for one in kind])
