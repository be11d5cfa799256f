"""Rows that replace rows: one for each key, whatever the order they come in."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="PyArrow is not installed: pip install .[spark]")
pytest.importorskip("deltalake", reason="deltalake is not installed: pip install .[spark]")

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

from suwi.env import SystemRandom
from suwi.spark.delta.data_source import DeltaFormat
from suwi.spark.delta.errors import SchemaMismatch
from suwi.spark.delta.schema import arrow_schema
from suwi.spark.delta.upsert import STAGING, last_of_each_key, replace_files
from suwi.spark.options import TableOptions
from suwi.spark.origin import Origin
from suwi.spark.table_commit import Batch, Outcome, commit_batch
from tests.spark.delta.tables import commit, options_of, rows_of, schema_of, write_files

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


PLACES = schema_of("id long, _partition integer, _offset long")


def replace_range(
    table: Path, rows: list[tuple[int, ...]], start: int, end: int, version: int = 1, **more: Any
) -> Outcome:
    where = f"_partition = 0 AND _offset >= {start} AND _offset < {end}"
    options = options_of(table, replaceWhere=where)
    named = [dict(zip(PLACES.fieldNames(), row, strict=True)) for row in rows]
    files = write_files(options, PLACES, named, subdirectory=STAGING)
    batch = Batch(Origin("backfill", version, None), PLACES, (), files, replaces_all=True)
    return commit_batch(DeltaFormat(options, **more), batch, SystemRandom())


def places(table: Path) -> list[tuple[int, int, int]]:
    return sorted((row["_partition"], row["_offset"], row["id"]) for row in rows_of(table))


def numbered(*ids: int, partition: int = 0) -> list[dict[str, int]]:
    return [{"id": one, "_partition": partition, "_offset": one} for one in ids]


def test_rows_of_a_range_are_replaced_in_one_commit_and_no_others(tmp_path: Path) -> None:
    commit(options_of(tmp_path), PLACES, [*numbered(0, 1, 2, 3), *numbered(1, 2, partition=1)])
    before = DeltaTable(str(tmp_path)).version()
    replace_range(tmp_path, [(10, 0, 1), (11, 0, 1), (20, 0, 2)], 1, 3)
    others = [(1, 1, 1), (1, 2, 2)]
    expected = [(0, 0, 0), (0, 1, 10), (0, 1, 11), (0, 2, 20), (0, 3, 3), *others]
    assert places(tmp_path) == expected
    assert DeltaTable(str(tmp_path)).version() == before + 1
    assert replace_range(tmp_path, [(9, 0, 1)], 1, 3).is_suppressed
    replace_range(tmp_path, [], 1, 3, version=2)
    assert places(tmp_path) == [(0, 0, 0), (0, 3, 3), *others]
    with pytest.raises(SchemaMismatch, match="do not meet the condition"):
        replace_range(tmp_path, [(9, 0, 3)], 1, 3, version=3)


def test_a_range_is_replaced_anew_if_others_commit_into_it_meanwhile(tmp_path: Path) -> None:
    commit(options_of(tmp_path), PLACES, numbered(0, 1, 2))
    meanwhile = [numbered(7), numbered(1), None]

    def apply(table: DeltaTable, batch: Batch, properties: Any) -> None:
        if meanwhile:
            rows = meanwhile.pop(0)
            if rows is None:
                DeltaTable(str(tmp_path)).optimize.compact()
            else:
                commit(options_of(tmp_path), PLACES, rows, Origin("stream", rows[0]["id"], "r"))
        where = "_partition = 0 AND _offset >= 1 AND _offset < 3"
        replace_files(options_of(tmp_path, replaceWhere=where))(table, batch, properties)

    replace_range(tmp_path, [(10, 0, 1)], 1, 3, apply=apply)
    assert places(tmp_path) == [(0, 0, 0), (0, 1, 10), (0, 7, 7)]
    table = DeltaTable(str(tmp_path))
    assert (table.transaction_version("stream"), table.transaction_version("backfill")) == (7, 1)


def test_change_data_and_partitions_are_kept_when_a_range_is_replaced(tmp_path: Path) -> None:
    rows = pa.Table.from_pylist(numbered(0, 1, 2), arrow_schema(PLACES))
    write_deltalake(
        str(tmp_path),
        rows,
        partition_by=["_partition"],
        configuration={"delta.enableChangeDataFeed": "true"},
    )
    where = "_partition = 0 AND _offset >= 1 AND _offset < 3"
    options = options_of(tmp_path, replaceWhere=where)
    files = write_files(options, PLACES, [{"id": 9, "_partition": 0, "_offset": 2}])
    batch = Batch(None, PLACES, ("_partition",), files, replaces_all=True)
    commit_batch(DeltaFormat(options), batch, SystemRandom())
    assert places(tmp_path) == [(0, 0, 0), (0, 2, 9)]
