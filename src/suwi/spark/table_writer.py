"""Tables as sinks of Spark, in any format: tasks write Parquet files, the driver commits them.

`StreamWriter` and `BatchWriter` are what Spark calls, `OutputWriter` is one output of several. The
driver commits all that tasks wrote at once, or none. Spark builds a new writer for every step, on
the driver and in tasks, so nothing is kept in one: what a commit must know comes with the tasks'
messages.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from suwi.spark.delta.errors import DeltaSinkError
from suwi.spark.delta.files import FileWriter, WrittenFile
from suwi.spark.gc_freeze import freeze_loaded
from suwi.spark.origin import Origin, origin_of_task
from suwi.spark.releases import DataSourceStreamArrowWriter
from suwi.spark.rules import without_marks
from suwi.spark.table_commit import Batch, TableFormat, commit_files, remove_files

if TYPE_CHECKING:
    import pyarrow as pa

_INSTEAD: Final = (
    ", or foreachBatch runs over Spark Connect, which does not tell its tasks: set txnAppId, and "
    "txnVersion to the number of the batch"
)


@dataclass(frozen=True, slots=True)
class TaskWrote(WriterCommitMessage):
    origin: Origin | None
    schema: StructType
    partition_by: tuple[str, ...]
    files: tuple[WrittenFile, ...]
    broken: dict[str, int]
    """How often each rule was broken."""
    identity: str


class _Writing:
    """What writing a stream and writing a batch have in common."""

    def __init__(self, table: TableFormat, schema: StructType, overwrite: bool) -> None:
        """On the driver, before tasks start. Raises `DeltaSinkError`."""
        self._table = table
        self._options = table.options
        self._overwrite = overwrite
        rows = schema if self._options.rules is None else without_marks(schema)
        self._planned = table.plan(rows, overwrite)

    def _write(self, batches: Iterator["pa.RecordBatch"], origin: Origin | None) -> TaskWrote:
        """In a task."""
        freeze_loaded("write")
        broken: Counter[str] = Counter()
        if self._options.rules is not None:
            from suwi.spark.topic_writer import send_records

            batches = self._options.rules.apply(batches, broken, send_records)
        plan, schema, by, identity = self._planned
        files = FileWriter(self._table.storage(), plan).write_all(batches)
        return TaskWrote(origin, schema, by, tuple(files), dict(broken), identity)

    def _commit(self, messages: Iterable[TaskWrote | None]) -> None:
        """On the driver, when all tasks have written."""
        wrote = [message for message in messages if message is not None]
        files = [file for message in wrote for file in message.files]
        if not wrote or (not files and not self._overwrite):
            return  # There is nothing to say, so nothing that could be said twice.
        first = wrote[0]
        broken = sum((Counter(message.broken) for message in wrote), Counter[str]())
        batch = Batch(
            first.origin,
            first.schema,
            first.partition_by,
            files,
            self._overwrite,
            broken,
            first.identity,
        )
        outcome = commit_files(self._table, batch)
        if outcome.is_suppressed and not outcome.may_hold_files:
            remove_files(self._table, files)

    def _abort(self, messages: Sequence[TaskWrote | None]) -> None:
        """Tasks failed, or the commit did."""
        if messages and None not in messages:
            # All tasks were done, so a commit was tried. It may have been stored and only its
            # answer lost: the files may be in the table. What is not goes with the next clean-up.
            return
        remove_files(self._table, [file for one in messages if one for file in one.files])


class OutputWriter(_Writing):
    """One output of several: `manifest.py` says what is committed."""

    def __init__(self, table: TableFormat, schema: StructType) -> None:
        super().__init__(table, schema, overwrite=bool(table.options.replace_where))

    def open(self) -> FileWriter:
        """In a task."""
        return FileWriter(self._table.storage(), self._planned.files)

    def batch(self, files: Sequence[WrittenFile], broken: Mapping[str, int]) -> Batch:
        """On the driver: what tasks have written, without its origin."""
        _, schema, by, identity = self._planned
        return Batch(None, schema, by, files, False, broken, identity)


class StreamWriter(_Writing, DataSourceStreamArrowWriter):
    def __init__(self, table: TableFormat, schema: StructType, overwrite: bool) -> None:
        super().__init__(table, schema, overwrite)
        if table.options.replace_where:
            raise DeltaSinkError("replaceWhere is for a batch, not for a stream")
        rules = table.options.rules
        if overwrite and rules is not None and "dead_letters" in rules.actions.values():
            raise DeltaSinkError(
                "rules: with mode complete every batch would send the same dead letters again: use "
                "drop, warn or fail"
            )

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
            origin = origin_of_task(_INSTEAD)
        elif self._options.txn is not None:
            origin = Origin(*self._options.txn, None)
        return self._write(iterator, origin)

    def commit(self, messages: list[Any]) -> None:
        self._commit(messages)

    def abort(self, messages: list[Any]) -> None:
        self._abort(messages)
