"""`to_delta`, `to_iceberg`, `to_topic`, `dead_letter`, `to_parquet`: where a DataFrame is written.

Each is usable alone in any PySpark job; what they set are options of `format("suwi-delta")`,
`format("suwi-iceberg")` and `format("suwi")`. A streaming DataFrame starts a query, which is
returned; any other is written when the call returns. Into a Delta or Iceberg table a stream is
written exactly once; into a topic at least once, and exactly once with the option
`transactionalIdPrefix`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from suwi.spark.declarative import columns_of
from suwi.spark.options import read_iceberg_options, read_table_options
from suwi.spark.rules import BROKEN, PREFIX, without_marks
from suwi.spark.spark_session import register

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from suwi.spark.table_commit import TableFormat

DELTA: Final = "suwi-delta"
ICEBERG: Final = "suwi-iceberg"
TOPIC: Final = "suwi"
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
    replace_where: str | None = None,
    trigger: Mapping[str, Any] | None = None,
    name: str | None = None,
    target_file_size: int | str | None = None,
    compression: str | None = None,
    compact_every_s: float | None = None,
    txn: tuple[str, int] | None = None,
    rules: Mapping[str, str] | None = None,
    dead_letters: Mapping[str, str] | None = None,
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
    replace_where: with `overwrite`: the condition of the rows that are replaced, in one commit;
        others stay. Rows that are written must meet it.
    trigger: as `DataStreamWriter.trigger` takes it: {"availableNow": True}.
    target_file_size: as 134217728 or "128mb"; with keys, delta-rs chooses.
    compact_every_s: while the query runs, write small files together this often, in a thread of
        this process.
    rules: what becomes of rows that break a rule of `expect`: warn, drop, dead_letters or fail, by
        its name. Counts are in the table's history.
    dead_letters: options of `format("suwi")` for rows of the action dead_letters.
    storage_options: for an object store, as delta-rs names them.
    """
    register(df.sparkSession)
    _check_mode(df.isStreaming, mode, keys)
    given = delta_options(
        path,
        partition_by=partition_by,
        merge_schema=merge_schema,
        keys=keys,
        order_by=order_by,
        delete_when=delete_when,
        replace_where=replace_where,
        target_file_size=target_file_size,
        compression=compression,
        storage_options=storage_options,
    )
    given |= _rule_options(df, rules, dead_letters)
    if not df.isStreaming:
        if txn is not None:
            given |= {"txnAppId": txn[0], "txnVersion": str(txn[1])}
        df.write.format(DELTA).mode(mode).options(**given).save()
        return None
    if not _is_remote():
        from suwi.spark.delta.data_source import DeltaFormat

        _create_table(df, DeltaFormat(read_table_options(given)), mode == "complete")
    if mode != "update":
        query = (
            streaming(df, mode, checkpoint, trigger, name).format(DELTA).options(**given).start()
        )
    else:
        query = _update(df, DELTA, {**given, "txnFromQuery": "true"}, checkpoint, trigger, name)
    if compact_every_s is not None:
        from suwi.spark.delta.maintenance import keep_compact

        keep_compact(
            query,
            path,
            every_s=compact_every_s,
            target_bytes=read_table_options(given).target_bytes,
            storage_options=storage_options,
        )
    return query


def delta_options(
    path: str,
    *,
    partition_by: Sequence[str] = (),
    merge_schema: bool = False,
    keys: Sequence[str] = (),
    order_by: str | None = None,
    delete_when: str | None = None,
    replace_where: str | None = None,
    target_file_size: int | str | None = None,
    compression: str | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Arguments of `to_delta` as options of the format."""
    options = {
        "path": path,
        "keys": ",".join(keys),
        "orderBy": order_by,
        "deleteWhen": delete_when,
        "replaceWhere": replace_where,
        **{f"storage.{name}": value for name, value in (storage_options or {}).items()},
        **_file_options(partition_by, merge_schema, target_file_size, compression),
    }
    return {name: value for name, value in options.items() if value}


def _file_options(
    partition_by: Sequence[str],
    merge_schema: bool,
    target_file_size: int | str | None,
    compression: str | None,
) -> dict[str, str | None]:
    return {
        "partitionBy": ",".join(partition_by),
        "mergeSchema": str(merge_schema).lower(),
        "targetFileSize": None if target_file_size is None else str(target_file_size),
        "compression": compression,
    }


def to_iceberg(
    df: "DataFrame",
    table: str,
    *,
    warehouse: str | None = None,
    catalog: Mapping[str, str] | None = None,
    checkpoint: str | None = None,
    partition_by: Sequence[str] = (),
    merge_schema: bool = False,
    trigger: Mapping[str, Any] | None = None,
    name: str | None = None,
    target_file_size: int | str | None = None,
    compression: str | None = None,
    txn: tuple[str, int] | None = None,
    rules: Mapping[str, str] | None = None,
    dead_letters: Mapping[str, str] | None = None,
) -> "StreamingQuery | None":
    """Append to the Iceberg table `namespace.name`, which is made if it is missing.

    A streaming DataFrame starts a query, which is returned; a batch of it that is replayed after a
    crash is in the table once, whatever was killed. What is not said here is as with `to_delta`.

    warehouse: the directory of tables. Without `catalog`, an SQLite catalog is in it.
    catalog: the properties of another catalog, as pyiceberg names them: {"type": "rest", "uri": …};
        what tables and object stores need, as `s3.endpoint`, is among them.
    partition_by: columns, and `year(c)`, `month(c)`, `day(c)`, `hour(c)`, `bucket(16, c)`,
        `truncate(4, c)`, that a new table is partitioned by; an old one knows.
    """
    register(df.sparkSession)
    given = iceberg_options(
        table,
        warehouse=warehouse,
        catalog=catalog,
        partition_by=partition_by,
        merge_schema=merge_schema,
        target_file_size=target_file_size,
        compression=compression,
    )
    given |= _rule_options(df, rules, dead_letters)
    if not df.isStreaming:
        if txn is not None:
            given |= {"txnAppId": txn[0], "txnVersion": str(txn[1])}
        df.write.format(ICEBERG).mode("append").options(**given).save()
        return None
    if not _is_remote():
        from suwi.spark.iceberg.data_source import IcebergFormat

        _create_table(df, IcebergFormat(read_iceberg_options(given)), False)
    writer = streaming(df, "append", checkpoint, trigger, name)
    return writer.format(ICEBERG).options(**given).start()


def iceberg_options(
    table: str,
    *,
    warehouse: str | None = None,
    catalog: Mapping[str, str] | None = None,
    partition_by: Sequence[str] = (),
    merge_schema: bool = False,
    target_file_size: int | str | None = None,
    compression: str | None = None,
) -> dict[str, str]:
    """Arguments of `to_iceberg` as options of the format."""
    options = {
        "table": table,
        "warehouse": warehouse,
        **{f"catalog.{name}": value for name, value in (catalog or {}).items()},
        **_file_options(partition_by, merge_schema, target_file_size, compression),
    }
    return {name: value for name, value in options.items() if value}


def topic_options(
    servers: str, topic: str | None, options: Mapping[str, str] | None
) -> dict[str, str]:
    """Arguments of `to_topic` as options of the format."""
    named = {} if topic is None else {"topic": topic}
    return {"kafka.bootstrap.servers": servers, **(options or {}), **named}


def _rule_options(
    df: "DataFrame", rules: Mapping[str, str] | None, dead_letters: Mapping[str, str] | None
) -> dict[str, str]:
    if not rules:
        _refuse_marks(df)
        return {}
    dead = {f"dead.{name}": value for name, value in (dead_letters or {}).items()}
    return {"rules": json.dumps(dict(rules)), **dead}


def _refuse_marks(df: "DataFrame") -> None:
    if BROKEN in df.columns:
        raise ValueError(
            "the rows were marked by expect(): give the sink rules=, an action for each"
        )


def _create_table(df: "DataFrame", table: "TableFormat", overwrite: bool) -> None:
    """Before the first record comes, so that others can read the table. Raises `DeltaSinkError`."""
    from suwi.spark.table_writer import StreamWriter

    StreamWriter(table, df.schema, overwrite)  # It refuses what the first batch would.
    table.open(df.schema if table.options.rules is None else without_marks(df.schema))


def _is_remote() -> bool:
    """Then the driver writes, on a machine that may see other files."""
    from pyspark.sql import is_remote

    return bool(is_remote())


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
    rules: Mapping[str, str] | None = None,
    dead_letters: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
) -> "StreamingQuery | None":
    """Write the column `value`, and `key`, `topic`, `partition`, `headers` where they are.

    A streaming DataFrame starts a query, which is returned; any other is written when this
    returns. Without `topic` the column of that name says where each row goes.

    servers: `host:port`, several separated by commas.
    mode: of a stream: `append`, or `update`, which writes rows that changed.
    trigger: as `DataStreamWriter.trigger` takes it: {"availableNow": True}.
    rules, dead_letters: as with `to_delta`.
    options: others of `format("suwi")`, as `kafka.compression.type`; with `transactionalIdPrefix` a
        stream is written exactly once.
    """
    register(df.sparkSession)
    given = topic_options(servers, topic, options) | _rule_options(df, rules, dead_letters)
    if not df.isStreaming:
        df.write.format(TOPIC).mode("append").options(**given).save()
        return None
    if mode != "update":
        return streaming(df, mode, checkpoint, trigger, name).format(TOPIC).options(**given).start()
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
    """The records that `dead_letter` writes: key, value, headers. Raises ValueError."""
    from pyspark.sql import functions as F  # noqa: N812

    needed = ("value", *_FROM, reason)
    columns = columns_of(bad, ["key", "timestamp", *needed])
    missing = [column for column in needed if column not in columns]
    if missing:
        raise ValueError(f"no column `{missing[0]}`: what is bad must say where it came from")
    return bad.select(*letter_columns(columns, F.col(reason), pipeline))


def letter_columns(
    columns: Sequence[str], reason: "Column", pipeline: str | None
) -> "list[Column]":
    """The dead letter of a row with these columns of the source: key, value, headers."""
    from pyspark.sql import functions as F  # noqa: N812

    said = [_header(column, F.col(column)) for column in _FROM]
    if "timestamp" in columns:
        said.append(_header("timestamp", F.unix_millis("timestamp")))
    said.append(_header("reason", reason))
    if pipeline:
        said.append(_header("pipeline", F.lit(pipeline)))
    none = F.array().cast(_HEADERS)
    before = F.coalesce(F.col("headers"), none) if "headers" in columns else none
    key = F.col("key") if "key" in columns else F.lit(None).cast("binary")
    headers = F.concat(before, F.array(*said))
    return [key.alias("key"), F.col("value"), headers.alias("headers")]


def _header(name: str, value: "Column") -> "Column":
    from pyspark.sql import functions as F  # noqa: N812

    return F.struct(
        F.lit(PREFIX + name).alias("key"), value.cast("string").cast("binary").alias("value")
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
    """Write with Spark's own sink: exactly once for those who read the directory with Spark. It
    takes no rules."""
    _refuse_marks(df)
    if not df.isStreaming:
        df.write.mode("append").partitionBy(*partition_by).parquet(path)
        return None
    writer = streaming(df, "append", checkpoint, trigger, name)
    return writer.format("parquet").partitionBy(*partition_by).start(path)


# -- queries ---------------------------------------------------------------------------------------


def streaming(
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
    if form == DELTA and _is_remote():
        # There a batch is written by a job that does not know whose it is: neither the query's id
        # nor the batch's number reach its tasks, so a replay could not be told from a new batch.
        raise ValueError("mode='update' does not work over Spark Connect: use a classic session")
    writer = streaming(df, "update", checkpoint, trigger, name)
    return writer.foreachBatch(_BatchSink(form, options)).start()


class _BatchSink:
    def __init__(self, form: str, options: Mapping[str, str]) -> None:
        self._form = form
        self._options = options

    def __call__(self, rows: "DataFrame", _: int) -> None:
        register(rows.sparkSession)
        rows.write.format(self._form).mode("append").options(**self._options).save()
