"""`to_topic(df, …)`: a DataFrame into topics, a stream at least once.

Usable alone in any PySpark job; what it sets are options of `format("suwi")`.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery


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
    options: others of `format("suwi")`, as `kafka.compression.type`.
    """
    from suwi.spark.register import register

    register(df.sparkSession)
    given = {"kafka.bootstrap.servers": servers, **(options or {})}
    if topic is not None:
        given["topic"] = topic
    if not df.isStreaming:
        df.write.format("suwi").mode("append").options(**given).save()
        return None
    writer = df.writeStream.outputMode(mode)
    if checkpoint is not None:
        writer = writer.option("checkpointLocation", checkpoint)
    if trigger:
        writer = writer.trigger(**trigger)
    if name:
        writer = writer.queryName(name)
    if mode != "update":
        return writer.format("suwi").options(**given).start()
    # Spark lets Python sinks append, not update: so each batch is written as one.
    return writer.foreachBatch(_BatchSink(given)).start()


class _BatchSink:
    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options

    def __call__(self, rows: "DataFrame", _: int) -> None:
        from suwi.spark.register import register

        register(rows.sparkSession)
        rows.write.format("suwi").mode("append").options(**self._options).save()
