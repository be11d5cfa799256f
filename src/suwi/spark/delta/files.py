"""What a task does for a table: Arrow batches into Parquet files, each described.

`FileWriter.write_all` is the entrance. Rows gather in memory until they make a row group; the
fullest partition goes first when memory is short.
Invariant: a file that is described is complete; no other writer ever uses its name.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from suwi.env import SystemRandom
from suwi.spark.delta.errors import SchemaMismatch
from suwi.spark.delta.partitions import Values, directory, split
from suwi.spark.delta.statistics import describe_file
from suwi.spark.delta.storage import Storage

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

# Nobody else names files so: Spark and delta-rs put a number after `part-`.
NAME: Final = re.compile(r"part-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\.\w+\.parquet")
ROW_GROUP_BYTES: Final = 32 * 1024 * 1024
_BUFFERED_BYTES_MAX: Final = 96 * 1024 * 1024
# Per task. A file that is closed early is small; too many open files end the process.
_OPEN_FILES_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A data file that no commit names yet."""

    path: str
    """Relative to the table."""
    size_bytes: int
    rows: int
    partition_values: dict[str, str | None]
    statistics: str
    columns_with_nulls: frozenset[str]
    """Of the outermost columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePlan:
    """What the driver has decided about the files of a batch, and how Delta describes them."""

    schema: "pa.Schema"
    """All columns, those of the partitions too."""
    partition_by: tuple[str, ...] = ()
    target_bytes: int
    codec: str
    columns_with_statistics: int = -1
    subdirectory: str = ""

    @property
    def file_schema(self) -> "pa.Schema":
        import pyarrow as pa

        return pa.schema([field for field in self.schema if field.name not in self.partition_by])

    def split(self, table: "pa.Table") -> Iterator[tuple[Values, "pa.Table"]]:
        """The rows by partition, as they are in the files."""
        return split(table, self.partition_by)

    def directory(self, values: Values) -> str:
        return directory(self.partition_by, values)

    def describe(self, footer: "pq.FileMetaData", with_nan: frozenset[str]) -> str:
        """The statistics of a file; `with_nan`: floating-point columns in which one was seen."""
        return describe_file(footer, self.file_schema, with_nan, self.columns_with_statistics)


@dataclass(slots=True)
class _Open:
    """A file that is being written, and its buffered rows."""

    values: Values
    batches: list["pa.RecordBatch"] = field(default_factory=list)
    buffered_bytes: int = 0
    path: str = ""
    sink: Any = None
    writer: Any = None
    footers: list[Any] = field(default_factory=list)
    with_nan: set[str] = field(default_factory=set)
    with_nulls: set[str] = field(default_factory=set)


def unique_name() -> str:
    return f"part-{SystemRandom().uuid()}"


class FileWriter:
    def __init__(
        self, storage: Storage, plan: FilePlan, new_name: Callable[[], str] = unique_name
    ) -> None:
        self._storage = storage
        self._plan = plan
        self._new_name = new_name
        self._file_schema = plan.file_schema
        self._floats = [f.name for f in self._file_schema if _may_hold_nan(f.type)]
        self._parts: dict[Values, _Open] = {}
        """By partition values, the least recently used first."""
        self._done: list[WrittenFile] = []
        self._begun: list[str] = []

    def write_all(self, batches: Iterable["pa.RecordBatch"]) -> list[WrittenFile]:
        """Write and finish; what fails leaves nothing behind."""
        try:
            self.write(batches)
            return self.close()
        except BaseException:
            self.discard()
            raise

    def write(self, batches: Iterable["pa.RecordBatch"]) -> None:
        import pyarrow as pa

        for batch in batches:
            if batch.num_rows == 0:
                continue
            table = pa.Table.from_batches([batch])
            if table.schema != self._plan.schema:
                table = _cast(table, self._plan.schema)
            for values, rows in self._plan.split(table):
                self._take(values, rows)
            self._make_room()

    def close(self) -> list[WrittenFile]:
        """Finish every file."""
        for part in list(self._parts.values()):
            self._finish(part)
        self._parts.clear()
        return self._done

    def discard(self) -> None:
        """Remove what was written."""
        for part in self._parts.values():
            if part.sink is not None:
                part.sink.close()
        self._parts.clear()
        self._storage.remove(self._begun)

    def _take(self, values: Values, rows: "pa.Table") -> None:
        part = self._parts.pop(values, None) or _Open(values)
        self._parts[values] = part
        part.batches += rows.to_batches()
        part.buffered_bytes += rows.nbytes
        if part.buffered_bytes >= ROW_GROUP_BYTES:
            self._write_group(part)

    def _make_room(self) -> None:
        while sum(part.buffered_bytes for part in self._parts.values()) > _BUFFERED_BYTES_MAX:
            self._write_group(max(self._parts.values(), key=lambda part: part.buffered_bytes))
        files = [part for part in self._parts.values() if part.writer is not None]
        for part in files[: max(0, len(files) - _OPEN_FILES_MAX)]:
            self._finish(part)
            del self._parts[part.values]

    def _write_group(self, part: _Open) -> None:
        import pyarrow as pa

        if part.writer is None:
            self._open(part)
        rows = pa.Table.from_batches(part.batches, self._file_schema)
        part.batches, part.buffered_bytes = [], 0
        part.with_nan.update(name for name in self._floats if _has_nan(rows.column(name)))
        part.with_nulls.update(n for n in rows.column_names if rows.column(n).null_count)
        part.writer.write_table(rows, row_group_size=max(1, rows.num_rows))
        if part.sink.tell() >= self._plan.target_bytes:
            self._finish(part)

    def _open(self, part: _Open) -> None:
        import pyarrow.parquet as pq

        within = self._plan.directory(part.values)
        name = f"{self._new_name()}.{self._plan.codec}.parquet"
        part.path = "/".join(piece for piece in (self._plan.subdirectory, within, name) if piece)
        self._begun.append(part.path)
        part.sink = self._storage.create(part.path)
        part.footers = []
        part.with_nan, part.with_nulls = set(), set()
        part.writer = pq.ParquetWriter(
            part.sink,
            self._file_schema,
            compression=self._plan.codec,
            # Spark and Delta readers know no other unit, and none needs Arrow's own schema.
            coerce_timestamps="us",
            store_schema=False,
            metadata_collector=part.footers,
        )

    def _finish(self, part: _Open) -> None:
        if part.batches:
            self._write_group(part)
        if part.writer is None:
            return
        part.writer.close()
        size_bytes = part.sink.tell()
        part.sink.close()
        part.writer = part.sink = None
        statistics = self._plan.describe(part.footers[0], frozenset(part.with_nan))
        values = dict(zip(self._plan.partition_by, part.values, strict=True))
        empty = {name for name, value in values.items() if value is None}
        self._done.append(
            WrittenFile(
                part.path,
                size_bytes,
                part.footers[0].num_rows,
                values,
                statistics,
                frozenset(part.with_nulls | empty),
            )
        )


def _cast(table: "pa.Table", schema: "pa.Schema") -> "pa.Table":
    """Raises `SchemaMismatch` for a value that the table's type does not hold."""
    import pyarrow as pa

    columns = []
    for column in schema:
        try:
            columns.append(table.column(column.name).cast(column.type))
        except pa.ArrowInvalid as error:
            raise SchemaMismatch(
                f"`{column.name}` is {column.type} in the table, and cannot hold a value: {error}"
            ) from None
    return pa.table(columns, schema=schema)


def _may_hold_nan(kind: "pa.DataType") -> bool:
    import pyarrow.types as kinds

    if kinds.is_struct(kind):
        return any(_may_hold_nan(kind.field(at).type) for at in range(kind.num_fields))
    return bool(kinds.is_floating(kind))


def _has_nan(column: "pa.ChunkedArray") -> bool:
    import pyarrow.compute as pc
    import pyarrow.types as kinds

    if kinds.is_struct(column.type):
        return True  # Not looked for inside: the column gets no bounds.
    return bool(pc.any(pc.is_nan(column)).as_py())
