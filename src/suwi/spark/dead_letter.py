"""`dead_letter(bad, …)`: records that could not be used, kept in a topic with the reason.

Usable alone in any PySpark job. Key and value stay as they were; where the record came from, and
what was wrong with it, are headers.
Invariant: every record of `bad` is written, at least once.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from suwi.spark.to_topic import to_topic

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

PREFIX: Final = "suwi.dead."
_FROM: Final = ("topic", "partition", "offset")
_NEEDED: Final = ("value", *_FROM)
_HEADERS: Final = "array<struct<key:string,value:binary>>"


def dead_letter(
    bad: "DataFrame",
    servers: str,
    topic: str,
    *,
    reason: str = "reason",
    checkpoint: str | None = None,
    trigger: Mapping[str, Any] | None = None,
    name: str | None = None,
    options: Mapping[str, str] | None = None,
) -> "StreamingQuery | None":
    """Write rows with the source's columns and one that says why to the topic `topic`.

    The record's headers get `suwi.dead.topic`, `suwi.dead.partition`, `suwi.dead.offset` and
    `suwi.dead.reason` besides those that it had. The rest is as with `to_topic`.

    reason: the column with what was wrong.
    """
    rows = dead_letters(bad, reason)
    return to_topic(
        rows, servers, topic, checkpoint=checkpoint, trigger=trigger, name=name, options=options
    )


def dead_letters(bad: "DataFrame", reason: str = "reason") -> "DataFrame":
    """The records as they are written: key, value, headers. Raises ValueError."""
    from pyspark.sql import functions as F  # noqa: N812

    missing = [column for column in (*_NEEDED, reason) if column not in bad.columns]
    if missing:
        raise ValueError(f"no column `{missing[0]}`: what is bad must say where it came from")
    said = F.array(*(_header(column, column) for column in _FROM), _header("reason", reason))
    none = F.array().cast(_HEADERS)
    before = F.coalesce(F.col("headers"), none) if "headers" in bad.columns else none
    key = F.col("key") if "key" in bad.columns else F.lit(None).cast("binary")
    return bad.select(
        key.alias("key"),
        F.col("value"),
        F.concat(before, said).alias("headers"),
    )


def _header(name: str, column: str) -> "Column":
    from pyspark.sql import functions as F  # noqa: N812

    return F.struct(
        F.lit(PREFIX + name).alias("key"),
        F.col(column).cast("string").cast("binary").alias("value"),
    )
