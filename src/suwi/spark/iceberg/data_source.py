"""`format("suwi-iceberg")`: how a table is planned for and opened, and the sink as Spark sees it.

The writers are those of `table_writer.py`. Unlike a Delta table, an Iceberg table is created and
extended before tasks start: its files have the ids of its columns.
"""

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from suwi.spark.delta.errors import (
    CommitContended,
    DeltaSinkError,
    SchemaMismatch,
    UnsupportedTable,
)
from suwi.spark.delta.schema import Fit, check_types, delta_schema, fit
from suwi.spark.delta.storage import Storage
from suwi.spark.gc_freeze import freeze_loaded
from suwi.spark.iceberg.files import IcebergFiles
from suwi.spark.iceberg.schema import (
    file_schema,
    iceberg_schema,
    partition_spec,
    partition_texts,
    spark_schema,
)
from suwi.spark.iceberg.table import (
    OpenIceberg,
    create_table,
    extend_table,
    find_table,
    identity_of,
)
from suwi.spark.options import TableOptions, read_iceberg_options
from suwi.spark.table_commit import CommitRefused, Planned, TableFormat
from suwi.spark.table_writer import BatchWriter, StreamWriter

if TYPE_CHECKING:
    from pyiceberg.table import Table

FORMAT: Final = "suwi-iceberg"
_PYICEBERG: Final = "0.12."
_DATA: Final = "data"
_EXTENSIONS_MAX: Final = 10
_WIDEN: Final = (
    "update_schema().update_column({path!r}, …) of pyiceberg, or ALTER TABLE, makes it {kind}"
)


class IcebergFormat(TableFormat):
    def __init__(self, options: TableOptions) -> None:
        super().__init__(options)
        self._location = ""
        self._properties: dict[str, Any] = {}

    def judge(self, schema: StructType, overwrite: bool) -> None:
        _check(schema, overwrite)
        table = find_table(self.options)
        if table is not None:
            self._fitted(table, schema)
        else:
            partition_spec(iceberg_schema(delta_schema(schema)), self.options.partition_by)

    def plan(self, schema: StructType, overwrite: bool) -> Planned:
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        _check(schema, overwrite)
        table, written = self._extended(schema)
        columns = file_schema(table.schema(), written)
        spec = table.spec()
        outermost = {field.field_id for field in columns.fields}
        missing = [field.name for field in spec.fields if field.source_id not in outermost]
        if missing:
            raise SchemaMismatch(
                f"the table is partitioned by {missing[0]}: the data has no such outermost column"
            )
        files = IcebergFiles(
            schema=schema_to_pyarrow(columns),
            partition_by=tuple(field.name for field in spec.fields),
            target_bytes=self.options.target_bytes,
            codec=self.options.codec,
            subdirectory=_DATA,
            columns=columns,
            spec=spec,
            properties=dict(table.properties),
        )
        by = partition_texts(table.schema(), spec)
        return Planned(files, StructType.fromJson(written), by, identity_of(table))

    def _extended(self, schema: StructType) -> "tuple[Table, dict[str, Any]]":
        """The table with all columns of the data, and the schema of the files."""
        for _ in range(_EXTENSIONS_MAX):
            table = self.open(schema).table
            fitted = self._fitted(table, schema)
            if fitted.merged == spark_schema(table.schema()):
                return table, fitted.written
            try:
                extend_table(table, fitted.merged)
            except CommitRefused:
                pass  # Another driver has changed the schema, perhaps in the same way.
        raise CommitContended("the table's schema is changed by others all the time")

    def _fitted(self, table: "Table", schema: StructType) -> Fit:
        """Raises `DeltaSinkError`."""
        given = self.options.partition_by
        has = partition_texts(table.schema(), table.spec())
        wanted = partition_texts(table.schema(), partition_spec(table.schema(), given))
        if given and wanted != has:
            listed = ", ".join(has) or "nothing"
            raise SchemaMismatch(
                f"the table is partitioned by {listed}, the data by {', '.join(wanted)}"
            )
        known = spark_schema(table.schema())
        return fit(schema, known, merge=self.options.merge_schema, widen=_WIDEN)

    def open(self, schema: StructType) -> OpenIceberg:
        found = self.find()
        return found or self._opened(create_table(self.options, delta_schema(schema)))

    def find(self) -> OpenIceberg | None:
        table = find_table(self.options)
        return None if table is None else self._opened(table)

    def _opened(self, table: "Table") -> OpenIceberg:
        self._location = table.location()
        self._properties = dict(table.io.properties)
        return OpenIceberg(table)

    def storage(self) -> Storage:
        from pyiceberg.io.pyarrow import PyArrowFileIO

        if not self._location:
            raise UnsupportedTable(f"{self.options.uri} is not in its catalog any more")
        io = PyArrowFileIO(self._properties)
        scheme, netloc, path = io.parse_location(self._location)
        return Storage(io.fs_by_scheme(scheme, netloc), path.rstrip("/"), scheme == "file")


def _check(schema: StructType, overwrite: bool) -> None:
    """Raises `DeltaSinkError`."""
    try:
        from pyiceberg import __version__ as release
    except ImportError:
        release = "missing"
    if not release.startswith(_PYICEBERG):
        raise UnsupportedTable(f"pyiceberg is {release}: pip install 'suwi[iceberg]'")
    if overwrite:
        raise DeltaSinkError("an Iceberg table is only appended to: use mode append")
    check_types(schema, (), "an Iceberg")


class IcebergDataSource(DataSource):
    """Only a sink."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        freeze_loaded("judge")
        return StreamWriter(IcebergFormat(read_iceberg_options(self.options)), schema, overwrite)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        freeze_loaded("judge")
        return BatchWriter(IcebergFormat(read_iceberg_options(self.options)), schema, overwrite)
