"""`to_delta(df, path, …)`: a DataFrame into a Delta table, a stream exactly once.

Usable alone in any PySpark job; what it sets are options of `format("suwi-delta")`.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

_STREAM_MODES: Final = ("append", "update", "complete")
_BATCH_MODES: Final = ("append", "overwrite")


def to_delta(
    df: "DataFrame",
    path: str,
    *,
    checkpoint: str | None = None,
    mode: str = "append",
    partition_by: Sequence[str] = (),
    merge_schema: bool = False,
    keys: Sequence[str] = (),
    order_by: str | None = None,
    delete_when: str | None = None,
    trigger: Mapping[str, Any] | None = None,
    name: str | None = None,
    target_file_size: int | str | None = None,
    compression: str | None = None,
    compact_every_s: float | None = None,
    txn: tuple[str, int] | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> "StreamingQuery | None":
    """Write to the table at `path`, which is made if it is missing.

    A streaming DataFrame starts a query, which is returned; a batch of it that is replayed after a
    crash is in the table once, whatever was killed. `checkpoint` is the query's identity: with a
    new one it reads, and writes, everything again. Any other DataFrame is written when this
    returns, and once for each `txn` (who writes, which number) if that is given.

    mode: `append`, `update` (streaming; with keys) or `complete`; in batch `append`, `overwrite`.
    partition_by: columns that a new table is partitioned by; an old one knows.
    merge_schema: add columns that the table does not have; otherwise they are refused.
    keys: columns that say which row is meant: it replaces the table's, instead of coming beside
        it. `order_by` names the column whose greater value wins, `delete_when` a condition on
        `source`, as in "source.op = 'd'", under which the row goes.
    trigger: as `DataStreamWriter.trigger` takes it: {"availableNow": True}.
    target_file_size: as 134217728 or "128mb"; with keys, delta-rs chooses.
    compact_every_s: while the query runs, write small files together this often, in a thread of
        this process.
    storage_options: for an object store, as delta-rs names them.
    """
    spark = df.sparkSession
    register_delta(spark)
    _check(df.isStreaming, mode, keys)
    options = {
        "path": path,
        "partitionBy": ",".join(partition_by),
        "mergeSchema": str(merge_schema).lower(),
        "keys": ",".join(keys),
        "orderBy": order_by,
        "deleteWhen": delete_when,
        "targetFileSize": None if target_file_size is None else str(target_file_size),
        "compression": compression,
        **{f"storage.{name}": value for name, value in (storage_options or {}).items()},
    }
    given = {name: value for name, value in options.items() if value}
    if not df.isStreaming:
        if txn is not None:
            given |= {"txnAppId": txn[0], "txnVersion": str(txn[1])}
        _save(df, given, mode)
        return None
    query = _start(df, given, mode, checkpoint, trigger, name)
    if compact_every_s is not None:
        from suwi.spark.delta.maintenance import keep_compact
        from suwi.spark.delta.options import read_options

        keep_compact(
            query,
            path,
            every_s=compact_every_s,
            target_bytes=read_options(given).target_bytes,
            storage_options=storage_options,
        )
    return query


def register_delta(spark: Any) -> None:
    """Make `format("suwi-delta")` known to a session."""
    from suwi.spark.delta.data_source import DeltaSink
    from suwi.spark.register import register_data_source

    register_data_source(spark, DeltaSink)


def _check(is_streaming: bool, mode: str, keys: Sequence[str]) -> None:
    allowed = _STREAM_MODES if is_streaming else _BATCH_MODES
    if mode not in allowed:
        kind = "a streaming" if is_streaming else "a batch"
        raise ValueError(f"mode={mode!r}: {kind} DataFrame takes {', '.join(allowed)}")
    if mode == "update" and not keys:
        raise ValueError("mode='update' needs keys: rows that changed must be found in the table")


def _save(rows: "DataFrame", options: Mapping[str, str], mode: str) -> None:
    rows.write.format("suwi-delta").mode(mode).options(**options).save()


def _start(
    df: "DataFrame",
    options: Mapping[str, str],
    mode: str,
    checkpoint: str | None,
    trigger: Mapping[str, Any] | None,
    name: str | None,
) -> "StreamingQuery":
    from pyspark.sql import is_remote

    writer = df.writeStream.outputMode(mode)
    if checkpoint is not None:
        writer = writer.option("checkpointLocation", checkpoint)
    if trigger:
        writer = writer.trigger(**trigger)
    if name:
        writer = writer.queryName(name)
    if mode != "update":
        return writer.format("suwi-delta").options(**options).start()
    if is_remote():
        # There a batch is written by a job that does not know whose it is: neither the query's id
        # nor the batch's number reach its tasks, so a replay could not be told from a new batch.
        raise ValueError("mode='update' does not work over Spark Connect: use a classic session")
    # Spark lets Python sinks append or replace, not update: so each batch is written as one, under
    # the query's name and number, which is the same commit.
    return writer.foreachBatch(_BatchSink({**options, "txnFromQuery": "true"})).start()


class _BatchSink:
    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options

    def __call__(self, rows: "DataFrame", _: int) -> None:
        register_delta(rows.sparkSession)
        _save(rows, self._options, "append")
