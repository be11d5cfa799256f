"""Delta tables by their names in Spark's catalog, as far as Spark lets a Python source."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install .[spark]")
pytest.importorskip("deltalake", reason="deltalake is not installed: pip install .[spark]")

from deltalake import DeltaTable
from pyspark.errors import PySparkException

from suwi.spark import to_delta
from tests.spark.streams import NOW, finish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def table(spark: "SparkSession", tmp_path: Path) -> Iterator[Path]:
    to_delta(spark.range(3).toDF("n"), str(tmp_path / "t"))
    yield tmp_path / "t"
    for name in ("numbers", "copies"):
        spark.sql(f"DROP TABLE IF EXISTS {name}")


def test_a_table_of_the_catalog_is_read_as_a_batch_and_as_a_stream(
    spark: "SparkSession", table: Path, tmp_path: Path
) -> None:
    """Earlier: there is no option 'owner': did you mean 'where'?"""
    spark.sql(f"CREATE TABLE numbers USING `suwi-delta` LOCATION '{table}'")
    assert sorted(row.n for row in spark.sql("SELECT * FROM numbers").collect()) == [0, 1, 2]
    assert spark.table("numbers").count() == 3
    copy = tmp_path / "copy"
    stream = spark.readStream.table("numbers")
    finish(to_delta(stream, str(copy), checkpoint=str(tmp_path / "c"), trigger=NOW))
    assert sorted(DeltaTable(str(copy)).to_pyarrow_table()["n"].to_pylist()) == [0, 1, 2]


def test_options_of_a_table_of_the_catalog_are_remembered_or_refused(
    spark: "SparkSession", table: Path
) -> None:
    """Earlier they were ignored: all rows came."""
    create = "CREATE TABLE numbers USING `suwi-delta` OPTIONS (path '%s', %s)"
    with pytest.raises(PySparkException, match="catalog would keep it in the open"):
        spark.sql(create % (table, "'storage.AWS_SECRET_ACCESS_KEY' 'x'"))
    spark.sql(create % (table, "'where' 'n >= 1', 'versionAsOf' '1'"))
    to_delta(spark.range(7, 8).toDF("n"), str(table))
    assert sorted(row.n for row in spark.table("numbers").collect()) == [1, 2]


def test_a_table_whose_path_spark_does_not_pass_on_says_what_to_do(
    spark: "SparkSession", table: Path
) -> None:
    spark.sql(f"CREATE TABLE numbers (n BIGINT) USING `suwi-delta` OPTIONS (path '{table}')")
    with pytest.raises(PySparkException, match="Spark does not pass on the path"):
        spark.sql("SELECT * FROM numbers").collect()
    found = spark.read.option("path", str(table)).table("numbers")
    assert found.count() == 3


def test_save_as_table_writes_to_the_path(spark: "SparkSession", table: Path) -> None:
    rows = spark.range(3, 5).toDF("n")
    writer = rows.write.format("suwi-delta").option("path", str(table)).mode("append")
    writer.saveAsTable("copies")
    assert DeltaTable(str(table)).to_pyarrow_table().num_rows == 5
