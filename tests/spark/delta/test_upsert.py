"""Rows that replace rows: one for each key, whatever the order they come in."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="PyArrow is not installed: pip install .[spark]")
pytest.importorskip("deltalake", reason="deltalake is not installed: pip install .[spark]")

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from suwi.env import SystemRandom
from suwi.spark.delta.data_source import DeltaFormat
from suwi.spark.delta.upsert import STAGING, last_of_each_key
from suwi.spark.options import TableOptions
from suwi.spark.origin import Origin
from suwi.spark.table_commit import Batch, Outcome, commit_batch
from tests.spark.delta.tables import options_of, rows_of, schema_of, write_files

SCHEMA = schema_of("k long, v string, at long")


def upsert(
    options: TableOptions, rows: list[tuple[Any, ...]], version: int, schema: Any = SCHEMA
) -> Outcome:
    named = [dict(zip(schema.fieldNames(), row, strict=True)) for row in rows]
    files = write_files(options, schema, named, subdirectory=STAGING)
    batch = Batch(Origin("q", version, f"run-{version}"), schema, (), files)
    return commit_batch(DeltaFormat(options), batch, SystemRandom())


def values_of(table: Path) -> dict[Any, str]:
    rows = rows_of(table)
    assert len({row["k"] for row in rows}) == len(rows)
    return {row["k"]: row["v"] for row in rows}


def test_rows_replace_those_with_the_same_key_and_the_newer_stays(tmp_path: Path) -> None:
    options = options_of(tmp_path, keys="k", orderBy="at")
    upsert(options, [(1, "a", 1), (1, "b", 3), (1, "late", 2), (2, "c", 1)], 0)
    assert values_of(tmp_path) == {1: "b", 2: "c"}
    upsert(options, [(1, "older", 2), (2, "d", 5), (3, "e", 1)], 1)
    assert values_of(tmp_path) == {1: "b", 2: "d", 3: "e"}


def test_a_replayed_upsert_is_suppressed(tmp_path: Path) -> None:
    options = options_of(tmp_path, keys="k")
    upsert(options, [(1, "a", 1)], 0)
    upsert(options, [(1, "b", 1)], 1)
    assert upsert(options, [(1, "a", 1)], 0).is_suppressed
    assert values_of(tmp_path) == {1: "b"}


@pytest.mark.parametrize(
    ("codec", "written"),
    [
        ("snappy", "SNAPPY"),
        ("zstd", "ZSTD"),
        ("gzip", "GZIP"),
        ("lz4", "LZ4"),
        ("none", "UNCOMPRESSED"),
    ],
)
def test_merged_rows_are_compressed_as_the_option_says(
    tmp_path: Path, codec: str, written: str
) -> None:
    options = options_of(tmp_path, keys="k", compression=codec)
    upsert(options, [(1, "a", 1), (2, "b", 1)], 0)
    upsert(options, [(1, "c", 2)], 1)
    for file in DeltaTable(str(tmp_path)).file_uris():
        assert pq.read_metadata(file).row_group(0).column(0).compression == written
    assert values_of(tmp_path) == {1: "c", 2: "b"}


def test_null_is_a_key_like_any_other(tmp_path: Path) -> None:
    options = options_of(tmp_path, keys="k")
    upsert(options, [(None, "a", 1)], 0)
    upsert(options, [(None, "b", 1)], 1)
    assert values_of(tmp_path) == {None: "b"}


def test_rows_go_where_the_condition_for_deleting_holds(tmp_path: Path) -> None:
    options = options_of(tmp_path, keys="k", orderBy="at", deleteWhen="source.v = 'gone'")
    upsert(options, [(1, "a", 1), (2, "b", 5), (3, "c", 1)], 0)
    upsert(options, [(1, "gone", 2), (2, "gone", 4), (4, "gone", 1), (5, None, 1)], 1)
    assert values_of(tmp_path) == {2: "b", 3: "c", 5: None}


def test_keys_of_several_columns_with_names_that_need_quotes(tmp_path: Path) -> None:
    schema = schema_of("Key-1 long, select string, v string")
    options = options_of(tmp_path, keys="Key-1,select")
    upsert(options, [(1, "a", "x"), (1, "b", "y")], 0, schema)
    upsert(options, [(1, "b", "z")], 1, schema)
    assert sorted((row["select"], row["v"]) for row in rows_of(tmp_path)) == [
        ("a", "x"),
        ("b", "z"),
    ]


def test_columns_that_the_batch_does_not_have_stay_as_they_are(tmp_path: Path) -> None:
    upsert(options_of(tmp_path, keys="k"), [(1, "a", 7)], 0)
    upsert(options_of(tmp_path, keys="k"), [(1, "b"), (2, "c")], 1, schema_of("k long, v string"))
    assert sorted(rows_of(tmp_path), key=lambda row: row["k"]) == [
        {"k": 1, "v": "b", "at": 7},
        {"k": 2, "v": "c", "at": None},
    ]


def test_new_columns_are_merged_before_the_rows(tmp_path: Path) -> None:
    upsert(options_of(tmp_path, keys="k"), [(1, "a", 7)], 0)
    wide = schema_of("k long, v string, at long, extra string")
    upsert(options_of(tmp_path, keys="k", mergeSchema="true"), [(1, "b", 8, "x")], 1, wide)
    assert rows_of(tmp_path) == [{"k": 1, "v": "b", "at": 8, "extra": "x"}]


def test_of_rows_that_are_equally_new_the_last_one_stays_and_null_is_oldest() -> None:
    rows = pa.table({"k": [1, 1, 1, 2, 2], "at": [2, 2, 1, None, 0], "v": list("abcde")})
    kept = last_of_each_key(rows, ["k"], "at").sort_by("k").to_pylist()
    assert [row["v"] for row in kept] == ["b", "e"]
    assert len(last_of_each_key(rows, ["k"], None)) == 2
