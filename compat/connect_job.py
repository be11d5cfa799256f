"""A job over Spark Connect: each step's result, or its error, as JSON on stdout.

In its own process, since a process is either for Connect or for classic sessions.
"""

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from suwi.spark import (
    dead_letter,
    decode,
    read_delta,
    read_topics,
    register,
    to_delta,
    to_topic,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SCHEMA = "id BIGINT NOT NULL"
_NOW = {"availableNow": True}
_PATIENCE_S = 240


class Job:
    def __init__(self, spark: SparkSession, broker: str, topic: str, out: str, folder: str) -> None:
        self._spark, self._broker, self._topic = spark, broker, topic
        self._out, self._folder = out, folder

    def read_a_batch(self) -> list[str]:
        reader = self._spark.read.format("suwi").option("subscribe", self._topic)
        rows = reader.option("kafka.bootstrap.servers", self._broker).load()
        return sorted(bytes(row.value).decode() for row in rows.collect())

    def stream_into_a_table(self) -> list[int]:
        good, _ = self._decoded()
        for _ in range(2):  # The second time there is nothing more to read.
            path, checkpoint = self._places("table")
            self._wait(to_delta(good, path, checkpoint=checkpoint, trigger=_NOW))
        return self._ids("table")

    def read_a_table(self) -> list[list[int]]:
        """As a batch, and as a stream into another table."""
        path, _ = self._places("table")
        rows = read_delta(self._spark, path, where="id > 1", columns=["id"], streaming=False)
        copy, checkpoint = self._places("copy")
        stream = read_delta(self._spark, path, columns=["id"])
        self._wait(to_delta(stream, copy, checkpoint=checkpoint, trigger=_NOW))
        return [sorted(row.id for row in rows.collect()), self._ids("copy")]

    def stream_into_a_topic(self) -> None:
        good, _ = self._decoded()
        _, checkpoint = self._places("topic")
        rows = good.selectExpr("CAST(id AS STRING) AS value")
        self._wait(to_topic(rows, self._broker, self._out, checkpoint=checkpoint, trigger=_NOW))

    def send_dead_letters(self) -> None:
        _, bad = self._decoded()
        _, checkpoint = self._places("dead")
        self._wait(dead_letter(bad, self._broker, self._out, checkpoint=checkpoint, trigger=_NOW))

    def replace_rows_by_key(self) -> list[int]:
        good, _ = self._decoded()
        path, checkpoint = self._places("keyed")
        self._wait(to_delta(good, path, checkpoint=checkpoint, keys=["id"], trigger=_NOW))
        return self._ids("keyed")

    def update_a_table(self) -> list[int]:
        good, _ = self._decoded()
        path, checkpoint = self._places("updated")
        counts = good.groupBy("id").count()
        query = to_delta(
            counts, path, checkpoint=checkpoint, mode="update", keys=["id"], trigger=_NOW
        )
        self._wait(query)
        return self._ids("updated")

    def _decoded(self) -> "tuple[DataFrame, DataFrame]":
        rows = read_topics(self._spark, self._broker, self._topic, starting="earliest")
        return decode(rows, json=_SCHEMA)

    def _places(self, name: str) -> tuple[str, str]:
        return f"{self._folder}/{name}", f"{self._folder}/{name}-checkpoint"

    def _ids(self, name: str) -> list[int]:
        from deltalake import DeltaTable

        table = DeltaTable(f"{self._folder}/{name}").to_pyarrow_table()
        return sorted(table.column("id").to_pylist())

    def _wait(self, query: Any) -> None:
        assert query.awaitTermination(_PATIENCE_S), "it is not done"
        if query.exception() is not None:
            raise query.exception()


def main() -> None:
    spark = (
        SparkSession.builder.remote("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "512m")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    register(spark)
    job = Job(spark, *sys.argv[1:])
    steps: list[Callable[[], object]] = [
        job.read_a_batch,
        job.stream_into_a_table,
        job.read_a_table,
        job.stream_into_a_topic,
        job.send_dead_letters,
        job.replace_rows_by_key,
        job.update_a_table,
    ]
    found: dict[str, object] = {"session": type(spark).__module__}
    for step in steps:
        try:
            found[step.__name__] = step()
        except Exception as error:
            found[step.__name__] = f"{type(error).__name__}: {error}"
    spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
