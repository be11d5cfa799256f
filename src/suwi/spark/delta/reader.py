"""The readers of `format("suwi-delta")`: a table as a batch, and as a stream of what is added.

A stream's offset says which file is read next: table id, version, index in that version, and
whether the version is read as a snapshot. First comes the snapshot, then the files that each commit
adds with dataChange, read from the log; compaction adds none. `StreamReader` is for PySpark from
4.2 on, `OldStreamReader` for 4.1, where a batch always takes all there is.
Neither defines `pushFilters` (ADR 11): the options `columns` and `where` say what is read.
Invariant: a file is in one batch, whole.
"""

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from suwi.env import local_env
from suwi.spark.data_loss import CheckpointMismatch
from suwi.spark.delta.errors import (
    CannotRead,
    DeltaSourceError,
    OtherTable,
    RowsChanged,
    SchemaChanged,
)
from suwi.spark.delta.log import DataFile, Log, files_of, open_for_reading
from suwi.spark.delta.scan import Scan, read_files, wanted_files
from suwi.spark.delta.schema import added_fields
from suwi.spark.offsets import beginning, where_it_began, with_beginning
from suwi.spark.options import BadOption
from suwi.spark.releases import HAS_ADMISSION_CONTROL

if TYPE_CHECKING:
    import pyarrow as pa


_FILES_MAX: Final = 1000
"""Of a micro-batch, as with Delta's own source."""
_TASK_BYTES: Final = 32 * 1024 * 1024
_ASK_EVERY_MS: Final = 250


class FilesPartition(InputPartition):
    def __init__(self, files: Sequence[DataFile]) -> None:
        self.files = tuple(files)


def _packed(files: Sequence[DataFile]) -> list[InputPartition]:
    """Files of a task: small ones together."""
    tasks: list[list[DataFile]] = []
    size = _TASK_BYTES
    for file in files:
        if size >= _TASK_BYTES:
            tasks.append([])
            size = 0
        tasks[-1].append(file)
        size += max(file.size_bytes, _TASK_BYTES // 100)
    return [FilesPartition(task) for task in tasks]


class BatchReader(DataSourceReader):
    def __init__(self, scan: Scan) -> None:
        self._scan = scan

    def partitions(self) -> Sequence[InputPartition]:
        options = self._scan.options
        table = open_for_reading(options, options.version_as_of)
        return _packed(wanted_files(files_of(table), options.choice, self._scan.full))

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        if not isinstance(partition, FilesPartition):
            return iter(())  # Spark makes one up where there is nothing to read.
        return read_files(self._scan, partition.files)


class Place(NamedTuple):
    """What is read next."""

    version: int
    file: int = 0
    """Its number in the version."""
    is_snapshot: bool = False

    def as_json(self, table_id: str) -> dict[str, Any]:
        return {
            "table": table_id,
            "version": self.version,
            "index": self.file,
            "snapshot": self.is_snapshot,
        }

    @classmethod
    def of(cls, offset: dict[str, Any]) -> "Place":
        return cls(offset["version"], offset["index"], offset["snapshot"])


class _StreamReader(DataSourceStreamReader):
    def __init__(self, scan: Scan) -> None:
        self._scan = scan
        self._options = scan.options
        self._log: Log | None = None
        self._latest = -1
        self._asked_ms = 0
        self._initial: dict[str, Any] | None = None
        """Where the query begins, if it was begun by this reader."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        log, latest = self._follow()
        starting = self._options.starting_version
        place = Place(latest, 0, True)
        if starting == "latest":
            place = Place(latest + 1)
        elif starting is not None:
            if not starting.isdecimal() or int(starting) > latest + 1:
                text = f"startingVersion={starting}: a version up to {latest + 1}, or latest"
                raise BadOption(text, "startingVersion")
            place = Place(int(starting))
        if self._options.read_change_feed and not log.has_change_data():
            raise CannotRead(
                "readChangeFeed: the table keeps no change data (delta.enableChangeDataFeed)"
            )
        self._initial = place.as_json(log.table_id)
        return self._initial

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == end:
            return []
        log, _ = self._follow()
        self._check_table(start)
        self._check_table(end)  # Of a first batch that is run again, the start is not in the log.
        first, last = Place.of(dict(beginning(start, end))), Place.of(end)
        files = list(self._files(first, last))
        log.forget_before(first.version)
        return _packed(wanted_files(files, self._options.choice, self._scan.full))

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        assert isinstance(partition, FilesPartition)
        return read_files(self._scan, partition.files)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: the place is in Spark's checkpoint."""

    def stop(self) -> None:
        self._log = None

    def _follow(self) -> tuple[Log, int]:
        """The log, and its newest version; asked for now and then."""
        now_ms = local_env().clock.now_ms()
        if self._log is None:
            # Not in the constructor: Spark sends readers to the executors too.
            self._log = Log(self._options)
        if not 0 <= now_ms - self._asked_ms < _ASK_EVERY_MS or self._latest < 0:
            self._latest, self._asked_ms = self._log.latest(), now_ms
        return self._log, self._latest

    def _check_table(self, offset: dict[str, Any]) -> None:
        assert self._log is not None
        if not isinstance(offset.get("table"), str):
            raise CheckpointMismatch(
                f"this checkpoint belongs to a topic or another source, and the query reads the "
                f"table at {self._options.uri}. Give the query a checkpoint of its own"
            )
        if offset["table"] != self._log.table_id:
            raise OtherTable(
                f"this checkpoint belongs to another table: its id is {offset['table']}, and that "
                f"of {self._options.uri} is {self._log.table_id}. Was it deleted and made anew? "
                "Give the query a checkpoint of its own"
            )

    def _files(self, first: Place, end: Place) -> Iterator[DataFile]:
        """From one place to another. Raises `RowsChanged`, `SchemaChanged`, `VersionGone`."""
        log, _ = self._follow()
        at = first
        if at.is_snapshot:
            files = log.snapshot(at.version)
            yield from files[at.file : end.file if end.is_snapshot else None]
            at = Place(at.version + 1)
        while not end.is_snapshot and (at.version, at.file) < (end.version, end.file):
            files = list(self._files_of_commit(at.version))
            yield from files[at.file : end.file if at.version == end.version else None]
            at = Place(at.version + 1)

    def _files_of_commit(self, version: int) -> Sequence[DataFile]:
        assert self._log is not None
        commit = self._log.commit(version)
        if commit.schema is not None:
            self._check_schema(version, commit.schema)
        if self._options.read_change_feed:
            return commit.changes or (*commit.added, *commit.removed)
        if not commit.removed:
            return commit.added
        if self._options.skip_change_commits:
            return ()
        raise RowsChanged(
            f"version {version} of {self._options.uri} removes or rewrites rows "
            f"({commit.operation}), and a stream has only rows that are added. To pass over such "
            "commits set the option skipChangeCommits, to read them readChangeFeed"
        )

    def _check_schema(self, version: int, schema: dict[str, Any]) -> None:
        assert self._log is not None
        chosen = self._options.choice.columns  # Whoever names columns wants no others.
        fields = [one for one in schema["fields"] if not chosen or one["name"] in chosen]
        known = self._scan.schema.jsonValue()
        new = list(added_fields({"type": "struct", "fields": fields}, known))
        now = set(added_fields(self._log.schema, known))
        new = [one for one in new if one in now]  # Others never come: later commits dropped them.
        if new:
            raise SchemaChanged(
                f"version {version} of {self._options.uri} has new columns: {', '.join(new)}. "
                "Start the query again, and it has them"
            )


class OldStreamReader(_StreamReader):
    """Spark asks a new query's reader for its latest offset, then for its initial one, and then for
    a plan; of a query that goes on it wants a plan first, if only from its last offset to the same.
    """

    def __init__(self, scan: Scan) -> None:
        super().__init__(scan)
        self._is_new = True
        self._planned: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return super().initialOffset() if self._initial is None else self._initial

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._is_new = False
        self._planned = end
        self._initial = where_it_began(end) or self._initial
        return super().partitions(start, end)

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802
        if self._is_new:
            self.initialOffset()
        log, latest = self._follow()
        self._check_table(self._planned or self._initial or {})
        end = Place(latest + 1).as_json(log.table_id)
        return end if self._initial is None else with_beginning(end, self._initial)


if HAS_ADMISSION_CONTROL:
    from suwi.spark.releases import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxFiles,
        SupportsTriggerAvailableNow,
    )

    class StreamReader(_StreamReader, SupportsTriggerAvailableNow):
        def __init__(self, scan: Scan) -> None:
            super().__init__(scan)
            self._is_available_now = False
            self._target: int | None = None

        def getDefaultReadLimit(self) -> "ReadLimit":  # noqa: N802
            return ReadMaxFiles(self._options.max_files_per_trigger or _FILES_MAX)

        def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
            self._is_available_now = True

        def latestOffset(self, start: dict[str, Any], limit: "ReadLimit") -> dict[str, Any]:  # noqa: N802
            log, latest = self._follow()
            self._check_table(start)
            if self._is_available_now:
                self._target = latest if self._target is None else self._target
                latest = self._target
            files_max = None if isinstance(limit, ReadAllAvailable) else limit.max_files
            first = Place.of(start)
            end = self._end(first, latest, files_max).as_json(log.table_id)
            is_first = self._initial is not None and start == self._initial
            if Place.of(end) == first and not is_first:
                return start  # As it was written: Spark compares texts.
            return with_beginning(end, start) if is_first else end

        def _end(self, first: Place, latest: int, files_max: int | None) -> Place:
            """Where a batch ends that begins there and has at most so many files.

            A commit that stops the stream ends the batch before it: what came earlier is done.
            """
            log, _ = self._follow()
            at, left = first, sys.maxsize if files_max is None else files_max
            while at.is_snapshot or at.version <= latest:
                try:
                    version = at.version
                    files = (
                        log.snapshot(version) if at.is_snapshot else self._files_of_commit(version)
                    )
                except DeltaSourceError:
                    if at == first:
                        raise
                    return at
                if len(files) - at.file > left:
                    return at._replace(file=at.file + left)
                left -= len(files) - at.file
                at = Place(version + 1)
            return at

        def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
            if self._log is None or self._latest < 0:
                return None
            return Place(self._latest + 1).as_json(self._log.table_id)


def make_stream_reader(scan: Scan) -> DataSourceStreamReader:
    """The reader for this PySpark. Raises `BadOption` where it is too old for an option."""
    if HAS_ADMISSION_CONTROL:
        return StreamReader(scan)
    if scan.options.max_files_per_trigger is not None:
        name = "maxFilesPerTrigger"
        text = f"{name} needs PySpark 4.2 or newer: this one cannot limit a batch"
        raise BadOption(text, name)
    return OldStreamReader(scan)
