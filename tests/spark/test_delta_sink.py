"""`suwi-delta` as jobs use it: what is in the table after runs, replays, failures and merges."""

import os
from collections import Counter
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install .[spark]")
pytest.importorskip("deltalake", reason="deltalake is not installed: pip install .[spark]")

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema

from suwi.spark.delta.data_source import DeltaFormat
from suwi.spark.delta.maintenance import clean_orphans
from suwi.spark.options import read_table_options
from suwi.spark.table_writer import BatchWriter
from suwi.spark.write import to_delta
from tests.spark.streams import NOW, Arrivals, finish, lose_last_commit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def rows_of(table: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    return found


def numbers_in(table: Path) -> list[int]:
    return sorted(row["n"] for row in rows_of(table))


def data_files(table: Path) -> set[str]:
    return {str(file.relative_to(table)) for file in table.rglob("*.parquet")} - {
        str(file.relative_to(table)) for file in (table / "_delta_log").glob("*")
    }


def test_a_batch_whose_driver_died_before_noting_it_is_in_the_table_once(
    spark: "SparkSession", tmp_path: Path
) -> None:
    arrivals = Arrivals(spark, tmp_path / "in", "n long")
    table, checkpoint = tmp_path / "t", tmp_path / "c"

    def run() -> None:
        spread = arrivals.stream().repartition(2)
        finish(to_delta(spread, str(table), checkpoint=str(checkpoint), trigger=NOW))

    arrivals.add([{"n": 1}, {"n": 2}])
    run()
    arrivals.add([{"n": 3}])
    run()
    before = DeltaTable(str(table)).version(), data_files(table)
    assert lose_last_commit(checkpoint) == 1
    run()
    assert (DeltaTable(str(table)).version(), data_files(table)) == before
    arrivals.add([{"n": 4}])
    run()
    assert numbers_in(table) == [1, 2, 3, 4]


def test_a_new_checkpoint_writes_everything_again_and_nothing_is_dropped(
    spark: "SparkSession", tmp_path: Path
) -> None:
    arrivals = Arrivals(spark, tmp_path / "in", "n long")
    arrivals.add([{"n": 1}])
    for name in ("first", "second"):
        finish(
            to_delta(
                arrivals.stream(),
                str(tmp_path / "t"),
                checkpoint=str(tmp_path / name),
                trigger=NOW,
                name="the-same-name",
            )
        )
    assert numbers_in(tmp_path / "t") == [1, 1]


def test_counts_are_kept_up_to_date_by_key_and_a_replay_changes_nothing(
    spark: "SparkSession", tmp_path: Path
) -> None:
    arrivals = Arrivals(spark, tmp_path / "in", "word string")
    table, checkpoint = tmp_path / "t", tmp_path / "c"

    def run() -> None:
        counts = arrivals.stream().groupBy("word").count()
        finish(
            to_delta(
                counts,
                str(table),
                checkpoint=str(checkpoint),
                mode="update",
                keys=["word"],
                trigger=NOW,
            )
        )

    arrivals.add([{"word": word} for word in "aab"])
    run()
    arrivals.add([{"word": word} for word in "ac"])
    run()
    expected = {"a": 3, "b": 1, "c": 1}
    assert {row["word"]: row["count"] for row in rows_of(table)} == expected
    version = DeltaTable(str(table)).version()
    lose_last_commit(checkpoint)
    run()
    assert DeltaTable(str(table)).version() == version
    assert not list((table / "_suwi_staging").glob("*"))


def test_a_stream_of_keys_replaces_rows_and_complete_mode_replaces_the_table(
    spark: "SparkSession", tmp_path: Path
) -> None:
    arrivals = Arrivals(spark, tmp_path / "in", "k long, v string, at long")
    arrivals.add([{"k": 1, "v": "a", "at": 1}, {"k": 1, "v": "b", "at": 2}])
    arrivals.add([{"k": 1, "v": "old", "at": 0}, {"k": 2, "v": "c", "at": 1}])
    finish(
        to_delta(
            arrivals.stream(),
            str(tmp_path / "t"),
            checkpoint=str(tmp_path / "c"),
            keys=["k"],
            order_by="at",
            trigger=NOW,
        )
    )
    assert {row["k"]: row["v"] for row in rows_of(tmp_path / "t")} == {1: "b", 2: "c"}
    finish(
        to_delta(
            arrivals.stream().groupBy("k").count(),
            str(tmp_path / "counts"),
            checkpoint=str(tmp_path / "c2"),
            mode="complete",
            trigger=NOW,
        )
    )
    assert {row["k"]: row["count"] for row in rows_of(tmp_path / "counts")} == {1: 3, 2: 1}


def test_batches_append_overwrite_and_are_written_once_under_a_number(
    spark: "SparkSession", tmp_path: Path
) -> None:
    table = str(tmp_path / "t")
    frame = spark.range(3).withColumnRenamed("id", "n")
    for _ in range(2):
        to_delta(frame, table, txn=("nightly", 7))
    assert numbers_in(tmp_path / "t") == [0, 1, 2]
    to_delta(frame, table)
    assert Counter(numbers_in(tmp_path / "t")) == {0: 2, 1: 2, 2: 2}
    to_delta(frame.limit(0), table, mode="overwrite")
    assert numbers_in(tmp_path / "t") == []


def test_partitions_and_times_are_right_in_any_time_zone(
    spark: "SparkSession", tmp_path: Path
) -> None:
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Seoul")
    try:
        frame = spark.sql(
            "select timestamp '2026-01-02 03:00:00' as at, date '2026-01-02' as day, "
            "named_struct('at', timestamp '2026-01-02 03:00:00', 'l', array(1, null)) as inner, "
            "map('k', 1.50BD) as m"
        )
        to_delta(frame, str(tmp_path), partition_by=["day"])
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    (row,) = rows_of(tmp_path)
    assert row["at"] == row["inner"]["at"] == datetime(2026, 1, 1, 18, tzinfo=UTC)
    assert row["day"] == date(2026, 1, 2)
    assert row["inner"]["l"] == [1, None]
    assert list(tmp_path.glob("day=2026-01-02/part-*.parquet"))
    again = spark.read.parquet(*(str(f) for f in tmp_path.glob("day=*/part-*.parquet")))
    assert again.collect()[0]["at"].astimezone(UTC) == row["at"], "Spark reads the files alike"


def test_a_schema_that_does_not_fit_stops_the_query_before_its_first_task(
    spark: "SparkSession", tmp_path: Path
) -> None:
    table = str(tmp_path / "t")
    to_delta(spark.sql("select 1L as n"), table)
    wide = spark.sql("select 2L as n, 'x' as extra")
    with pytest.raises(PySparkException, match="`extra` is not in the table"):
        to_delta(wide, table)
    to_delta(wide, table, merge_schema=True)
    assert sorted(rows_of(tmp_path / "t"), key=lambda row: row["n"]) == [
        {"n": 1, "extra": None},
        {"n": 2, "extra": "x"},
    ]
    with pytest.raises(PySparkException, match="did you mean 'mergeSchema'"):
        wide.write.format("suwi-delta").mode("append").option("mergSchema", "true").save(table)


def test_a_task_that_fails_leaves_no_rows_and_its_files_go_with_the_next_clean_up(
    spark: "SparkSession", tmp_path: Path
) -> None:
    table = tmp_path / "t"
    frame = spark.range(0, 50_000, 1, 1).selectExpr("id", "id % 2 as part")
    to_delta(frame, str(table), partition_by=["part"])
    before = data_files(table)
    assert len(before) == 2
    broken = frame.selectExpr("if(id = 49999, raise_error('no'), id) as id", "part")
    with pytest.raises(PySparkException, match="no"):
        to_delta(broken, str(table))
    assert len(rows_of(table)) == 50_000
    # For the writer the rows had just ended: Spark tells Python of no failure elsewhere.
    for name in data_files(table):
        os.utime(table / name, (0, 0))
    clean_orphans(str(table))
    assert data_files(table) == before


def test_files_of_tasks_that_were_done_go_when_another_fails(
    spark: "SparkSession", tmp_path: Path
) -> None:
    schema = spark.range(1).schema
    table = DeltaFormat(read_table_options({"path": str(tmp_path)}))
    writer = BatchWriter(table, schema, overwrite=False)
    rows = pa.RecordBatch.from_pydict({"id": [1, 2]}, schema=to_arrow_schema(schema))
    wrote = writer.write(iter([rows]))
    writer.abort([wrote])
    assert len(data_files(tmp_path)) == 1  # Its commit was tried, and may have come through.
    writer.abort([wrote, None])
    assert data_files(tmp_path) == set()


def test_modes_that_cannot_be_are_refused(spark: "SparkSession", tmp_path: Path) -> None:
    frame = spark.range(1)
    with pytest.raises(ValueError, match="a batch DataFrame takes append, overwrite"):
        to_delta(frame, str(tmp_path), mode="update")
    arrivals = Arrivals(spark, tmp_path / "in", "n long")
    with pytest.raises(ValueError, match="needs keys"):
        to_delta(arrivals.stream(), str(tmp_path), mode="update")


def test_small_files_are_written_together_while_the_query_runs(
    spark: "SparkSession", tmp_path: Path
) -> None:
    arrivals = Arrivals(spark, tmp_path / "in", "n long")
    table = tmp_path / "t"
    for number in range(3):
        arrivals.add([{"n": number}])
    query = to_delta(
        arrivals.stream(), str(table), checkpoint=str(tmp_path / "c"), compact_every_s=0.2
    )
    assert query is not None
    try:
        while query.isActive:
            query.processAllAvailable()
            history = DeltaTable(str(table)).history()
            if any(commit["operation"] == "OPTIMIZE" for commit in history):
                break
            arrivals.add([{"n": 100}])
    finally:
        query.stop()
    assert query.exception() is None
    assert set(numbers_in(table)) >= {0, 1, 2}


def test_sparks_own_parquet_sink_takes_the_same_stream(
    spark: "SparkSession", tmp_path: Path
) -> None:
    arrivals = Arrivals(spark, tmp_path / "in", "n long")
    arrivals.add([{"n": 1}])
    arrivals.add([{"n": 2}])
    table, checkpoint = tmp_path / "t", tmp_path / "c"
    for _ in range(2):
        writer = arrivals.stream().writeStream.format("parquet").trigger(**NOW)
        finish(writer.option("checkpointLocation", str(checkpoint)).start(str(table)))
        if _ == 0:
            lose_last_commit(checkpoint)
    assert sorted(row["n"] for row in spark.read.parquet(str(table)).collect()) == [1, 2]
