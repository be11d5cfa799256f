"""State that outlives its query, on topics: what was seen before a restart counts after it."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install .[spark]")
pytest.importorskip("deltalake", reason="deltalake is not installed: pip install .[spark]")

from deltalake import DeltaTable

from suwi.spark import decode, read_topics, to_delta
from suwi.spark.releases import HAS_ADMISSION_CONTROL
from tests.broker_process import BrokerProcess
from tests.spark.streams import NOW, finish_all
from tests.spark.topics import fill, make_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = "id STRING, at TIMESTAMP, n BIGINT"
# transformWithState keeps its state nowhere else; one shuffle partition is enough for a few rows.
SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.shuffle.partitions": "1",
}


@pytest.fixture(autouse=True)
def state_store(spark: "SparkSession") -> Iterator[None]:
    before = {name: spark.conf.get(name, None) for name in SETTINGS}
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    yield
    for name, old in before.items():
        if old is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, old)


class Events:
    """A topic of events, and their stream."""

    def __init__(self, spark: "SparkSession", broker: BrokerProcess) -> None:
        self._spark, self._broker = spark, broker
        self._topic = make_topic(broker.address, partitions=2, word="events")

    def send(self, *events: tuple[str, float], n: int = 1) -> None:
        """Each with an id and the minute at which it happened."""
        for partition in (0, 1):
            values = [
                json.dumps(
                    {"id": name, "at": (START + timedelta(minutes=at)).isoformat(), "n": n}
                ).encode()
                for position, (name, at) in enumerate(events)
                if position % 2 == partition
            ]
            fill(self._broker.address, self._topic, values, partition=partition)

    def stream(self, delay: str = "10 minutes") -> "DataFrame":
        rows = read_topics(self._spark, self._broker.address, self._topic, starting="earliest")
        good, _ = decode(rows, json=SCHEMA)
        return good.select("id", "at", "n").withWatermark("at", delay)


def run(result: "DataFrame", folder: Path, **how: Any) -> list[dict[str, Any]]:
    """Everything there is, from the checkpoint on; all rows that were ever written."""
    path, checkpoint = str(folder / "table"), str(folder / "checkpoint")
    finish_all(lambda: [to_delta(result, path, checkpoint=checkpoint, trigger=NOW, **how)])
    if not DeltaTable.is_deltatable(path):
        return []  # It is made with the first row.
    rows: list[dict[str, Any]] = DeltaTable(path).to_pyarrow_table().to_pylist()
    return rows


@pytest.fixture
def events(spark: "SparkSession", broker: BrokerProcess) -> Events:
    return Events(spark, broker)


@pytest.mark.slow
def test_a_duplicate_is_known_after_a_restart(events: Events, tmp_path: Path) -> None:
    def unique() -> "DataFrame":
        return events.stream().dropDuplicatesWithinWatermark(["id"]).select("id")

    events.send(("a", 0), ("b", 1), ("a", 1))
    assert sorted(row["id"] for row in run(unique(), tmp_path)) == ["a", "b"]
    events.send(("a", 2), ("c", 2), ("b", 2))
    assert sorted(row["id"] for row in run(unique(), tmp_path)) == ["a", "b", "c"]


@pytest.mark.slow
def test_a_window_that_was_open_at_a_restart_is_completed(events: Events, tmp_path: Path) -> None:
    from pyspark.sql import functions as f

    def counts() -> "DataFrame":
        counted = events.stream().groupBy(f.window("at", "5 minutes")).agg(f.sum("n").alias("n"))
        return counted.select(f.col("window.start").alias("start"), "n")

    events.send(("a", 0), ("b", 1), ("c", 6))
    assert run(counts(), tmp_path) == []  # nothing is over yet
    events.send(("d", 2), ("e", 7), ("f", 30))  # the first is late, but not too late
    rows = run(counts(), tmp_path)
    if not HAS_ADMISSION_CONTROL:
        # There a run is one batch: what its records have ended is written by the next one.
        assert rows == []
        events.send(("g", 31))
        rows = run(counts(), tmp_path)
    found = {row["start"]: row["n"] for row in rows}
    assert found == {START: 3, START + timedelta(minutes=5): 2}


@pytest.mark.slow
def test_two_topics_are_joined_across_a_restart(
    spark: "SparkSession", broker: BrokerProcess, tmp_path: Path
) -> None:
    from pyspark.sql import functions as f

    orders, payments = Events(spark, broker), Events(spark, broker)

    def paid() -> "DataFrame":
        left = orders.stream().alias("o")
        right = payments.stream().alias("p")
        within = f.expr("o.id = p.id AND p.at BETWEEN o.at AND o.at + INTERVAL 5 MINUTES")
        return left.join(right, within).select(f.col("o.id").alias("id"), f.col("p.n").alias("n"))

    orders.send(("a", 0), ("b", 0))
    payments.send(("b", 1), n=2)
    assert [(row["id"], row["n"]) for row in run(paid(), tmp_path)] == [("b", 2)]
    payments.send(("a", 2), ("nobody", 2), n=3)
    orders.send(("c", 3))
    rows = run(paid(), tmp_path)
    assert sorted((row["id"], row["n"]) for row in rows) == [("a", 3), ("b", 2)]


@pytest.mark.slow
def test_state_of_ones_own_is_kept_across_a_restart(events: Events, tmp_path: Path) -> None:
    for module in ("google.protobuf", "pandas"):
        pytest.importorskip(module, reason="PySpark asks for it with transformWithState")
    from pyspark.sql import Row
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

    class Total(StatefulProcessor):
        """The sum of all that a key ever had."""

        def init(self, handle: StatefulProcessorHandle) -> None:
            self._sum = handle.getValueState("sum", "n BIGINT")

        def handleInputRows(  # noqa: N802
            self, key: Any, rows: Iterator[Row], timer_values: Any
        ) -> Iterator[Row]:
            before = self._sum.get()[0] if self._sum.exists() else 0
            total = before + sum(row.n for row in rows)
            self._sum.update((total,))
            yield Row(id=key[0], total=total)

        def close(self) -> None:
            pass

    def totals() -> "DataFrame":
        grouped = events.stream().groupBy("id")
        return grouped.transformWithState(Total(), "id STRING, total BIGINT", "append", "None")

    events.send(("a", 0), ("b", 0), ("a", 1), n=2)
    rows = run(totals(), tmp_path)
    assert {(row["id"], row["total"]) for row in rows} == {("a", 4), ("b", 2)}
    events.send(("a", 2), n=5)
    rows = run(totals(), tmp_path)
    assert {(row["id"], row["total"]) for row in rows} == {("a", 4), ("b", 2), ("a", 9)}
