"""`format("suwi-delta")` as a source, in Spark: batch, stream, and frames that are used twice."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install .[spark]")
pytest.importorskip("deltalake", reason="deltalake is not installed: pip install .[spark]")

from deltalake import DeltaTable
from pyspark.errors import PySparkException

from suwi.spark import read_delta, to_delta
from suwi.spark.delta.maintenance import compact
from tests.spark.streams import NOW, finish, lose_last_commit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KINDS = """
    id AS n, cast(id AS int) AS i, cast(id AS string) AS s, id % 2 = 0 AS even, id / 2 AS half,
    cast(id AS decimal(10, 2)) AS price, timestamp_seconds(id) AS at, date '2026-01-01' AS day,
    cast(timestamp_seconds(id) AS timestamp_ntz) AS local, encode(cast(id AS string), 'utf-8') AS b,
    array(id, null) AS l, map('k', id) AS m, named_struct('x', id, 'y', array('a')) AS st
"""


def test_what_spark_wrote_comes_back_with_every_type(spark: "SparkSession", tmp_path: Path) -> None:
    rows = spark.sql(f"SELECT {KINDS} FROM range(100)")
    to_delta(rows, str(tmp_path / "t"), partition_by=["even"])
    found = read_delta(spark, str(tmp_path / "t"), streaming=False)
    found = found.select(rows.columns).orderBy("n")
    assert found.collect() == rows.orderBy("n").collect()
    assert dict(found.dtypes) == dict(rows.dtypes)


def test_a_frame_may_be_used_in_many_ways(spark: "SparkSession", tmp_path: Path) -> None:
    to_delta(spark.sql("SELECT id AS n FROM range(6)"), str(tmp_path / "t"))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        found = spark.read.format("suwi-delta").load(str(tmp_path / "t"))
        both = found.where("n = 1").union(found.where("n = 2"))
        assert sorted(row.n for row in both.collect()) == [1, 2]
        assert found.count() == 6
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    few = read_delta(spark, str(tmp_path / "t"), where="n >= 4", columns=["n"], streaming=False)
    assert sorted(row.n for row in few.collect()) == [4, 5]


def test_partition_values_beyond_ascii_are_read_by_sparks_parquet_source_too(
    spark: "SparkSession", tmp_path: Path
) -> None:
    what = "ü☃ a/b=c%"
    rows = spark.createDataFrame([(1, what)], "n long, what string")
    to_delta(rows, str(tmp_path / "t"), partition_by=["what"])
    for found in (
        spark.read.parquet(str(tmp_path / "t")),
        read_delta(spark, str(tmp_path / "t"), streaming=False),
    ):
        assert [(row.n, row.what) for row in found.collect()] == [(1, what)]
    assert DeltaTable(str(tmp_path / "t")).to_pyarrow_table().to_pylist() == [
        {"n": 1, "what": what}
    ]


@pytest.mark.slow
def test_tables_follow_each_other_exactly_once(spark: "SparkSession", tmp_path: Path) -> None:
    """Bronze to silver: replays, compaction and a restart, and each row once."""
    bronze, silver = str(tmp_path / "bronze"), str(tmp_path / "silver")
    to_delta(spark.range(3).toDF("n"), bronze)

    def run() -> None:
        rows = read_delta(spark, bronze).where("n % 2 = 0")
        finish(to_delta(rows, silver, checkpoint=str(tmp_path / "c"), trigger=NOW))

    run()
    for low in (3, 6, 9):
        to_delta(spark.range(low, low + 3).toDF("n"), bronze)
    compact(bronze)
    run()
    lose_last_commit(tmp_path / "c")
    run()
    found = DeltaTable(silver).to_pyarrow_table().column("n").to_pylist()
    assert sorted(found) == [0, 2, 4, 6, 8, 10]


def test_a_commit_that_removes_rows_stops_the_query_and_says_what_to_do(
    spark: "SparkSession", tmp_path: Path
) -> None:
    bronze, silver = str(tmp_path / "bronze"), str(tmp_path / "silver")
    to_delta(spark.range(3).toDF("n"), bronze)

    def run(**options: str) -> None:
        rows = read_delta(spark, bronze, options=options)
        finish(to_delta(rows, silver, checkpoint=str(tmp_path / "c"), trigger=NOW))

    run()
    DeltaTable(bronze).delete("n = 1")
    with pytest.raises(PySparkException, match=r"removes or rewrites rows \(DELETE\)"):
        run()
    run(skipChangeCommits="true")
    assert DeltaTable(silver).to_pyarrow_table().num_rows == 3
