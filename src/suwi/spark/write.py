"""`to_delta`, `to_topic`, `dead_letter`, `to_parquet`: a DataFrame into tables and topics.

Each is usable alone in any PySpark job; what they set are options of `format("suwi-delta")` and
`format("suwi")`. A streaming DataFrame starts a query, which is returned; any other is written when
the call returns. Into a Delta table a stream is written exactly once; into a topic at least once,
and exactly once with the option `transactionalIdPrefix`.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from suwi.spark.register import register

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

DELTA: Final = "suwi-delta"
TOPIC: Final = "suwi"
PREFIX: Final = "suwi.dead."
_FROM: Final = ("topic", "partition", "offset")
_HEADERS: Final = "array<struct<key:string,value:binary>>"

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
    register(df.sparkSession)
    _check_mode(df.isStreaming, mode, keys)
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
        df.write.format(DELTA).mode(mode).options(**given).save()
        return None
    if mode != "update":
        query = _query(df, mode, checkpoint, trigger, name).format(DELTA).options(**given).start()
    else:
        query = _update(df, DELTA, {**given, "txnFromQuery": "true"}, checkpoint, trigger, name)
    if compact_every_s is not None:
        from suwi.spark.delta.maintenance import keep_compact
        from suwi.spark.options import read_table_options

        keep_compact(
            query,
            path,
            every_s=compact_every_s,
            target_bytes=read_table_options(given).target_bytes,
            storage_options=storage_options,
        )
    return query


def _check_mode(is_streaming: bool, mode: str, keys: Sequence[str]) -> None:
    allowed = _STREAM_MODES if is_streaming else _BATCH_MODES
    if mode not in allowed:
        kind = "a streaming" if is_streaming else "a batch"
        raise ValueError(f"mode={mode!r}: {kind} DataFrame takes {', '.join(allowed)}")
    if mode == "update" and not keys:
        raise ValueError("mode='update' needs keys: rows that changed must be found in the table")


def to_topic(
    df: "DataFrame",
    servers: str,
    topic: str | None = None,
    *,
    checkpoint: str | None = None,
    mode: str = "append",
    trigger: Mapping[str, Any] | None = None,
    name: str | None = None,
    options: Mapping[str, str] | None = None,
) -> "StreamingQuery | None":
    """Write the column `value`, and `key`, `topic`, `partition`, `headers` where they are.

    A streaming DataFrame starts a query, which is returned; any other is written when this
    returns. Without `topic` the column of that name says where each row goes.

    servers: `host:port`, several separated by commas.
    mode: of a stream: `append`, or `update`, which writes rows that changed.
    trigger: as `DataStreamWriter.trigger` takes it: {"availableNow": True}.
    options: others of `format("suwi")`, as `kafka.compression.type`; with `transactionalIdPrefix` a
        stream is written exactly once.
    """
    register(df.sparkSession)
    given = {"kafka.bootstrap.servers": servers, **(options or {})}
    if topic is not None:
        given["topic"] = topic
    if not df.isStreaming:
        df.write.format(TOPIC).mode("append").options(**given).save()
        return None
    if mode != "update":
        return _query(df, mode, checkpoint, trigger, name).format(TOPIC).options(**given).start()
    return _update(df, TOPIC, given, checkpoint, trigger, name)


def dead_letter(
    bad: "DataFrame",
    servers: str,
    topic: str,
    *,
    reason: str = "reason",
    pipeline: str | None = None,
    checkpoint: str | None = None,
    trigger: Mapping[str, Any] | None = None,
    name: str | None = None,
    options: Mapping[str, str] | None = None,
) -> "StreamingQuery | None":
    """Write rows with the source's columns and one that says why to the topic `topic`.

    Key and value stay as they were. The record's headers get, besides those that it had,
    `suwi.dead.topic`, `suwi.dead.partition`, `suwi.dead.offset`, `suwi.dead.timestamp` (in
    milliseconds since 1970), `suwi.dead.reason` and `suwi.dead.pipeline`. The rest is as with
    `to_topic`.

    reason: the column with what was wrong.
    pipeline: who could not use it; without it the query's name.
    """
    rows = dead_letters(bad, reason, pipeline or name)
    return to_topic(
        rows, servers, topic, checkpoint=checkpoint, trigger=trigger, name=name, options=options
    )


def dead_letters(
    bad: "DataFrame", reason: str = "reason", pipeline: str | None = None
) -> "DataFrame":
    """The records as they are written: key, value, headers. Raises ValueError."""
    from pyspark.sql import functions as F  # noqa: N812

    missing = [column for column in ("value", *_FROM, reason) if column not in bad.columns]
    if missing:
        raise ValueError(f"no column `{missing[0]}`: what is bad must say where it came from")
    said = [_header(column, F.col(column)) for column in _FROM]
    if "timestamp" in bad.columns:
        said.append(_header("timestamp", F.unix_millis("timestamp")))
    said.append(_header("reason", F.col(reason)))
    if pipeline:
        said.append(_header("pipeline", F.lit(pipeline)))
    none = F.array().cast(_HEADERS)
    before = F.coalesce(F.col("headers"), none) if "headers" in bad.columns else none
    key = F.col("key") if "key" in bad.columns else F.lit(None).cast("binary")
    return bad.select(
        key.alias("key"),
        F.col("value"),
        F.concat(before, F.array(*said)).alias("headers"),
    )


def _header(name: str, value: "Column") -> "Column":
    from pyspark.sql import functions as F  # noqa: N812

    return F.struct(
        F.lit(PREFIX + name).alias("key"),
        value.cast("string").cast("binary").alias("value"),
    )


def to_parquet(
    df: "DataFrame",
    path: str,
    *,
    checkpoint: str | None = None,
    partition_by: Sequence[str] = (),
    trigger: Mapping[str, Any] | None = None,
    name: str | None = None,
) -> "StreamingQuery | None":
    """Write with Spark's own sink: exactly once for those who read the directory with Spark."""
    if not df.isStreaming:
        df.write.mode("append").partitionBy(*partition_by).parquet(path)
        return None
    writer = _query(df, "append", checkpoint, trigger, name)
    return writer.format("parquet").partitionBy(*partition_by).start(path)


# -- queries ---------------------------------------------------------------------------------------


def _query(
    df: "DataFrame",
    mode: str,
    checkpoint: str | None,
    trigger: Mapping[str, Any] | None,
    name: str | None,
) -> "DataStreamWriter":
    writer = df.writeStream.outputMode(mode)
    if checkpoint is not None:
        writer = writer.option("checkpointLocation", checkpoint)
    if trigger:
        writer = writer.trigger(**trigger)
    return writer.queryName(name) if name else writer


def _update(
    df: "DataFrame",
    form: str,
    options: Mapping[str, str],
    checkpoint: str | None,
    trigger: Mapping[str, Any] | None,
    name: str | None,
) -> "StreamingQuery":
    """Spark lets Python sinks append or replace, not update: so each batch is written as one.

    Into a table under the query's name and number, which is the same commit.
    """
    from pyspark.sql import is_remote

    if form == DELTA and is_remote():
        # There a batch is written by a job that does not know whose it is: neither the query's id
        # nor the batch's number reach its tasks, so a replay could not be told from a new batch.
        raise ValueError("mode='update' does not work over Spark Connect: use a classic session")
    writer = _query(df, "update", checkpoint, trigger, name)
    return writer.foreachBatch(_BatchSink(form, options)).start()


class _BatchSink:
    def __init__(self, form: str, options: Mapping[str, str]) -> None:
        self._form = form
        self._options = options

    def __call__(self, rows: "DataFrame", _: int) -> None:
        register(rows.sparkSession)
        rows.write.format(self._form).mode("append").options(**self._options).save()
