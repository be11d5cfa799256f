"""Work on a table that no batch waits for: small files made large, types wider, orphans removed.

`compact`, `widen` and `clean_orphans` are calls for any job or scheduler; `keep_compact` repeats
the first beside a running query. All are ordinary writers of the table: who loses a race tries
again later, and readers and batches never see half of it.
"""

import json
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from suwi.env import SystemClock
from suwi.spark.delta.commit import add_actions
from suwi.spark.delta.errors import CommitContended, TableMissing
from suwi.spark.delta.files import NAME, FilePlan, FileWriter
from suwi.spark.delta.log import files_of, open_for_reading
from suwi.spark.delta.scan import Scan, read_files
from suwi.spark.delta.schema import arrow_schema, widened
from suwi.spark.delta.storage import storage_of
from suwi.spark.delta.table import check_supported, open_table, statistics_columns, table_schema
from suwi.spark.delta.upsert import STAGING
from suwi.spark.options import TableOptions, read_table_options

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql.streaming.query import StreamingQuery

HOURS_MIN: Final = 1
_ATTEMPTS: Final = 5
TARGET_BYTES: Final = 128 << 20
_MS_PER_HOUR: Final = 3_600_000


def compact(
    path: str, *, target_bytes: int = TARGET_BYTES, storage_options: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Write small files together, partition by partition; what delta-rs says of it.

    Raises `CommitFailedError` where another writer changed the same files: try again later.
    """
    table = open_table(_options(path, storage_options))
    return table.optimize.compact(target_size=target_bytes, max_concurrent_tasks=1)


def clean_orphans(
    path: str,
    *,
    older_than_hours: int = 24,
    dry_run: bool = False,
    storage_options: Mapping[str, str] | None = None,
) -> list[str]:
    """Remove data files that no commit names: tasks and drivers that were killed leave them.

    Only files with names that the sink gives, that are older than any task takes, and that no
    version of the table has: those are for `DeltaTable.vacuum`.
    """
    if older_than_hours < HOURS_MIN:
        raise ValueError(f"files of the last {HOURS_MIN} h may belong to a batch under way")
    options = _options(path, storage_options)
    table, storage = open_table(options), storage_of(options.uri, options.storage)
    unnamed = set(
        table.vacuum(older_than_hours, dry_run=True, enforce_retention_duration=False, full=True)
    )
    # Removed by a commit, but named by it: older versions of the table are made of these.
    unnamed -= set(table.vacuum(0, dry_run=True, enforce_retention_duration=False, full=False))
    orphans = sorted(file for file in unnamed if NAME.fullmatch(file.rpartition("/")[2]))
    before_ms = SystemClock().now_ms() - older_than_hours * _MS_PER_HOUR
    for info in storage.list(STAGING):
        if (
            info.is_file
            and NAME.fullmatch(info.base_name)
            and info.mtime_ns // 1_000_000 < before_ms
        ):
            orphans.append(f"{STAGING}/{info.base_name}")
    if not dry_run:
        storage.remove(orphans)
    return orphans


def widen(
    path: str, columns: Mapping[str, str], *, storage_options: Mapping[str, str] | None = None
) -> int:
    """Give columns a wider type, as {"n": "long"} or {"who.age": "double"}; the new version.

    The table is written anew, in one commit: delta-rs does not know Delta's feature that would
    change the type alone (typeWidening). Streams that read the table stop at the commit. Files that
    others add meanwhile are written anew in another commit.

    Raises `SchemaMismatch`, `CannotRead` where a value does not fit, and `CommitContended`.
    """
    options = _options(path, storage_options)
    for _ in range(_ATTEMPTS):
        table = open_for_reading(options)
        check_supported(table)
        before, schema = table.version(), widened(table_schema(table), columns)
        if _write_anew(table, options, schema):
            after = open_for_reading(options).version()
            if after == before + 1:
                return after
    raise CommitContended(f"others wrote to the table in each of {_ATTEMPTS} attempts")


def _write_anew(table: "DeltaTable", options: TableOptions, schema: dict[str, Any]) -> bool:
    """All rows with another schema, in one commit. delta-rs lets others append meanwhile.

    False: others changed or removed rows, and nothing was done.
    """
    from deltalake import Schema
    from deltalake.exceptions import CommitFailedError
    from pyspark.sql.types import StructType

    spark_schema = StructType.fromJson(schema)
    partition_by = tuple(table.metadata().partition_columns)
    storage = storage_of(options.uri, options.storage)
    plan = FilePlan(
        schema=arrow_schema(spark_schema),
        partition_by=partition_by,
        target_bytes=options.target_bytes,
        codec=options.codec,
        columns_with_statistics=statistics_columns(table),
    )
    rows = read_files(Scan(options, spark_schema, spark_schema), files_of(table))
    files = FileWriter(storage, plan).write_all(rows)
    try:
        table.create_write_transaction(
            add_actions(files),
            "overwrite",
            Schema.from_json(json.dumps(schema)),
            list(partition_by),
        )
    except CommitFailedError:
        # It may have been stored, and only its answer lost: what the table names stays.
        named = {file.path for file in files_of(open_for_reading(options))}
        storage.remove(file.path for file in files if file.path not in named)
        return False
    return True


def _options(path: str, storage_options: Mapping[str, str] | None) -> TableOptions:
    storage = {f"storage.{name}": one for name, one in (storage_options or {}).items()}
    return read_table_options({"path": path, **storage})


def keep_compact(
    query: "StreamingQuery",
    path: str,
    *,
    every_s: float,
    target_bytes: int = TARGET_BYTES,
    storage_options: Mapping[str, str] | None = None,
) -> None:
    """Compact the table from time to time for as long as the query runs."""

    def work() -> None:
        while _is_running(query, every_s):
            _compact_or_log(path, target_bytes, storage_options)

    # A thread of the user's own driver: there is no event loop, and delta-rs works outside of
    # Python's lock.
    threading.Thread(target=work, name="suwi-compaction", daemon=True).start()  # noqa: TID251


def _is_running(query: "StreamingQuery", wait_s: float) -> bool:
    """Whether it still runs after so long."""
    from pyspark.errors import PySparkException

    try:
        return not query.awaitTermination(wait_s)
    except PySparkException:
        return False  # It failed; who started it is told.


def _compact_or_log(
    path: str, target_bytes: int, storage_options: Mapping[str, str] | None
) -> None:
    from deltalake.exceptions import DeltaError
    from pyspark.logger import PySparkLogger

    try:
        compact(path, target_bytes=target_bytes, storage_options=storage_options)
    except (DeltaError, TableMissing, OSError) as error:
        PySparkLogger.getLogger("suwi.spark.delta").warning(
            "compaction failed, it is tried again later", table=path, why=str(error)
        )
