"""What a task does for an Iceberg table: files with the table's column ids, by partition.

`IcebergFiles` is the plan for `FileWriter`, `data_file` what the driver makes of a file.
Invariant: rows of one file have one value of each partition transform.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from suwi.spark.delta.errors import DeltaSinkError
from suwi.spark.delta.files import FilePlan, WrittenFile
from suwi.spark.delta.partitions import Values, directory, grouped

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyiceberg.manifest import DataFile
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

_BOUNDS: Final = ("lower_bounds", "upper_bounds")
_COUNTS: Final = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts")


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergFiles(FilePlan):
    columns: "Schema"
    """Of the files."""
    spec: "PartitionSpec"
    properties: dict[str, str]
    """Of the table: which columns have statistics."""

    @property
    def file_schema(self) -> "pa.Schema":
        return self.schema

    def split(self, table: "pa.Table") -> Iterator[tuple[Values, "pa.Table"]]:
        from pyiceberg.conversions import to_bytes

        kinds = [field.field_type for field in self.spec.partition_type(self.columns).fields]
        for scalars, rows in grouped(table, [_numbers(one) for one in self._transformed(table)]):
            found = zip(kinds, (scalar.as_py() for scalar in scalars), strict=True)
            yield (
                tuple(None if one is None else to_bytes(kind, one).hex() for kind, one in found),
                rows,
            )

    def _transformed(self, table: "pa.Table") -> "Iterator[pa.ChunkedArray]":
        for field in self.spec.fields:
            source = self.columns.find_field(field.source_id)
            yield field.transform.pyarrow_transform(source.field_type)(table.column(source.name))

    def directory(self, values: Values) -> str:
        found = read_values(self.columns, self.spec, values)
        texts = tuple(map(self._text, self.spec.fields, found))
        return directory(self.partition_by, texts)

    def _text(self, field: "PartitionField", value: Any) -> str | None:
        if value is None:
            return None
        try:
            kind = self.columns.find_type(field.source_id)
            return field.transform.to_human_string(kind, value)
        except OverflowError:
            raise DeltaSinkError(
                f"{field.name} partitions the table and is a time that is not in years 1 to 9999"
            ) from None

    def describe(self, footer: "pq.FileMetaData", with_nan: frozenset[str]) -> str:
        try:
            stated = self._statistics(footer, self.properties)
        except (OverflowError, ValueError):
            # Python has no moments before the year 1 or after 9999.
            stated = self._statistics(footer, {"write.metadata.metrics.default": "counts"})
        ids = {self.columns.find_field(name).field_id for name in with_nan}
        for bounds in _BOUNDS:
            kept = stated[bounds].items()
            # Engines do not agree on where NaN is in the order.
            stated[bounds] = {one: value.hex() for one, value in kept if one not in ids}
        return json.dumps(stated)

    def _statistics(self, footer: "pq.FileMetaData", properties: dict[str, str]) -> dict[str, Any]:
        from pyiceberg.io.pyarrow import (
            compute_statistics_plan,
            data_file_statistics_from_parquet_metadata,
            parquet_path_to_id_mapping,
        )

        found = data_file_statistics_from_parquet_metadata(
            parquet_metadata=footer,
            stats_columns=compute_statistics_plan(self.columns, properties),
            parquet_column_mapping=parquet_path_to_id_mapping(self.columns),
        )
        stated: dict[str, Any] = found.to_serialized_dict()
        return stated


def _numbers(column: "pa.ChunkedArray") -> "pa.ChunkedArray":
    """Dates and times as Iceberg has them: Python's are of the years 1 to 9999."""
    import pyarrow as pa

    if pa.types.is_date32(column.type):
        return column.cast(pa.int32())
    return column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column


def read_values(schema: "Schema", spec: "PartitionSpec", values: Values) -> list[Any]:
    """The partition values of a file."""
    from pyiceberg.conversions import from_bytes

    kinds = [field.field_type for field in spec.partition_type(schema).fields]
    return [
        None if value is None else from_bytes(kind, bytes.fromhex(value))
        for kind, value in zip(kinds, values, strict=True)
    ]


def data_file(table: "Table", file: WrittenFile) -> "DataFile":
    """As a manifest of the table has it."""
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    stated = json.loads(file.statistics)
    for name in (*_COUNTS, *_BOUNDS):
        stated[name] = {
            int(one): bytes.fromhex(value) if name in _BOUNDS else value
            for one, value in stated[name].items()
        }
    spec = table.spec()
    values = tuple(file.partition_values.values())
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{table.location().rstrip('/')}/{file.path}",
        file_format=FileFormat.PARQUET,
        partition=Record(*read_values(table.schema(), spec, values)),
        file_size_in_bytes=file.size_bytes,
        sort_order_id=None,
        spec_id=spec.spec_id,
        equality_ids=None,
        key_metadata=None,
        **stated,
    )
