"""`format("suwi-delta")` as Spark sees it: sources and sinks, streaming and batch.

The readers are in `reader.py`. As a sink, tasks write Parquet files and return what they wrote; the
driver commits all of it at once, or none. Spark builds a new writer for every step, on the driver
and in tasks, so nothing is kept in one: what a commit must know comes with the tasks' messages.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from suwi.env import SystemRandom
from suwi.spark.delta.commit import Apply, Batch, append_files, commit_batch
from suwi.spark.delta.errors import DeltaSinkError, TableMissing
from suwi.spark.delta.files import FilePlan, FileWriter, WrittenFile
from suwi.spark.delta.schema import added_fields, arrow_schema, check_types, fit
from suwi.spark.delta.storage import storage_of
from suwi.spark.delta.table import (
    check_partitions,
    check_place,
    check_release,
    check_supported,
    open_table,
    statistics_columns,
    table_schema,
)
from suwi.spark.delta.upsert import STAGING, check_keys, merge_files
from suwi.spark.gc_freeze import freeze_loaded
from suwi.spark.option_kinds import Use
from suwi.spark.option_table import find
from suwi.spark.options import BadOption, TableOptions, read_table_options
from suwi.spark.origin import Origin, origin_of_task
from suwi.spark.releases import DataSourceStreamArrowWriter

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader

    from suwi.spark.delta.scan import Scan

FORMAT: Final = "suwi-delta"


@dataclass(frozen=True, slots=True)
class TaskWrote(WriterCommitMessage):
    origin: Origin | None
    schema: StructType
    """Of the files: types are the table's where these are wider."""
    partition_by: tuple[str, ...]
    files: tuple[WrittenFile, ...]


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
        return chosen_schema(scan.full, scan.options)

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

        options = read_table_options(self.options, use)
        full = full_schema(open_for_reading(options, options.version_as_of), options)
        unknown = list(added_fields(schema.jsonValue(), full.jsonValue()))
        if unknown:
            raise BadOption(
                f"the table has no {', '.join(unknown)}: leave out `schema(…)`, or load it again"
            )
        return Scan(options, schema, full)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "StreamWriter":  # noqa: N802
        return StreamWriter(read_table_options(self.options), schema, overwrite)

    def writer(self, schema: StructType, overwrite: bool) -> "BatchWriter":
        return BatchWriter(read_table_options(self.options), schema, overwrite)


class _Writing:
    """What writing a stream and writing a batch have in common."""

    def __init__(self, options: TableOptions, schema: StructType, overwrite: bool) -> None:
        """On the driver, before tasks start. Raises `DeltaSinkError`."""
        freeze_loaded("judge")
        self._options = options
        self._schema = schema
        self._overwrite = overwrite
        self._partition_by = self._judge()

    def _judge(self) -> tuple[str, ...]:
        """Refuse early what the commit would refuse; the columns that files are parted by."""
        check_release()
        self._written = self._schema
        partition_by = self._options.partition_by
        try:
            table = open_table(self._options)
        except TableMissing:
            table = None
            check_place(self._options)
        else:
            check_supported(table)
            if partition_by:
                check_partitions(table, partition_by)
            partition_by = tuple(table.metadata().partition_columns)
            fitted = fit(self._schema, table_schema(table), merge=self._options.merge_schema)
            self._written = StructType.fromJson(fitted.written)
        check_types(self._schema, partition_by)
        check_keys(self._options, self._schema)
        if self._options.keys and self._overwrite:
            raise DeltaSinkError("keys replace rows one by one: they do not go with overwriting")
        is_staged = bool(self._options.keys)
        self._plan = FilePlan(
            schema=arrow_schema(self._written),
            partition_by=() if is_staged else partition_by,
            target_bytes=self._options.target_bytes,
            codec=self._options.codec,
            columns_with_statistics=statistics_columns(table),
            subdirectory=STAGING if is_staged else "",
        )
        return partition_by

    def _write(self, batches: Iterator["pa.RecordBatch"], origin: Origin | None) -> TaskWrote:
        """In a task."""
        freeze_loaded("write")
        storage = storage_of(self._options.uri, self._options.storage)
        files = FileWriter(storage, self._plan).write_all(batches)
        return TaskWrote(origin, self._written, self._partition_by, tuple(files))

    def _commit(self, messages: Iterable[TaskWrote | None]) -> None:
        """On the driver, when all tasks have written."""
        wrote = [message for message in messages if message is not None]
        files = [file for message in wrote for file in message.files]
        if not wrote or (not files and not self._overwrite):
            return  # There is nothing to say, so nothing that could be said twice.
        first = wrote[0]
        batch = Batch(first.origin, first.schema, first.partition_by, files, self._overwrite)
        apply: Apply = merge_files(self._options) if self._options.keys else append_files
        outcome = commit_batch(self._options, batch, SystemRandom(), apply)
        if self._options.keys or (outcome.is_suppressed and not outcome.may_hold_files):
            self._remove(files)

    def _abort(self, messages: Sequence[TaskWrote | None]) -> None:
        """Tasks failed, or the commit did."""
        if messages and None not in messages:
            # All tasks were done, so a commit was tried. It may have been stored and only its
            # answer lost: the files may be in the table. What is not goes with the next clean-up.
            return
        self._remove([file for message in messages if message for file in message.files])

    def _remove(self, files: Iterable[WrittenFile]) -> None:
        storage = storage_of(self._options.uri, self._options.storage)
        storage.remove(file.path for file in files)


class StreamWriter(_Writing, DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator["pa.RecordBatch"]) -> TaskWrote:
        return self._write(iterator, origin_of_task())

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        self._commit(messages)

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        self._abort(messages)


class BatchWriter(_Writing, DataSourceArrowWriter):
    def write(self, iterator: Iterator["pa.RecordBatch"]) -> TaskWrote:
        origin = None
        if self._options.txn_from_query:
            origin = origin_of_task()
        elif self._options.txn is not None:
            origin = Origin(*self._options.txn, None)
        return self._write(iterator, origin)

    def commit(self, messages: list[Any]) -> None:
        self._commit(messages)

    def abort(self, messages: list[Any]) -> None:
        self._abort(messages)
