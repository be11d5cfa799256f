"""A table's version through Spark's own Parquet source: faster than a source in Python.

`read_with_spark` gives a DataFrame of exactly the files of the version, or None where only the
source of `reader.py` can be sure of the rows: then that is used, and says what is wrong, if it is.
Spark takes partition values from the names of directories, which Delta does not promise to mean
anything, so each name is compared with the log first.
"""

import os.path
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import unquote

from suwi.spark.delta.errors import DeltaSourceError, TableMissing
from suwi.spark.delta.files import NAME
from suwi.spark.delta.log import DataFile, files_of, open_for_reading
from suwi.spark.delta.partitions import NULL_DIRECTORY
from suwi.spark.delta.scan import chosen_schema, full_schema, typed_where, wanted_files
from suwi.spark.delta.storage import local_path
from suwi.spark.releases import arrow_schema
from suwi.spark.where import COMPARE, Condition

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

    from suwi.spark.options import TableOptions

# Of partitions: Spark reads the text of the log as it was meant.
_KINDS: Final = ("string", "integer", "long", "boolean", "date", "timestamp", "decimal")
# Of conditions: Spark compares such values as Arrow does; NaN, and texts with a collation, not.
_COMPARED: Final = frozenset(
    "string tinyint smallint int bigint boolean date timestamp timestamp_ntz decimal".split()
)
# Of a text of fixed length, which Spark compares as if spaces followed.
_CHAR: Final = "__CHAR_VARCHAR_TYPE_STRING"
_GLOB: Final = frozenset("{}[]*?\\")
# As the session's settings could say otherwise.
_OPTIONS: Final = {
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
}


def read_with_spark(spark: "SparkSession", options: "TableOptions") -> "DataFrame | None":
    """As the table is now, or at the version that the options name."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import is_remote

    folder = local_path(options.uri)
    if is_remote() or folder is None or options.version_of_batch:
        return None
    try:
        table = open_for_reading(options, options.version_as_of)
    except (DeltaSourceError, TableMissing):
        return None
    schema = full_schema(table, options)
    chosen = chosen_schema(schema, options)
    files = wanted_files(files_of(table), options.choice, schema)
    kinds = {field.name: field.dataType for field in schema.fields}
    columns = table.metadata().partition_columns
    conditions = typed_where(options.choice, arrow_schema(schema))
    is_known = all(kinds[name].typeName() in _KINDS for name in columns)
    if not files or not is_known or not all(_is_compared(one, schema) for one in conditions):
        return None
    folder = os.path.abspath(folder)
    if _GLOB.intersection(folder) or not all(_is_plain(file, columns) for file in files):
        return None
    if "timestamp" in schema.simpleString() and any(_has_ns(folder, file) for file in files):
        return None
    reader = spark.read.schema(schema).options(basePath=f"file://{folder}", **_OPTIONS)
    try:
        rows = reader.parquet(*(f"file://{folder}/{file.path}" for file in files))
    except AnalysisException:
        return None  # A file is gone.
    for one in conditions:
        rows = rows.where(_condition(one, kinds[one.column]))
    return rows.select(*(_quoted(name) for name in chosen.fieldNames()))


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _is_compared(one: Condition, schema: "StructType") -> bool:
    if "null" in one.operator:
        return True
    field, value = schema[one.column], one.value
    if isinstance(value, datetime) and value.microsecond % 1000 and one.operator in ("<", "!="):
        return False  # Of a file in milliseconds Spark would cut the value, and pass over too much.
    simple = field.dataType.simpleString().partition("(")[0]
    return simple in _COMPARED and _CHAR not in field.metadata


def _condition(one: Condition, kind: "DataType") -> "Column":
    from pyspark.sql import functions as f

    def literal(value: Any) -> "Column":
        # Of a moment without a zone PySpark would make one in the zone of this machine.
        return f.lit(value.isoformat() if isinstance(value, date) else value).cast(kind)

    column = f.col(_quoted(one.column))
    match one.operator:
        case "null":
            return column.isNull()
        case "not null":
            return column.isNotNull()
        case "in":
            return column.isin(*map(literal, one.value))
    return cast("Column", COMPARE[one.operator](column, literal(one.value)))


def _is_plain(file: DataFile, columns: list[str]) -> bool:
    """Whether the directories of a file say exactly its partition values."""
    *directories, name = file.path.split("/")
    said = []
    for one in directories:
        column, _, value = one.partition("=")
        said.append((_text(column), None if value == NULL_DIRECTORY else _text(value)))
    meant = [(column, file.partition_values.get(column)) for column in columns]
    return said == meant and not _GLOB.intersection(file.path) and not name.startswith(("_", "."))


def _has_ns(folder: str, file: DataFile) -> bool:
    """Whether a file has moments in nanoseconds, which Spark does not read: pandas writes them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if NAME.fullmatch(os.path.basename(file.path)):
        return False  # One of ours.
    try:
        footer = pq.read_metadata(os.path.join(folder, file.path))
    except (OSError, pa.ArrowException):
        return False  # Spark says what is wrong with it.
    return "timeUnit=nanoseconds" in str(footer.schema)


def _text(name: str) -> str:
    return unquote(name, "latin-1")  # As Spark does it: a character for each escape.
