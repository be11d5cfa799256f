"""Work on a table that no batch waits for: small files made large, files of nobody removed.

`compact` and `clean_orphans` are calls for any job or scheduler; `keep_compact` repeats the first
beside a running query. All are ordinary writers of the table: who loses a race tries again later,
and readers and batches never see half of it.
"""

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from suwi.env import SystemClock
from suwi.spark.delta.files import NAME
from suwi.spark.delta.storage import storage_of
from suwi.spark.delta.upsert import STAGING
from suwi.spark.options import read_table_options

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql.streaming.query import StreamingQuery

HOURS_MIN: Final = 1
TARGET_BYTES: Final = 128 << 20
_MS_PER_HOUR: Final = 3_600_000


def compact(
    path: str,
    *,
    target_bytes: int = TARGET_BYTES,
    storage_options: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Write small files together, partition by partition; what delta-rs says of it.

    Raises `CommitFailedError` where another writer changed the same files: try again later.
    """
    table = _open(path, storage_options)
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
    table = _open(path, storage_options)
    storage = storage_of(read_table_options({"path": path}).uri, storage_options or {})
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


def _open(path: str, storage_options: Mapping[str, str] | None) -> "DeltaTable":
    from deltalake import DeltaTable

    uri = read_table_options({"path": path}).uri
    return DeltaTable(uri, storage_options=dict(storage_options or {}) or None)


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
    except (DeltaError, OSError) as error:
        PySparkLogger.getLogger("suwi.spark.delta").warning(
            "compaction failed, it is tried again later", table=path, why=str(error)
        )
