"""The columns of an Iceberg table: in Spark's terms, with their ids, and what partitions them.

What fits into a table is decided as for Delta (`delta/schema.py`), which compares schemas as Spark
writes them: `spark_schema` and `iceberg_schema` translate, `file_schema` gives the columns of files
the ids of the table's, `partition_spec` understands `day(at)`.
Invariant: a column of a file has the id and the type of the table's column of that name.
"""

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from suwi.spark.delta.errors import SchemaMismatch, UnsupportedTable
from suwi.spark.releases import arrow_schema

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema

_PARTITION: Final = re.compile(r"(\w+)\(\s*(?:(\d+)\s*,\s*)?([^()]+?)\s*\)")
_PLAIN: Final = ("identity", "year", "month", "day", "hour")
_NUMBERED: Final = ("bucket", "truncate")
_ENDINGS: Final = {"truncate": "trunc"}


def spark_schema(schema: "Schema") -> dict[str, Any]:
    """As Spark writes it. Raises `UnsupportedTable`."""
    from pyiceberg.io.pyarrow import _pyarrow_schema_ensure_small_types, schema_to_pyarrow
    from pyspark.errors import PySparkTypeError
    from pyspark.sql.pandas.types import from_arrow_schema

    large = schema_to_pyarrow(schema, include_field_ids=False)
    try:
        spark = from_arrow_schema(_pyarrow_schema_ensure_small_types(large), True)
    except PySparkTypeError as error:
        raise UnsupportedTable(f"the table has a type that Spark has not: {error}") from None
    found: dict[str, Any] = spark.jsonValue()
    return found


def iceberg_schema(schema: dict[str, Any]) -> "Schema":
    """For a table that is created or extended, which gives the columns ids of its own."""
    from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids
    from pyiceberg.schema import assign_fresh_schema_ids
    from pyspark.sql.types import StructType

    arrow = arrow_schema(StructType.fromJson(schema))
    return assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(arrow))


def file_schema(table: "Schema", written: dict[str, Any]) -> "Schema":
    """The columns that are written, as the table has them; each may be null."""
    from pyiceberg.schema import Schema

    dumped = json.loads(table.model_dump_json(by_alias=True))
    return Schema.model_validate(_chosen(dumped, written))


def _chosen(table: Any, written: Any) -> Any:
    if isinstance(table, str):
        return table
    match table["type"]:
        case "struct":
            known = {field["name"]: field for field in table["fields"]}
            fields = []
            for wanted in written["fields"]:
                field = known[wanted["name"]]
                kind = _chosen(field["type"], wanted["type"])
                fields.append(
                    {"id": field["id"], "name": field["name"], "type": kind, "required": False}
                )
            return {"type": "struct", "fields": fields}
        case "list":
            element = _chosen(table["element"], written["elementType"])
            return {**table, "element": element, "element-required": False}
    value = _chosen(table["value"], written["valueType"])
    return {**table, "value": value, "value-required": False}


# -- partitions ------------------------------------------------------------------------------------


def partition_spec(schema: "Schema", partition_by: Sequence[str]) -> "PartitionSpec":
    """Raises `SchemaMismatch`."""
    from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
    from pyiceberg.transforms import parse_transform

    columns = {field.name: field for field in schema.fields}
    fields = []
    for at, text in enumerate(partition_by):
        found = _PARTITION.fullmatch(text)
        name, number, column = found.groups() if found else ("identity", None, text)
        kind = name.lower().removesuffix("s")
        if column not in columns or kind not in (_NUMBERED if number else _PLAIN):
            raise SchemaMismatch(
                f"{text!r} is to partition the table: give a column, or year, month, day, hour, "
                "bucket(16, …) or truncate(4, …) of one"
            )
        source = columns[column]
        transform: Any = parse_transform(f"{kind}[{number}]" if number else kind)
        if not transform.can_transform(source.field_type):
            raise SchemaMismatch(
                f"`{column}` is {source.field_type}: the table cannot be partitioned by {text}"
            )
        named = column if kind == "identity" else f"{column}_{_ENDINGS.get(kind, kind)}"
        fields.append(
            PartitionField(source.field_id, PARTITION_FIELD_ID_START + at, transform, named)
        )
    return PartitionSpec(*fields)


def partition_texts(schema: "Schema", spec: "PartitionSpec") -> tuple[str, ...]:
    """As they are given: `day(at)`, `bucket(16, id)`."""
    texts = []
    for field in spec.fields:
        column = schema.find_column_name(field.source_id)
        kind, _, number = str(field.transform).rstrip("]").partition("[")
        inside = f"{number}, {column}" if number else column
        texts.append(str(column) if kind == "identity" else f"{kind}({inside})")
    return tuple(texts)
