"""What a stream gets of a table while others change it."""

import json
import os
import shutil
from datetime import date
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="PyArrow is not installed: pip install .[spark]")
pytest.importorskip("deltalake", reason="deltalake is not installed: pip install .[spark]")

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from suwi.spark.delta.errors import (
    CannotRead,
    OtherTable,
    RowsChanged,
    SchemaChanged,
    TableMissing,
    VersionGone,
)
from suwi.spark.delta.maintenance import compact
from suwi.spark.delta.upsert import merge_files
from suwi.spark.offsets import CheckpointMismatch
from suwi.spark.options import BadOption
from tests.spark.delta.tables import (
    NUMBERS,
    Query,
    add,
    commit,
    options_of,
    rows,
    schema_of,
)

pytestmark = pytest.mark.usefixtures("spark_release")


def test_a_stream_begins_with_a_snapshot_and_goes_on_with_what_is_added(tmp_path: Path) -> None:
    add(tmp_path, 1)
    add(tmp_path, 2)
    query = Query(tmp_path)
    assert query.batch() == [1, 2]
    assert query.batch() == []
    add(tmp_path, 3)
    add(tmp_path, 4)
    assert query.batch() == [3, 4]
    restarted = Query(tmp_path, query.start)
    assert restarted.batch() == []
    add(tmp_path, 5)
    assert restarted.batch() == [5]


def test_a_stream_may_begin_at_a_version(tmp_path: Path) -> None:
    add(tmp_path, 1)
    add(tmp_path, 2)
    add(tmp_path, 3)
    assert Query(tmp_path, startingVersion="2").batch() == [2, 3]
    latest = Query(tmp_path, startingVersion="latest")
    assert latest.batch() == []
    add(tmp_path, 4)
    assert latest.batch() == [4]
    with pytest.raises(BadOption, match="startingVersion=soon: a version up to"):
        Query(tmp_path, startingVersion="soon").plan()


def test_compaction_adds_nothing_to_a_stream(tmp_path: Path) -> None:
    add(tmp_path, 1)
    query = Query(tmp_path)
    assert query.batch() == [1]
    for number in (2, 3, 4):
        add(tmp_path, number)
    compact(str(tmp_path))
    add(tmp_path, 5)
    assert query.batch() == [2, 3, 4, 5]


def test_a_delete_stops_a_stream_by_name_unless_it_is_told_to_pass_over_it(tmp_path: Path) -> None:
    add(tmp_path, 1, 2)
    query = Query(tmp_path)
    assert query.batch() == [1, 2]
    DeltaTable(tmp_path).delete("n = 1")
    add(tmp_path, 3)
    with pytest.raises(
        RowsChanged, match=r"removes or rewrites rows \(DELETE\).*skipChangeCommits"
    ):
        query.batch()
    skipping = Query(tmp_path, query.start, skipChangeCommits="true")
    assert skipping.batch() == [3]


def test_what_came_before_a_commit_that_stops_a_stream_is_read(tmp_path: Path) -> None:
    add(tmp_path, 1)
    query = Query(tmp_path)
    assert query.plan()
    add(tmp_path, 2)
    DeltaTable(tmp_path).delete("n = 1")
    assert query.run() == [1], "the batch was planned before"
    assert query.batch() == [2]
    with pytest.raises(RowsChanged, match="version 3"):
        query.batch()


def test_an_upsert_stops_a_stream_by_name(tmp_path: Path) -> None:
    add(tmp_path, 1, 2)
    query = Query(tmp_path)
    assert query.batch() == [1, 2]
    options = options_of(tmp_path, keys="n")
    commit(options, NUMBERS, [{"n": 2, "day": None}], apply=merge_files(options))
    with pytest.raises(RowsChanged, match="MERGE"):
        query.batch()


def test_changes_are_read_where_the_table_keeps_them(tmp_path: Path) -> None:
    add(tmp_path, 1, 2)
    with pytest.raises(CannotRead, match="keeps no change data"):
        Query(tmp_path, readChangeFeed="true").plan()
    DeltaTable(tmp_path).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    query = Query(tmp_path, readChangeFeed="true")
    changes: list[tuple[int, str]] = []
    for change in (
        lambda: None,
        lambda: add(tmp_path, 3),
        lambda: DeltaTable(tmp_path).delete("n = 1"),
        lambda: DeltaTable(tmp_path).update({"n": "n + 10"}, predicate="n = 3"),
    ):
        change()
        assert query.plan()
        partitions = query.reader.partitions(json.loads(query.start), json.loads(query.end))
        query.start = query.end
        found = list(rows(query.reader, partitions))
        assert all(row["_commit_version"] > 0 and row["_commit_timestamp"] for row in found)
        changes += sorted((row["n"], row["_change_type"]) for row in found)
    assert changes == [
        (1, "insert"),
        (2, "insert"),
        (3, "insert"),
        (1, "delete"),
        (3, "update_preimage"),
        (13, "update_postimage"),
    ]


def test_files_that_were_vacuumed_before_they_were_read_are_named(tmp_path: Path) -> None:
    add(tmp_path, 1)
    query = Query(tmp_path)
    assert query.plan()
    add(tmp_path, 2)
    compact(str(tmp_path))
    DeltaTable(tmp_path).vacuum(0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(VersionGone, match="is gone: it was vacuumed before it was read"):
        query.run()


def test_versions_that_were_cleaned_up_before_they_were_read_are_named(tmp_path: Path) -> None:
    add(tmp_path, 1)
    query = Query(tmp_path)
    assert query.batch() == [1]
    for number in (2, 3):
        add(tmp_path, number)
    DeltaTable(tmp_path).create_checkpoint()
    for version in (1, 2):
        (tmp_path / "_delta_log" / f"{version:020}.json").unlink()
    late = Query(tmp_path, query.start)
    with pytest.raises(VersionGone, match=r"version 2 of the table.*its log was cleaned up"):
        late.batch()


def test_a_table_that_was_made_anew_is_another_one(tmp_path: Path) -> None:
    add(tmp_path / "a", 1)
    query = Query(tmp_path / "a")
    assert query.batch() == [1]
    add(tmp_path / "b", 1)
    add(tmp_path / "b", 2)
    other = Query(tmp_path / "b", query.start)
    with pytest.raises(OtherTable, match="this checkpoint belongs to another table"):
        other.batch()


@pytest.mark.parametrize("versions", [1, 4, 10])
def test_a_table_that_is_made_anew_under_a_running_stream_stops_it(
    tmp_path: Path, versions: int
) -> None:
    """With fewer versions than the stream has read, as many, and more."""
    for number in range(3):
        add(tmp_path / "t", number)
    query = Query(tmp_path / "t")
    assert query.batch() == [0, 1, 2]
    shutil.rmtree(tmp_path / "t")
    write_deltalake(tmp_path / "t", pa.table({"n": [10]}))
    for number in range(1, versions):
        write_deltalake(tmp_path / "t", pa.table({"n": [10 + number]}), mode="append")
    with pytest.raises(OtherTable, match="this checkpoint belongs to another table"):
        query.batch()


def test_a_table_that_is_deleted_under_a_running_stream_stops_it(tmp_path: Path) -> None:
    add(tmp_path / "t", 1)
    query = Query(tmp_path / "t")
    assert query.batch() == [1]
    shutil.rmtree(tmp_path / "t")
    with pytest.raises(TableMissing, match="there is no Delta table"):
        query.batch()


def test_a_log_that_is_restored_from_a_copy_is_the_same_table(tmp_path: Path) -> None:
    add(tmp_path / "t", 1)
    query = Query(tmp_path / "t")
    assert query.batch() == [1]
    for entry in (tmp_path / "t" / "_delta_log").iterdir():
        os.utime(entry, (0, 0))
    assert query.batch() == []
    add(tmp_path / "t", 2)
    assert query.batch() == [2]


@pytest.mark.parametrize("offset", [{"orders": {"0": 3}}, {"table": {"0": 3}}, {"logOffset": 3}])
def test_a_checkpoint_of_another_source_is_refused_by_name(
    tmp_path: Path, offset: dict[str, Any]
) -> None:
    add(tmp_path, 1)
    with pytest.raises(CheckpointMismatch, match="belongs to a topic or another source"):
        Query(tmp_path, json.dumps(offset)).batch()
    again = Query(tmp_path)  # Spark has logged a batch, and runs it again.
    again.start, again.end = json.dumps(offset), json.dumps({"orders": {"0": 5}})
    with pytest.raises(CheckpointMismatch, match="belongs to a topic or another source"):
        again.run()


def test_a_column_that_was_dropped_again_does_not_stop_a_stream_for_good(tmp_path: Path) -> None:
    add(tmp_path, 1)
    query = Query(tmp_path, skipChangeCommits="true")
    assert query.batch() == [1]
    wider = schema_of("n long, day date, more string")
    commit(options_of(tmp_path, mergeSchema="true"), wider, [{"n": 2, "more": "x"}])
    without = pa.table({"n": [7], "day": [date(2026, 1, 1)]})
    write_deltalake(tmp_path, without, mode="overwrite", schema_mode="overwrite")
    add(tmp_path, 3)
    again = Query(tmp_path, query.start, skipChangeCommits="true")
    assert again.batch() == [2, 3]


def test_new_columns_stop_a_stream_and_are_there_when_it_is_started_again(tmp_path: Path) -> None:
    add(tmp_path, 1)
    query = Query(tmp_path)
    assert query.batch() == [1]
    wider = schema_of("n long, day date, more string")
    commit(options_of(tmp_path, mergeSchema="true"), wider, [{"n": 2, "more": "x"}])
    with pytest.raises(SchemaChanged, match=r"has new columns: more\. Start the query again"):
        query.batch()
    assert Query(tmp_path, query.start).batch() == [2]
    assert Query(tmp_path, query.start, columns="n").batch() == [2]


INNER = pa.struct([("x", pa.int64())])
WIDER = pa.struct([("x", pa.int64()), ("y", pa.string())])


@pytest.mark.parametrize(
    ("kind", "wider", "old", "new"),
    [
        (INNER, WIDER, {"x": 1}, {"x": 1, "y": "new"}),
        (pa.list_(INNER), pa.list_(WIDER), [{"x": 1}], [{"x": 1, "y": "new"}]),
        (
            pa.map_(pa.string(), INNER),
            pa.map_(pa.string(), WIDER),
            [("k", {"x": 1})],
            [("k", {"x": 1, "y": "new"})],
        ),
    ],
    ids=["struct", "array", "map"],
)
def test_new_fields_inside_of_a_column_stop_a_stream(
    tmp_path: Path, kind: pa.DataType, wider: pa.DataType, old: Any, new: Any
) -> None:
    def write(number: int, value: pa.Array) -> None:
        data = pa.table({"n": [number], "v": value, "other": value})
        write_deltalake(tmp_path, data, mode="append", schema_mode="merge")

    write(1, pa.array([old], kind))
    queries = [Query(tmp_path), Query(tmp_path, columns="n,v"), Query(tmp_path, columns="n")]
    assert [query.batch() for query in queries] == [[1]] * 3
    write(2, pa.array([new], wider))
    with pytest.raises(SchemaChanged, match=r"has new columns: v\.y, other\.y\. Start the query"):
        queries[0].batch()
    with pytest.raises(SchemaChanged, match=r"has new columns: v\.y\. Start the query"):
        queries[1].batch()
    assert queries[2].batch() == [2]
    assert Query(tmp_path, queries[0].start).batch() == [2]


def test_a_first_batch_that_is_run_again_reads_the_same(tmp_path: Path) -> None:
    """A driver killed in its first batch: the log has where that ends, not where it began."""
    add(tmp_path, 1)
    query = Query(tmp_path)
    assert query.plan()
    add(tmp_path, 2)
    again = Query(tmp_path)
    again.start = again.start or json.dumps(again.reader.initialOffset())
    again.end = query.end
    assert again.run() == [1]
    assert again.batch() == [2]


def test_a_first_batch_of_a_table_that_was_made_anew_is_not_run_again(tmp_path: Path) -> None:
    add(tmp_path / "a", 1)
    query = Query(tmp_path / "a")
    assert query.plan()
    add(tmp_path / "b", 2)
    again = Query(tmp_path / "b")
    again.start = again.start or json.dumps(again.reader.initialOffset())
    again.end = query.end
    with pytest.raises(OtherTable, match="this checkpoint belongs to another table"):
        again.run()


def test_a_batch_has_no_more_files_than_it_may(tmp_path: Path, spark_release: str) -> None:
    if spark_release == "old":
        add(tmp_path, 1)
        with pytest.raises(BadOption, match=r"maxFilesPerTrigger needs PySpark 4\.2"):
            Query(tmp_path, maxFilesPerTrigger="2")
        return
    for number in range(5):
        add(tmp_path, number)
    query = Query(tmp_path, maxFilesPerTrigger="2")
    query.reader.prepareForTriggerAvailableNow()
    assert len(query.batch()) == 2
    add(tmp_path, 5)
    sizes = []
    while query.plan():
        sizes.append(len(query.run()))
    assert sizes == [2, 1]
    after = Query(tmp_path, query.start, maxFilesPerTrigger="2")
    assert after.batch() == [5]
