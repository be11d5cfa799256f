"""`format("suwi-delta")` as Spark sees it: sources and sinks, streaming and batch.

The readers are in `reader.py`; the writers are those of `table_writer.py`, for which `DeltaFormat`
says how a table is planned for and opened.
"""

from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from suwi.spark.delta.commit import Apply, OpenDelta, append_files
from suwi.spark.delta.errors import DeltaSinkError, TableMissing
from suwi.spark.delta.files import FilePlan
from suwi.spark.delta.schema import added_fields, arrow_schema, check_types, fit
from suwi.spark.delta.storage import Storage, storage_of
from suwi.spark.delta.table import (
    check_partitions,
    check_place,
    check_release,
    check_supported,
    open_or_create,
    open_table,
    statistics_columns,
    table_schema,
)
from suwi.spark.delta.upsert import STAGING, check_keys, merge_files, replace_files
from suwi.spark.gc_freeze import freeze_loaded
from suwi.spark.option_table import STORAGE, TABLE_READ, Use, find
from suwi.spark.options import BadOption, TableOptions, read_table_options
from suwi.spark.table_commit import Planned, TableFormat
from suwi.spark.table_writer import BatchWriter, StreamWriter

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader

    from suwi.spark.delta.scan import Scan

FORMAT: Final = "suwi-delta"
_KEPT: Final = "suwi."
"""Before the names of options in the schema that a table of the catalog has."""


class DeltaFormat(TableFormat):
    def __init__(self, options: TableOptions, apply: Apply | None = None) -> None:
        super().__init__(options)
        self._apply = apply

    def judge(self, schema: StructType, overwrite: bool) -> None:
        self.plan(schema, overwrite)

    def plan(self, schema: StructType, overwrite: bool) -> Planned:
        check_release()
        written = schema
        partition_by = self.options.partition_by
        try:
            table = open_table(self.options)
        except TableMissing:
            table = None
            check_place(self.options)
        else:
            check_supported(table)
            if partition_by:
                check_partitions(table, partition_by)
            partition_by = tuple(table.metadata().partition_columns)
            fitted = fit(schema, table_schema(table), merge=self.options.merge_schema)
            written = StructType.fromJson(fitted.written)
        check_types(schema, partition_by)
        check_keys(self.options, schema)
        if self.options.keys and overwrite:
            raise DeltaSinkError("keys replace rows one by one: they do not go with overwriting")
        if self.options.replace_where and not overwrite:
            raise DeltaSinkError("replaceWhere is for mode overwrite")
        is_staged = self.options.is_staged
        files = FilePlan(
            schema=arrow_schema(written),
            partition_by=() if is_staged else partition_by,
            target_bytes=self.options.target_bytes,
            codec=self.options.codec,
            columns_with_statistics=statistics_columns(table),
            subdirectory=STAGING if is_staged else "",
        )
        return Planned(files, written, partition_by)

    def open(self, schema: StructType) -> OpenDelta:
        return self._opened(open_or_create(self.options, schema))

    def find(self) -> OpenDelta | None:
        try:
            return self._opened(open_table(self.options))
        except TableMissing:
            return None

    def _opened(self, table: "DeltaTable") -> OpenDelta:
        apply: Apply = append_files
        if self.options.is_staged:
            apply = (merge_files if self.options.keys else replace_files)(self.options)
        return OpenDelta(table, self.options, self._apply or apply)

    def storage(self) -> Storage:
        return storage_of(self.options.uri, self.options.storage)


class DeltaDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        """Of the table at the version that is asked for, and the columns that are."""
        from suwi.spark.delta.scan import chosen_schema

        of_streams = (name for name in self.options if find(name, Use.TABLE_STREAM))
        is_stream = any(find(name, Use.TABLE_BATCH) is None for name in of_streams)
        scan = self._scan(Use.TABLE_STREAM if is_stream else Use.TABLE_BATCH, StructType([]))
        chosen = chosen_schema(scan.full, scan.options)
        if "provider" in self.options:
            # CREATE TABLE: of all this Spark's catalog gives back the schema only, to who reads it.
            kept = {name: given for name, given in self.options.items() if _is_kept(name)}
            chosen.fields[0].metadata = {f"{_KEPT}{name}": given for name, given in kept.items()}
        return chosen

    def reader(self, schema: StructType) -> "DataSourceReader":
        from suwi.spark.delta.reader import BatchReader

        return BatchReader(self._scan(Use.TABLE_BATCH, schema))

    def streamReader(self, schema: StructType) -> "DataSourceStreamReader":  # noqa: N802
        from suwi.spark.delta.reader import TableSource
        from suwi.spark.stream_reader import make_stream_reader

        return make_stream_reader(TableSource(self._scan(Use.TABLE_STREAM, schema)))

    def _scan(self, use: Use, schema: StructType) -> "Scan":
        from suwi.spark.delta.log import open_for_reading
        from suwi.spark.delta.scan import Scan, full_schema

        kept = schema.fields[0].metadata if schema.fields and "path" not in self.options else {}
        named = {name[len(_KEPT) :]: text for name, text in kept.items() if _KEPT in name}
        remembered = {name: text for name, text in named.items() if find(name, use)}
        options = read_table_options({**remembered, **self.options}, use)
        full = full_schema(open_for_reading(options, options.version_as_of), options)
        unknown = list(added_fields(schema.jsonValue(), full.jsonValue()))
        if unknown:
            raise BadOption(
                f"the table has no {', '.join(unknown)}: leave out `schema(…)`, or load it again"
            )
        return Scan(options, schema, full)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        freeze_loaded("judge")
        return StreamWriter(DeltaFormat(read_table_options(self.options)), schema, overwrite)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        freeze_loaded("judge")
        return BatchWriter(DeltaFormat(read_table_options(self.options)), schema, overwrite)


def _is_kept(name: str) -> bool:
    """Raises `BadOption` for what the catalog would show to everybody."""
    if name.lower().startswith(STORAGE):
        raise BadOption(
            f"option {name!r}: Spark's catalog would keep it in the open. Make a temporary view "
            "instead",
            name,
        )
    return any(find(name, use) for use in TABLE_READ)
