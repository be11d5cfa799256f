"""A task that reads a table's files: Parquet to Arrow batches of exactly the query's columns.

`read_files` is the task, `wanted_files` passes over files by partition values and statistics, and
`chosen_schema` is what a query gets. Columns that a file does not have are null, and values that
are narrower in it than in the table are widened.
"""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from suwi.spark.delta.errors import CannotRead, VersionGone
from suwi.spark.delta.log import DataFile
from suwi.spark.delta.storage import storage_of
from suwi.spark.delta.table import table_schema
from suwi.spark.gc_freeze import freeze_loaded
from suwi.spark.options import BadOption, Choice, TableOptions
from suwi.spark.releases import arrow_schema
from suwi.spark.where import BadWhere, Bounds, Condition, expression, may_match, typed

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable
    from pyspark.sql.types import StructType

_ROWS_MAX: Final = 10_000
# delta-rs states bounds of decimals as floats, rounded to 53 bits more than once.
_ROUNDING: Final = Decimal(2) ** -50
_CHANGES: Final = """
    {"type": "struct", "fields": [
        {"name": "_change_type", "type": "string", "nullable": true, "metadata": {}},
        {"name": "_commit_version", "type": "long", "nullable": true, "metadata": {}},
        {"name": "_commit_timestamp", "type": "timestamp", "nullable": true, "metadata": {}}
    ]}
"""


def full_schema(table: "DeltaTable", options: TableOptions) -> "StructType":
    """All columns that a query can read."""
    from pyspark.sql.types import StructType

    schema = StructType.fromJson(table_schema(table))
    if options.read_change_feed:
        schema = StructType([*schema.fields, *StructType.fromJson(json.loads(_CHANGES)).fields])
    return schema


def chosen_schema(schema: "StructType", options: TableOptions) -> "StructType":
    """The columns that a query reads. Raises `BadOption`."""
    from pyspark.sql.types import StructType

    typed_where(options.choice, arrow_schema(schema))
    named = {field.name: field for field in schema.fields}
    for name in options.choice.columns:
        if name not in named:
            listed = ", ".join(named)
            raise BadOption(f"columns: there is no column {name!r}: {listed}", "columns")
    chosen = options.choice.columns or tuple(named)
    return StructType([named[name] for name in chosen])


def typed_where(choice: Choice, schema: "pa.Schema") -> tuple[Condition, ...]:
    try:
        return typed(choice.where, schema)
    except BadWhere as error:
        raise BadOption(f"where: {error}", "where") from None


# -- on the driver ---------------------------------------------------------------------------------


def wanted_files(
    files: Sequence[DataFile], choice: Choice, schema: "StructType"
) -> Sequence[DataFile]:
    """Those that may have rows for the conditions; `schema` is the full one."""
    if not choice.where:
        return files
    kinds = arrow_schema(schema)
    conditions = [one for one in typed_where(choice, kinds) if not one.column.startswith("_c")]
    return [
        file
        for file in files
        if all(may_match(one, bounds_of(file, one.column, kinds)) for one in conditions)
    ]


def bounds_of(file: DataFile, column: str, schema: "pa.Schema") -> Bounds:
    kind = schema.field(column).type
    if column in file.partition_values:
        text = file.partition_values[column]
        value = _value(text, kind)
        return Bounds(value, value, has_nulls=text is None, has_values=text is not None)
    nulls = file.statistics.get("nullCount", {}).get(column)
    nulls = nulls if isinstance(nulls, int) else None  # Of a struct: those of its fields.
    rows = file.statistics.get("numRecords")
    low = _value(file.statistics.get("minValues", {}).get(column), kind)
    high = _value(file.statistics.get("maxValues", {}).get(column), kind)
    if high is not None and hasattr(high, "tzinfo"):
        try:
            high += timedelta(milliseconds=1)  # Statistics of other writers cut off microseconds.
        except OverflowError:
            high = None
    if isinstance(low, Decimal):
        low -= abs(low) * _ROUNDING
    if isinstance(high, Decimal):
        high += abs(high) * _ROUNDING
    return Bounds(low, high, nulls != 0, nulls is None or rows is None or nulls < rows)


def _value(stated: Any, kind: "pa.DataType") -> Any:
    """A value of the log as Python has values of the type; None: it is null, or not understood."""
    import pyarrow as pa

    if stated is None or isinstance(stated, dict):
        return None
    try:
        if pa.types.is_decimal(kind):
            # It may have an exponent, or more digits than the type: Arrow would refuse it.
            exact = Decimal(str(stated))
            return exact if exact.is_finite() else None
        if pa.types.is_floating(kind):
            # As the type has it: 0.1 in 32 bits is not Python's 0.1.
            number = pa.scalar(float(stated), kind).as_py()
            return None if math.isnan(number) else number
        return _scalar(stated, kind).as_py() if isinstance(stated, str) else stated
    except (pa.ArrowException, ValueError, ArithmeticError):
        return None


def _scalar(text: str, kind: "pa.DataType") -> "pa.Scalar":
    """A partition value, or a bound, from its text."""
    import pyarrow as pa

    if pa.types.is_binary(kind):
        return pa.scalar(text.encode(), kind)
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        naive = text.removesuffix("Z").replace("T", " ")
        return pa.scalar(naive).cast(pa.timestamp("us")).cast(pa.int64()).cast(kind)
    return pa.scalar(text).cast(kind)


class Scan(NamedTuple):
    """The description of a scan, for its tasks."""

    options: TableOptions
    schema: "StructType"
    """The columns that the query reads."""
    full: "StructType"
    """All columns, for conditions."""


# -- in a task -------------------------------------------------------------------------------------


def read_files(scan: Scan, files: Iterable[DataFile]) -> Iterator["pa.RecordBatch"]:
    """Raises `VersionGone`, `CannotRead`, OSError."""
    import pyarrow as pa

    freeze_loaded("scan")
    options, full = scan.options, arrow_schema(scan.full)
    target = arrow_schema(scan.schema)
    names = dict.fromkeys((*target.names, *(one.column for one in options.choice.where)))
    needed = pa.schema([full.field(n) if n in full.names else target.field(n) for n in names])
    wanted = expression(typed_where(options.choice, needed), needed)
    storage = storage_of(options.uri, options.storage)
    for file in files:
        try:
            source = storage.read(file.path)
        except FileNotFoundError:
            raise VersionGone(
                f"{file.path} of version {file.version} of {options.uri} is gone: it was vacuumed "
                "before it was read"
            ) from None
        with source:
            for batch in batches_of(source, file, needed):
                if wanted is None:
                    yield batch.select(target.names)
                    continue
                table = pa.Table.from_batches([batch]).filter(wanted).select(target.names)
                yield from table.combine_chunks().to_batches()


def batches_of(source: Any, file: DataFile, needed: "pa.Schema") -> Iterator["pa.RecordBatch"]:
    """The rows of an open file, with these columns. Raises `CannotRead`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    # Spark writes moments as INT96 unless told otherwise: beyond the years that nanoseconds reach.
    parquet = pq.ParquetFile(source, coerce_int96_timestamp_unit="us")
    there = set(parquet.schema_arrow.names)
    inside = [name for name in needed.names if name in there]
    for batch in parquet.iter_batches(_ROWS_MAX, columns=inside):
        arrays = [_column(batch, field, file) for field in needed]
        yield pa.RecordBatch.from_arrays(arrays, schema=needed)


def _column(batch: "pa.RecordBatch", field: "pa.Field", file: DataFile) -> "pa.Array":
    import pyarrow as pa

    if field.name in batch.schema.names:
        try:
            return conform(batch.column(field.name), field.type)
        except pa.ArrowInvalid as error:
            raise CannotRead(f"`{field.name}` of {file.path} is no {field.type}: {error}") from None
    if field.name in file.partition_values:
        text = file.partition_values[field.name]
        value = pa.scalar(None, field.type) if text is None else _scalar(text, field.type)
        return pa.repeat(value, batch.num_rows)
    given = {
        "_change_type": (file.change, pa.string()),
        "_commit_version": (file.version, pa.int64()),
        "_commit_timestamp": (file.timestamp_ms * 1000, pa.int64()),
    }
    value, kind = given.get(field.name, (None, field.type))
    return pa.repeat(pa.scalar(value, kind), batch.num_rows).cast(field.type)


def conform(array: "pa.Array", kind: "pa.DataType") -> "pa.Array":
    """An array with the fields, the names and the width of a type; what is missing is null."""
    import pyarrow as pa

    if array.type == kind:
        return array
    if array.offset:
        array = pa.concat_arrays([array])  # Masks and offsets below are for whole arrays.
    if pa.types.is_struct(kind):
        children = []
        for number in range(kind.num_fields):
            field = kind.field(number)
            at = array.type.get_field_index(field.name)
            children.append(
                pa.nulls(len(array), field.type) if at < 0 else conform(array.field(at), field.type)
            )
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=_mask(array))
    if pa.types.is_list(kind):
        values = conform(array.values, kind.value_type)
        return pa.ListArray.from_arrays(array.offsets, values, kind, mask=_mask(array))
    if pa.types.is_map(kind):
        keys, items = conform(array.keys, kind.key_type), conform(array.items, kind.item_type)
        return pa.MapArray.from_arrays(array.offsets, keys, items, kind, mask=_mask(array))
    if pa.types.is_timestamp(kind) and pa.types.is_timestamp(array.type):
        return array.cast(pa.timestamp("us", array.type.tz), safe=False).cast(kind)
    return array.cast(kind)


def _mask(array: "pa.Array") -> "pa.Array | None":
    return array.is_null() if array.null_count else None
