"""A table as its readers see it: the files of a version, and what each commit did.

`files_of` lists a snapshot, `read_commit` one version of the log, `latest_version` asks how far the
log reaches. Tables whose readers have duties that we do not know are refused by name.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from suwi.spark.delta.errors import CannotRead, VersionGone
from suwi.spark.delta.partitions import value_text
from suwi.spark.delta.storage import Storage, storage_of
from suwi.spark.delta.table import open_table, table_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

    from suwi.spark.options import TableOptions

INSERT: Final = "insert"
DELETE: Final = "delete"
# Reader features that change nothing here, or only where they are in use, which is looked at.
_KNOWN_FEATURES: Final = frozenset(
    {"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "columnMapping", "deletionVectors"}
)


@dataclass(frozen=True, slots=True)
class DataFile:
    path: str
    """Relative to the table."""
    size_bytes: int
    partition_values: Mapping[str, str | None]
    statistics: Mapping[str, Any]
    """As in the log: minValues, maxValues, nullCount, numRecords. Values may be typed already;
    numbers with a point are text, so that nothing is rounded before the type is known."""
    change: str | None = None
    """The change of all rows in the file; None: rows have it as a column, or it is not read."""
    version: int = 0
    timestamp_ms: int = 0


@dataclass(frozen=True, slots=True)
class Commit:
    version: int
    operation: str
    added: tuple[DataFile, ...]
    """With dataChange."""
    removed: tuple[DataFile, ...]
    """With dataChange."""
    changes: tuple[DataFile, ...]
    """Files of change data."""
    schema: dict[str, Any] | None
    """Where the commit sets it."""


def open_for_reading(options: "TableOptions", version: int | None = None) -> "DeltaTable":
    """Raises `CannotRead`, `VersionGone`."""
    from deltalake.exceptions import DeltaError

    try:
        table = open_table(options, version)
        if options.timestamp_as_of is not None:
            table.load_as_version(options.timestamp_as_of)
    except (DeltaError, ValueError) as error:
        if options.timestamp_as_of is not None:
            raise CannotRead(f"timestampAsOf={options.timestamp_as_of}: {error}") from None
        raise _gone(options.uri, version, error) from None
    check_readable(table)
    return table


def _gone(uri: str, version: int | None, error: Exception) -> Exception:
    if version is None:
        return CannotRead(f"the table at {uri} cannot be opened: {error}")
    return VersionGone(
        f"version {version} of the table at {uri} cannot be read any more: its log was cleaned up, "
        f"or it never was ({error}). Begin with a new checkpoint, and perhaps startingVersion"
    )


def check_readable(table: "DeltaTable") -> None:
    """Raises `CannotRead` for what would give wrong rows."""
    features = set(table.protocol().reader_features or ())
    faults = sorted(features - _KNOWN_FEATURES)
    if table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
        faults.append("column mapping")
    if "deletionVectors" in features and _has_deletion_vectors(table):
        faults.append("deletion vectors")
    if faults:
        raise CannotRead(f"this table cannot be read from here: it has {', '.join(faults)}")


def _has_deletion_vectors(table: "DeltaTable") -> bool:
    from deltalake.exceptions import DeltaError

    try:
        return any(batch.num_rows for batch in table.deletion_vectors())
    except DeltaError:
        return True  # There is one that delta-rs cannot read.


def files_of(table: "DeltaTable") -> list[DataFile]:
    """The files of the version that is open, in a fixed order."""
    import pyarrow as pa

    listed = pa.table(table.get_add_actions())
    bounds = [_bounds(listed, name) for name in ("min", "max")]
    others = [name for name in listed.column_names if name not in ("min", "max")]
    found = [
        DataFile(
            _plain_path(row["path"]),
            row["size_bytes"],
            {name: value_text(value) for name, value in (row.get("partition") or {}).items()},
            {
                "numRecords": row.get("num_records"),
                "minValues": lowest,
                "maxValues": highest,
                "nullCount": row.get("null_count") or {},
            },
            INSERT,
            table.version(),
            row["modification_time"],
        )
        for row, lowest, highest in zip(listed.select(others).to_pylist(), *bounds, strict=True)
    ]
    # Oldest first, so that event times rise as far as they did when the rows were written.
    return sorted(found, key=lambda file: (file.timestamp_ms, file.path))


def _bounds(listed: "pa.Table", which: str) -> list[dict[str, Any]]:
    """Of each file, by column."""
    names = (
        [field.name for field in listed.column(which).type] if which in listed.column_names else []
    )
    if not names:
        return [{}] * listed.num_rows
    values = zip(*(_values(each) for each in listed.column(which).flatten()), strict=True)
    return [dict(zip(names, row, strict=True)) for row in values]


def _values(column: "pa.ChunkedArray") -> Iterator[Any]:
    """None also for values that Python does not have: times after the year 9999."""
    for value in column:
        try:
            yield value.as_py()
        except (OverflowError, ValueError):
            yield None


def read_commit(storage: Storage, version: int, uri: str) -> Commit:
    """Raises `VersionGone`, `CannotRead`."""
    try:
        with storage.read(_entry(version)) as file:
            lines = file.read().decode().splitlines()
    except FileNotFoundError as error:
        raise _gone(uri, version, error) from None
    return parse_commit(version, lines)


def _entry(version: int) -> str:
    return f"_delta_log/{version:020}.json"


def parse_commit(version: int, lines: list[str]) -> Commit:
    """From the JSON lines of a log entry."""
    actions = [next(iter(json.loads(line).items())) for line in lines if line.strip()]
    info: dict[str, Any] = next((body for kind, body in actions if kind == "commitInfo"), {})
    timestamp_ms = info.get("inCommitTimestamp") or info.get("timestamp") or 0
    added, removed, changes, schema = [], [], [], None
    for kind, body in actions:
        match kind:
            case "add" if body["dataChange"]:
                added.append(_file(body, INSERT, version, timestamp_ms))
            case "remove" if body["dataChange"]:
                removed.append(_file(body, DELETE, version, timestamp_ms))
            case "cdc":
                changes.append(_file(body, None, version, timestamp_ms))
            case "metaData":
                schema = json.loads(body["schemaString"])
                if body["configuration"].get("delta.columnMapping.mode", "none") != "none":
                    raise CannotRead(f"version {version} of the table has column mapping")
    operation = str(info.get("operation", "unknown"))
    return Commit(version, operation, tuple(added), tuple(removed), tuple(changes), schema)


def _file(body: Mapping[str, Any], change: str | None, version: int, timestamp_ms: int) -> DataFile:
    if body.get("deletionVector"):
        raise CannotRead(f"version {version} of the table has deletion vectors")
    return DataFile(
        _plain_path(body["path"]),
        body.get("size") or 0,
        body.get("partitionValues") or {},
        json.loads(body.get("stats") or "{}", parse_float=str),
        change,
        version,
        timestamp_ms,
    )


def _plain_path(path: str) -> str:
    if "://" in path or path.startswith("/"):
        raise CannotRead(f"a file of the table lies outside of it: {path}")
    return unquote(path)


class Log:
    """A table's log, followed: commits are read once, and forgotten when they are behind."""

    def __init__(self, options: "TableOptions") -> None:
        self._options = options
        self._storage = storage_of(options.uri, options.storage)
        self._table = open_for_reading(options)
        self._entry = self._look(self._table.version())
        """What the newest entry of the log looked like."""
        self._commits: dict[int, Commit] = {}
        self._snapshot: tuple[int, list[DataFile]] | None = None

    def latest(self) -> int:
        """The newest version. Raises `CannotRead`.

        delta-rs only asks for entries after the newest one it knows. If that one has changed, the
        table may have been made anew: it is opened again, and `table_id` says.
        """
        before = self._table.version()
        self._table.update_incremental()
        is_same = self._entry is not None and self._look(before) == self._entry
        if not is_same:
            self._table = open_for_reading(self._options)
        if not is_same or self._table.version() != before:
            self._entry = self._look(self._table.version())
        return self._table.version()

    def _look(self, version: int) -> tuple[int, int] | None:
        """The size of an entry and when it was written; None: it is gone."""
        info = self._storage.look(_entry(version))
        return (info.size, info.mtime_ns) if info.is_file else None

    @property
    def table_id(self) -> str:
        return str(self._table.metadata().id)

    @property
    def schema(self) -> dict[str, Any]:
        """Of the newest version."""
        return table_schema(self._table)

    def has_change_data(self) -> bool:
        settings = self._table.metadata().configuration
        return settings.get("delta.enableChangeDataFeed", "false").lower() == "true"

    def commit(self, version: int) -> Commit:
        if version not in self._commits:
            self._commits[version] = read_commit(self._storage, version, self._options.uri)
        return self._commits[version]

    def snapshot(self, version: int) -> list[DataFile]:
        if self._snapshot is None or self._snapshot[0] != version:
            self._snapshot = version, files_of(open_for_reading(self._options, version))
        return self._snapshot[1]

    def forget_before(self, version: int) -> None:
        if self._snapshot is not None and self._snapshot[0] < version:
            self._snapshot = None
        self._commits = {number: one for number, one in self._commits.items() if number >= version}
