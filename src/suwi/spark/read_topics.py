"""`read_topics(spark, …)`: topics as a DataFrame, streaming or batch.

Usable alone in any PySpark job; what it sets are options of `format("suwi")`.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

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
    from suwi.spark.register import register

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
