"""`read_delta` through Spark's Parquet source and `format("suwi-delta")`: the same rows."""

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install .[spark]")
pytest.importorskip("deltalake", reason="deltalake is not installed: pip install .[spark]")

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Field, Schema, convert_to_deltalake, write_deltalake
from deltalake.schema import PrimitiveType
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

from suwi.spark import read_delta, to_delta
from suwi.spark.delta.maintenance import compact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VALUES = """
    id AS n, cast(id AS int) AS i, id % 2 = 0 AS even, id / 2 AS half, array(id, null) AS l,
    timestamp_micros(1767225599999999 + id) AS at, cast(id - 2 AS decimal(10, 2)) AS price,
    date_add(date '1969-12-30', cast(id AS int)) AS day,
    named_struct('x', id, 'y', map('k', id)) AS st, cast(id AS string) AS s
"""


def is_fast(rows: "DataFrame") -> bool:
    return "FileScan parquet" in rows._jdf.queryExecution().executedPlan().toString()


def both(spark: "SparkSession", table: Path, **options: str) -> "tuple[DataFrame, list[Any]]":
    """Through `read_delta`, after it was compared with the source in Python; and its rows."""
    rows = read_delta(spark, str(table), streaming=False, options=options)
    slow = spark.read.format("suwi-delta").options(**options).load(str(table))
    found = sorted(rows.collect(), key=str)
    assert found == sorted(slow.collect(), key=str)
    assert rows.dtypes == slow.dtypes
    return rows, found


@pytest.mark.parametrize(
    ("by", "fast"),
    [([], True), (["day"], True), (["at", "even"], True), (["i", "n"], True), (["half"], False)],
)
def test_a_table_is_read_by_spark_with_its_partition_columns(
    spark: "SparkSession", tmp_path: Path, by: list[str], fast: bool
) -> None:
    rows = spark.sql(f"SELECT id, {VALUES} FROM range(9)")
    for column in by:
        rows = rows.withColumn(column, F.when(F.col("id") != 3, F.col(column)))
    to_delta(rows, str(tmp_path), partition_by=by)
    found, _ = both(spark, tmp_path)
    assert is_fast(found) is fast
    assert found.count() == 9


@pytest.mark.parametrize(
    "text", ["a/b", "a=b", "a b", "ü☃", "%41", "%C3%BC", "", "a:b", "'\"", "007"]
)
def test_texts_of_partitions_are_what_they_were(
    spark: "SparkSession", tmp_path: Path, text: str
) -> None:
    rows = spark.createDataFrame([(1, text), (2, None), (3, "plain")], "n long, s string")
    to_delta(rows, str(tmp_path), partition_by=["s"])
    found, given = both(spark, tmp_path)
    assert is_fast(found)
    assert [row.s for row in given] == [text or None, None, "plain"]


def test_where_directories_do_not_say_the_value_the_source_in_python_is_used(
    spark: "SparkSession", tmp_path: Path
) -> None:
    long = "x" * 300
    rows = spark.createDataFrame([(1, "x[1]"), (2, long), (3, "end ")], "n long, s string")
    to_delta(rows, str(tmp_path / "ours"), partition_by=["s"])
    found, given = both(spark, tmp_path / "ours")
    assert not is_fast(found)
    assert [row.s for row in given] == ["x[1]", long, "end "]
    theirs = pa.table({"n": [1, 2], "s": ["ü", "a b"]})
    write_deltalake(str(tmp_path / "theirs"), theirs, partition_by=["s"])
    assert [row.s for row in both(spark, tmp_path / "theirs")[1]] == ["ü", "a b"]


def test_decimals_as_partitions_of_others(spark: "SparkSession", tmp_path: Path) -> None:
    prices = pa.array([Decimal("1.50"), None], pa.decimal128(10, 2))
    write_deltalake(str(tmp_path), pa.table({"n": [1, 2], "p": prices}), partition_by=["p"])
    assert [row.p for row in both(spark, tmp_path)[1]] == [Decimal("1.50"), None]


def test_new_columns_removed_rows_and_old_versions(spark: "SparkSession", tmp_path: Path) -> None:
    def add(low: int, columns: str) -> None:
        rows = spark.sql(f"SELECT {columns} FROM range({low}, {low + 3})")
        to_delta(rows, str(tmp_path), merge_schema=True)

    add(0, "id AS n, named_struct('x', id) AS st")
    add(3, "id AS n, named_struct('x', id, 'z', 'new') AS st, 'more' AS s")
    steps: list[Callable[[], Any]] = [
        lambda: None,
        lambda: DeltaTable(str(tmp_path)).delete("n = 1"),
        lambda: compact(str(tmp_path)),
        lambda: add(6, "id AS n"),
    ]
    sizes = []
    for step in steps:
        step()
        found, given = both(spark, tmp_path)
        assert is_fast(found)
        sizes.append(len(given))
    assert sizes == [6, 5, 5, 8]
    old, given = both(spark, tmp_path, versionAsOf="1")
    assert is_fast(old)
    assert [row.n for row in given] == [0, 1, 2]
    few = read_delta(spark, str(tmp_path), columns=["s"], streaming=False)
    assert (few.columns, is_fast(few)) == (["s"], True)
    DeltaTable(str(tmp_path)).vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert len(both(spark, tmp_path)[1]) == 8
    with pytest.raises(PySparkException, match="was vacuumed"):
        read_delta(spark, str(tmp_path), streaming=False, options={"versionAsOf": "1"}).collect()


def test_only_files_of_the_version_are_read(spark: "SparkSession", tmp_path: Path) -> None:
    to_delta(spark.range(3).toDF("n"), str(tmp_path))
    spark.range(5).toDF("n").coalesce(1).write.mode("append").parquet(str(tmp_path))
    assert len(both(spark, tmp_path)[1]) == 3
    assert is_fast(read_delta(spark, str(tmp_path), streaming=False))


@pytest.mark.parametrize(
    "where",
    [
        "n > 3 AND i <= 6",
        "n != 4 AND `s` IN ('1', '2', 'x')",
        "even = true AND price >= 1.50",
        "price IS NULL AND st IS NOT NULL AND half IS NOT NULL",
        "day < '1970-01-02'",
        "at >= '2026-01-01T02:00:00.000001+02:00'",
        "local = '2026-01-31 12:00:00.000001'",
        "n > 100",
    ],
)
@pytest.mark.parametrize("by", [[], ["n"], ["day", "even"]])
def test_conditions_are_what_they_are_for_the_source_in_python(
    spark: "SparkSession", tmp_path: Path, where: str, by: list[str]
) -> None:
    rows = spark.sql(f"SELECT id, {VALUES} FROM range(9)").selectExpr(
        "*", "timestamp_ntz'2026-01-31 12:00:00' + make_dt_interval(0, 0, 0, id / 1e6) AS local"
    )
    rows = rows.withColumn("price", F.when(F.col("id") % 2 == 0, F.col("price")))
    to_delta(rows, str(tmp_path), partition_by=by)
    found, given = both(spark, tmp_path, where=where, columns="id,s")
    assert (is_fast(found), len(given) > 0) == ((False, False) if "100" in where else (True, True))


@pytest.mark.parametrize("where", ["half > 1", "half != 1", "half IN (1, 2)"])
def test_numbers_that_may_be_nan_are_compared_by_the_source_in_python(
    spark: "SparkSession", tmp_path: Path, where: str
) -> None:
    rows = spark.sql(f"SELECT id, {VALUES} FROM range(9)")
    to_delta(rows.withColumn("half", F.when(F.col("id") == 3, F.lit(float("nan")))
        .otherwise(F.col("half"))), str(tmp_path))  # fmt: skip
    found, given = both(spark, tmp_path, where=where, columns="id,s")
    assert (is_fast(found), len(given) > 0) == (False, True)


@pytest.mark.parametrize(
    ("where", "size"),
    [
        ("at < '2026-01-01T00:00:00.000500'", 3),
        ("at != '2026-01-01T00:00:00.000500'", 3),
        ("at >= '2025-12-31T23:59:59.999500'", 3),
        ("at <= '2026-01-01T00:00:00.000500' AND at > '2025-12-31T23:59:59.999500'", 3),
        ("at IN ('2026-01-01T00:00:00.000500', '2026-01-01T00:00:00')", 3),
        ("at < '2026-01-01T00:00:00.001'", 3),
        ("at > '2026-01-01T00:00:00.000500'", 0),
    ],
)
def test_moments_are_compared_with_milliseconds_of_other_writers(
    spark: "SparkSession", tmp_path: Path, where: str, size: int
) -> None:
    moments = pa.array([datetime(2026, 1, 1, tzinfo=UTC)] * 3, pa.timestamp("ms", "UTC"))
    pq.write_table(pa.table({"at": moments}), tmp_path / "a.parquet")
    convert_to_deltalake(tmp_path)
    assert len(both(spark, tmp_path, where=where)[1]) == size


@pytest.mark.parametrize("unit", ["ns", "us"])
def test_a_table_of_files_that_pandas_wrote_is_read(
    spark: "SparkSession", tmp_path: Path, unit: str
) -> None:
    table = pa.table({"n": [1, 2], "at": pa.array([1, 2_000_000_000], pa.timestamp(unit))})
    pq.write_table(table, tmp_path / "a.parquet")
    convert_to_deltalake(tmp_path)
    write_deltalake(tmp_path, table.slice(1), mode="append")
    found, given = both(spark, tmp_path, where="n > 1")
    assert (is_fast(found), len(given)) == (unit == "us", 2)


def test_texts_of_fixed_length_are_compared_as_they_are_stored(
    spark: "SparkSession", tmp_path: Path
) -> None:
    fixed = {"__CHAR_VARCHAR_TYPE_STRING": "char(3)"}
    schema = Schema([Field("s", PrimitiveType("string"), metadata=fixed)])
    DeltaTable.create(str(tmp_path), schema)
    write_deltalake(str(tmp_path), pa.table({"s": ["a", "a  ", "b  "]}), mode="append")
    assert [len(both(spark, tmp_path, where=f"s {how}")[1]) for how in ("= 'a'", "> 'a'")] == [1, 2]


def test_old_moments_that_spark_wrote_are_not_moved_to_another_calendar(
    spark: "SparkSession", tmp_path: Path
) -> None:
    table = pa.table(
        {"at": pa.array([datetime(1500, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC"))}
    )
    pq.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    convert_to_deltalake(tmp_path)
    spark.conf.set("spark.sql.parquet.int96RebaseModeInRead", "LEGACY")
    try:
        found, _ = both(spark, tmp_path)
        assert is_fast(found)
    finally:
        spark.conf.unset("spark.sql.parquet.int96RebaseModeInRead")


def test_an_empty_table_has_its_columns(spark: "SparkSession", tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), pa.table({"n": pa.array([], pa.int64())}))
    rows, given = both(spark, tmp_path)
    assert (rows.columns, given) == (["n"], [])
