"""The sources of `format("suwi-delta")`: a table as a batch, and as a stream of what is added.

A stream's offset says which file is read next: table id, version, index in that version, and
whether the version is read as a snapshot. First comes the snapshot, then the files that each commit
adds with dataChange, read from the log; compaction adds none. `BatchReader` is for batches,
`TableSource` for streams (stream_reader.py).
Neither defines `pushFilters` (ADR 11): the options `columns` and `where` say what is read.
Invariant: a file is in one batch, whole.
"""

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql.datasource import DataSourceReader, InputPartition

from suwi.spark import releases
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
from suwi.spark.offsets import CheckpointMismatch
from suwi.spark.options import BadOption
from suwi.spark.origin import version_of_batch
from suwi.spark.stream_reader import Json, Source

if TYPE_CHECKING:
    import pyarrow as pa

    from suwi.spark.releases import ReadLimit


_FILES_MAX: Final = 1000
"""Of a micro-batch, as with Delta's own source."""
_TASK_BYTES: Final = 32 * 1024 * 1024


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


class SharePartition(InputPartition):
    """One of several shares of a table's files, whichever these are when it is read."""

    def __init__(self, number: int, count: int) -> None:
        self.number = number
        self.count = count


class BatchReader(DataSourceReader):
    def __init__(self, scan: Scan) -> None:
        self._scan = scan

    def partitions(self) -> Sequence[InputPartition]:
        packed = _packed(self._files(self._scan.options.version_as_of))
        if not self._scan.options.version_of_batch:
            return packed
        # Spark asks once for a query, and the files are those of each batch.
        count = max(1, len(packed))
        return [SharePartition(number, count) for number in range(count)]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        if isinstance(partition, SharePartition):
            files = self._files(version_of_batch(self._scan.options.uri))
            return read_files(self._scan, files[partition.number :: partition.count])
        if not isinstance(partition, FilesPartition):
            return iter(())  # Spark makes one up where there is nothing to read.
        return read_files(self._scan, partition.files)

    def _files(self, version: int | None) -> Sequence[DataFile]:
        table = open_for_reading(self._scan.options, version)
        return wanted_files(files_of(table), self._scan.options.choice, self._scan.full)


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


class TableSource(Source):
    ask_every_ms = 250

    def __init__(self, scan: Scan) -> None:
        self._scan = scan
        self._options = scan.options
        self._log: Log | None = None
        self.limits = {"maxFilesPerTrigger": scan.options.max_files_per_trigger}

    def initial(self) -> Json:
        log = self._open()
        latest = log.latest()
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
        return place.as_json(log.table_id)

    def latest(self, start: Json) -> int:
        return self._open().latest()

    def end(self, start: Json, latest: int, limit: "ReadLimit | None") -> Json:
        """A commit that stops the stream ends the batch before it: what came earlier is done."""
        self._check_table(start)
        at = first = Place.of(start)
        left = getattr(limit, "max_files", sys.maxsize)
        while at.is_snapshot or at.version <= latest:
            try:
                files = self._files_at(at)
            except DeltaSourceError:
                if at == first:
                    raise
                break
            if len(files) - at.file > left:
                at = at._replace(file=at.file + left)
                break
            left -= len(files) - at.file
            at = Place(at.version + 1)
        return start if at == first else at.as_json(start["table"])

    def plan(self, start: Json, end: Json) -> Sequence[InputPartition]:
        log = self._open()
        log.latest()  # Was it made anew?
        self._check_table(start)
        self._check_table(end)  # Of a first batch that is run again, the start is not in the log.
        first, last = Place.of(start), Place.of(end)
        files = list(self._files(first, last))
        log.forget_before(first.version)
        return _packed(wanted_files(files, self._options.choice, self._scan.full))

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        assert isinstance(partition, FilesPartition)
        return read_files(self._scan, partition.files)

    def default_limit(self) -> "ReadLimit":
        return releases.ReadMaxFiles(self._options.max_files_per_trigger or _FILES_MAX)

    def report(self, latest: int) -> Json:
        return Place(latest + 1).as_json(self._open().table_id)

    def close(self) -> None:
        self._log = None

    def _open(self) -> Log:
        if self._log is None:
            self._log = Log(self._options)
        return self._log

    def _check_table(self, offset: Json) -> None:
        """Raises `CheckpointMismatch`, `OtherTable`."""
        if not isinstance(offset.get("table"), str):
            raise CheckpointMismatch(
                "this checkpoint belongs to a topic or another source, and the query reads the "
                f"table at {self._options.uri}. Give the query a checkpoint of its own"
            )
        table_id = self._open().table_id
        if offset["table"] != table_id:
            raise OtherTable(
                f"this checkpoint belongs to another table: its id is {offset['table']}, and that "
                f"of {self._options.uri} is {table_id}. Was it deleted and made anew? "
                "Give the query a checkpoint of its own"
            )

    def _files(self, first: Place, end: Place) -> Iterator[DataFile]:
        """From one place to another. Raises `RowsChanged`, `SchemaChanged`, `VersionGone`."""
        at = first
        while (at.version, at.file) < (end.version, end.file):
            files = self._files_at(at)
            yield from files[at.file : end.file if at.version == end.version else None]
            at = Place(at.version + 1)

    def _files_at(self, place: Place) -> Sequence[DataFile]:
        """All files of the snapshot or of the commit."""
        version = place.version
        if place.is_snapshot:
            return self._open().snapshot(version)
        commit = self._open().commit(version)
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
        chosen = self._options.choice.columns  # Whoever names columns wants no others.
        fields = [one for one in schema["fields"] if not chosen or one["name"] in chosen]
        known = self._scan.schema.jsonValue()
        new = list(added_fields({"type": "struct", "fields": fields}, known))
        now = set(added_fields(self._open().schema, known))
        new = [one for one in new if one in now]  # Others never come: later commits dropped them.
        if new:
            raise SchemaChanged(
                f"version {version} of {self._options.uri} has new columns: {', '.join(new)}. "
                "Start the query again, and it has them"
            )
