"""`suwi-iceberg` as jobs use it: what is in the table after runs, replays and failures."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install .[spark]")
pytest.importorskip("pyiceberg", reason="pyiceberg is not installed: pip install .[iceberg]")
pytest.importorskip("duckdb", reason="DuckDB is not installed: pip install .[spark-tests]")

from pyspark.errors import PySparkException

from suwi.spark import delta_output, expect, iceberg_output, to_iceberg, to_outputs
from tests.spark.iceberg.tables import NAME, load, rows_of
from tests.spark.streams import NOW, Arrivals, finish, lose_last_commit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def numbers(warehouse: Path) -> list[Any]:
    return sorted(row["n"] for row in rows_of(warehouse))


def files_of(warehouse: Path) -> set[Path]:
    return set(warehouse.rglob("*.parquet"))


def test_a_batch_whose_driver_died_before_noting_it_is_in_the_table_once(
    spark: "SparkSession", tmp_path: Path
) -> None:
    arrivals = Arrivals(spark, tmp_path / "in", "n long, at timestamp")
    lake, checkpoint = tmp_path / "lake", tmp_path / "c"

    def run() -> None:
        spread = arrivals.stream().repartition(2)
        given = {"checkpoint": str(checkpoint), "partition_by": ["day(at)"], "trigger": NOW}
        finish(to_iceberg(spread, NAME, warehouse=str(lake), **given))

    arrivals.add([{"n": 1, "at": "2026-01-01T00:00:00Z"}, {"n": 2, "at": "2026-01-02T00:00:00Z"}])
    run()
    arrivals.add([{"n": 3}])
    run()
    before = load(lake).metadata_location, files_of(lake)
    assert lose_last_commit(checkpoint) == 1
    run()
    assert (load(lake).metadata_location, files_of(lake)) == before
    arrivals.add([{"n": 4}])
    run()
    assert numbers(lake) == [1, 2, 3, 4]
    assert {file["partition"]["at_day"] for file in load(lake).inspect.files().to_pylist()} != {
        None
    }


def test_a_dataframe_is_appended_once_for_each_txn_and_rules_are_counted(
    spark: "SparkSession", tmp_path: Path
) -> None:
    marked = expect(spark.range(10).selectExpr("id AS n"), {"even": "n % 2 = 0"})
    for _ in range(2):
        to_iceberg(marked, NAME, warehouse=str(tmp_path), txn=("job", 1), rules={"even": "drop"})
    assert numbers(tmp_path) == [0, 2, 4, 6, 8]
    (snapshot,) = load(tmp_path).metadata.snapshots
    assert snapshot.summary is not None
    assert snapshot.summary["suwi.rules"] == '{"even": 5}'


def test_mistakes_are_named_and_an_empty_batch_makes_no_commit(
    spark: "SparkSession", tmp_path: Path
) -> None:
    given = {"table": NAME, "warehouse": str(tmp_path)}
    rows = spark.range(1).selectExpr("id AS n")

    def write(mode: str = "append", **options: str) -> None:
        rows.write.format("suwi-iceberg").mode(mode).options(**given, **options).save()

    with pytest.raises(PySparkException, match="there is no option 'wharehouse'"):
        write(wharehouse="x")
    with pytest.raises(PySparkException, match="option 'keys' is for Delta tables"):
        write(keys="n")
    with pytest.raises(PySparkException, match="only appended to"):
        write("overwrite")
    write()
    to_iceberg(rows.filter("n > 5"), NAME, warehouse=str(tmp_path))
    with pytest.raises(PySparkException, match="`more` is not in the table"):
        to_iceberg(rows.selectExpr("n", "1 AS more"), NAME, warehouse=str(tmp_path))
    to_iceberg(rows.selectExpr("n", "1 AS more"), NAME, warehouse=str(tmp_path), merge_schema=True)
    found = sorted(rows_of(tmp_path), key=str)
    assert found == [{"n": 0, "more": 1}, {"n": 0, "more": None}]
    assert len(load(tmp_path).metadata.snapshots) == 2


def test_a_stream_goes_into_a_delta_table_and_an_iceberg_table_once(
    spark: "SparkSession", tmp_path: Path
) -> None:
    from deltalake import DeltaTable

    arrivals = Arrivals(spark, tmp_path / "in", "n long")
    lake, checkpoint = tmp_path / "lake", tmp_path / "c"
    outputs = {
        "delta": delta_output(str(tmp_path / "t"), when="n % 2 = 0"),
        "iceberg": iceberg_output(NAME, warehouse=str(lake), when="n % 2 = 1"),
    }

    def run() -> None:
        given = {"checkpoint": str(checkpoint), "trigger": NOW}
        finish(to_outputs(arrivals.stream(), outputs, **given))

    for start in (0, 10):
        arrivals.add([{"n": number} for number in range(start, start + 10)])
        run()
    lose_last_commit(checkpoint)
    run()
    assert numbers(lake) == list(range(1, 20, 2))
    even = DeltaTable(str(tmp_path / "t")).to_pyarrow_table().column("n").to_pylist()
    assert sorted(even) == list(range(0, 20, 2))
    names = [name for name in load(lake).properties if name.startswith("suwi.txn.")]
    assert len(names) == 1
    assert names[0].endswith(".iceberg")
