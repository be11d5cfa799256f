"""`read_topics(spark, …)` and `read_delta(spark, …)`: topics and tables as DataFrames.

Usable alone in any PySpark job; what they set are options of `format("suwi")` and
`format("suwi-delta")`.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from suwi.spark.option_table import Use
from suwi.spark.options import read_table_options
from suwi.spark.spark_session import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_topics(
    spark: "SparkSession",
    servers: str,
    topics: str | Sequence[str] | None = None,
    *,
    pattern: str | None = None,
    starting: str | None = None,
    streaming: bool = True,
    options: Mapping[str, str] | None = None,
) -> "DataFrame":
    """The rows of topics: key, value, topic, partition, offset, timestamp, timestampType.

    servers: `host:port`, several separated by commas.
    topics: one name or several; or all that match `pattern`, also those that are made later.
    starting: where a new query begins: `earliest`, `latest`, or offsets as JSON. By default a
        stream begins at the end, a batch at the beginning.
    streaming: False reads what there is now.
    options: others of `format("suwi")`, as `kafka.isolation.level` or `maxOffsetsPerTrigger`.
    """
    register(spark)
    given = {"kafka.bootstrap.servers": servers, **(options or {})}
    if topics is not None:
        given["subscribe"] = topics if isinstance(topics, str) else ",".join(topics)
    if pattern is not None:
        given["subscribePattern"] = pattern
    if starting is not None:
        given["startingOffsets"] = starting
    reader = spark.readStream if streaming else spark.read
    return reader.format("suwi").options(**given).load()


def read_delta(
    spark: "SparkSession",
    path: str,
    *,
    starting: str | int | None = None,
    columns: Sequence[str] = (),
    where: str | None = None,
    streaming: bool = True,
    each_batch: bool = False,
    options: Mapping[str, str] | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> "DataFrame":
    """The rows of the Delta table at `path`.

    A stream begins with the table as it is, and goes on with what is added to it. A commit that
    removes or rewrites rows stops it, unless the option `skipChangeCommits` is true.

    starting: of a stream: a version, from which on only what was added is read; or `latest`.
    columns: those that are wanted; all, if none is named.
    where: which rows, as "day = '2026-01-31' AND amount > 5"; files that cannot have any are passed
        over by their statistics.
    streaming: False reads the table as it is now, or `versionAsOf`, `timestampAsOf` of `options`:
        through Spark's own Parquet source, which is faster, where it gives the same rows.
    each_batch: with `streaming=False`, for a join with a stream that `to_outputs` writes: the table
        as it is when each batch starts.
    storage_options: for an object store, as delta-rs names them.
    """
    register(spark)
    given = {**(options or {})}
    if each_batch:
        given["versionOfBatch"] = "true"
    if starting is not None:
        given["startingVersion"] = str(starting)
    if columns:
        given["columns"] = ",".join(columns)
    if where:
        given["where"] = where
    given |= {f"storage.{name}": value for name, value in (storage_options or {}).items()}
    if not streaming:
        from suwi.spark.delta.parquet_source import read_with_spark

        table = read_table_options({**given, "path": path}, Use.TABLE_BATCH)
        rows = read_with_spark(spark, table)
        if rows is not None:
            return rows
    reader = spark.readStream if streaming else spark.read
    return reader.format("suwi-delta").options(**given).load(path)
