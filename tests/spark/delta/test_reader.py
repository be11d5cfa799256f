"""A table as a source: what a batch reads, and what a stream gets while others change it."""

import json
import os
import shutil
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="PyArrow is not installed: pip install .[spark]")
pytest.importorskip("deltalake", reason="deltalake is not installed: pip install .[spark]")

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.datasource import CaseInsensitiveDict

from suwi.spark import stream_reader as module
from suwi.spark.data_loss import CheckpointMismatch
from suwi.spark.delta.data_source import DeltaDataSource
from suwi.spark.delta.errors import (
    CannotRead,
    OtherTable,
    RowsChanged,
    SchemaChanged,
    TableMissing,
    VersionGone,
)
from suwi.spark.delta.log import parse_commit
from suwi.spark.delta.maintenance import compact
from suwi.spark.delta.reader import TableSource
from suwi.spark.delta.upsert import merge_files
from suwi.spark.options import BadOption
from suwi.spark.stream_reader import HAS_ADMISSION_CONTROL, OldStreamReader
from tests.spark.delta.tables import append_entry, commit, delete_by_vector, options_of, schema_of

SCHEMA = schema_of("n long, day date")


@pytest.fixture(autouse=True, params=["new", "old"])
def spark_release(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """As PySpark 4.2 and newer ask for offsets, and as 4.1 does."""
    monkeypatch.setattr(TableSource, "ask_every_ms", 0)
    if request.param == "old":
        monkeypatch.setattr(module, "HAS_ADMISSION_CONTROL", False)
    elif not HAS_ADMISSION_CONTROL:
        pytest.skip("needs PySpark 4.2")
    return str(request.param)


def source(table: Path, **options: str) -> DeltaDataSource:
    return DeltaDataSource(CaseInsensitiveDict({"path": str(table), **options}))


def batch(table: Path, **options: str) -> list[dict[str, Any]]:
    found = source(table, **options)
    reader = found.reader(found.schema())
    return list(rows(reader, reader.partitions()))


def rows(reader: Any, partitions: Any) -> Iterator[dict[str, Any]]:
    for partition in partitions:
        for one in reader.read(partition):
            yield from one.to_pylist()


class Query:
    """Spark's part: it keeps offsets as text, and asks for a batch."""

    def __init__(self, table: Path, ended_at: str = "", **options: str) -> None:
        found = source(table, **options)
        self.reader: Any = found.streamReader(found.schema())
        self.is_old = isinstance(self.reader, OldStreamReader)
        self.start = self.end = ended_at
        if ended_at and self.is_old:
            assert self.reader.partitions(json.loads(ended_at), json.loads(ended_at)) == []
        elif not ended_at and not self.is_old:
            self.start = json.dumps(self.reader.initialOffset())

    def plan(self) -> bool:
        if self.is_old:
            self.end = json.dumps(self.reader.latestOffset())
            self.start = self.start or json.dumps(self.reader.initialOffset())
        else:
            limit = self.reader.getDefaultReadLimit()
            self.end = json.dumps(self.reader.latestOffset(json.loads(self.start), limit))
        return self.end != self.start

    def run(self) -> list[Any]:
        start, end = json.loads(self.start), json.loads(self.end)
        found = sorted(row["n"] for row in rows(self.reader, self.reader.partitions(start, end)))
        self.start = self.end
        return found

    def batch(self) -> list[Any]:
        return self.run() if self.plan() else []


def add(table: Path, *numbers: int, **options: str) -> None:
    given = [{"n": number, "day": date(2026, 1, number % 28 + 1)} for number in numbers]
    commit(options_of(table, **options), SCHEMA, given)


# -- batch -----------------------------------------------------------------------------------------


def test_a_batch_reads_the_table_as_it_is_or_was(tmp_path: Path) -> None:
    add(tmp_path, 1, 2)
    before = datetime.now(UTC).isoformat()
    time.sleep(0.01)  # Commits are stamped in milliseconds.
    add(tmp_path, 3)
    assert sorted(row["n"] for row in batch(tmp_path)) == [1, 2, 3]
    assert sorted(row["n"] for row in batch(tmp_path, versionAsOf="1")) == [1, 2]
    assert sorted(row["n"] for row in batch(tmp_path, timestampAsOf=before)) == [1, 2]
    with pytest.raises(VersionGone, match="version 7 of the table"):
        batch(tmp_path, versionAsOf="7")
    with pytest.raises(BadOption, match="exclude each other"):
        batch(tmp_path, versionAsOf="1", timestampAsOf=before)


def test_columns_and_rows_are_chosen_and_files_passed_over(tmp_path: Path) -> None:
    for low in (0, 10, 20):
        add(tmp_path, *range(low, low + 10))
    options = {"where": "n >= 15 AND n < 17 AND day IS NOT NULL", "columns": "n"}
    assert batch(tmp_path, **options) == [{"n": 15}, {"n": 16}]
    found = source(tmp_path, **options)
    (task,) = found.reader(found.schema()).partitions()
    assert len(task.files) == 1  # type: ignore[attr-defined]
    by_day = {"where": "day = '2026-01-16'", "columns": "n"}
    assert batch(tmp_path, **by_day) == [{"n": 15}]
    for wrong, problem in (
        ({"where": "m = 1"}, "there is no column 'm': n, day"),
        ({"columns": "n,m"}, "columns: there is no column 'm'"),
        ({"versionAsOff": "1"}, "did you mean 'versionAsOf'"),
        ({"keys": "n"}, "'keys' is for writing"),
    ):
        with pytest.raises(BadOption, match=problem):
            batch(tmp_path, **wrong)


def test_decimals_and_floats_choose_files_by_their_exact_bounds(tmp_path: Path) -> None:
    """In a batch, where delta-rs reads the statistics, and in a stream, where they are JSON."""
    schema = schema_of("n long, price decimal(10,2), f float")
    commit(options_of(tmp_path), schema, [])
    for low in (0, 10):
        given = [
            {"n": n, "price": Decimal(n) / 10, "f": float(n) / 10} for n in range(low, low + 10)
        ]
        commit(options_of(tmp_path), schema, given[:1])
        commit(options_of(tmp_path), schema, given[1:])
        given = [{**row, "n": row["n"] + 100} for row in given]
        data = pa.Table.from_pylist(given, pa.schema(DeltaTable(tmp_path).schema().to_arrow()))
        write_deltalake(tmp_path, data, mode="append")
    for column in ("price", "f"):
        for n in range(20):
            options = {"where": f"{column} = {n / 10}", "columns": "n"}
            assert sorted(row["n"] for row in batch(tmp_path, **options)) == [n, n + 100]
            stream = Query(tmp_path, startingVersion="0", **options)
            assert stream.batch() == [n, n + 100]
    found = source(tmp_path, where="price = 0.5")
    tasks = found.reader(found.schema()).partitions()
    assert sum(len(task.files) for task in tasks) == 2  # type: ignore[attr-defined]


def test_partitions_are_columns_and_choose_files(tmp_path: Path) -> None:
    schema = schema_of("n long, what string, at timestamp, b boolean")
    at = datetime(2026, 1, 1, 12, 30, 0, 5, tzinfo=UTC)
    given = [
        {"n": number, "what": what, "at": at, "b": True}
        for number, what in enumerate(["a b", "x%y", "ü/z", None])
    ]
    commit(options_of(tmp_path, partitionBy="what,at,b"), schema, given)
    assert sorted(batch(tmp_path), key=lambda row: row["n"]) == given
    assert [row["n"] for row in batch(tmp_path, where="what = 'x%y'")] == [1]
    assert [row["n"] for row in batch(tmp_path, where="what IS NULL AND b = true")] == [3]
    found = source(tmp_path, where="what = 'x%y'", columns="n")
    (task,) = found.reader(found.schema()).partitions()
    assert len(task.files) == 1  # type: ignore[attr-defined]
    write_deltalake(tmp_path, pa.Table.from_pylist(given), mode="append")  # as delta-rs writes them
    assert len(batch(tmp_path, where="what = 'ü/z'")) == 2


def test_a_struct_may_be_asked_whether_it_is_null(tmp_path: Path) -> None:
    shipping = pa.array(
        [{"city": None}, None, {"city": "Jeju"}], pa.struct([("city", pa.string())])
    )
    write_deltalake(tmp_path, pa.table({"n": [1, 2, 3], "shipping": shipping}))
    for where, found in (("IS NOT NULL", [1, 3]), ("IS NULL", [2])):
        options = {"where": f"shipping {where}", "columns": "n"}
        assert [row["n"] for row in batch(tmp_path, **options)] == found
        assert Query(tmp_path, startingVersion="0", **options).batch() == found


@pytest.mark.parametrize("day", ["+55840-01-01", "not a day"])
def test_bounds_that_python_has_no_value_for_are_not_used(tmp_path: Path, day: str) -> None:
    """Spark writes such days; where the file has them, its rows cannot be shown either."""
    add(tmp_path, 1)
    entry = tmp_path / "_delta_log" / f"{1:020}.json"
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    (described,) = (one["add"] for one in actions if "add" in one)
    stats = json.loads(described["stats"])
    stats["maxValues"]["day"] = day
    described["stats"] = json.dumps(stats)
    entry.write_text("".join(f"{json.dumps(one)}\n" for one in actions))
    options = {"where": "day >= '2026-01-02'", "columns": "n"}
    assert batch(tmp_path, **options) == [{"n": 1}]
    assert Query(tmp_path, startingVersion="0", **options).batch() == [1]


def test_binary_partitions_are_read_as_the_log_has_them(tmp_path: Path) -> None:
    add = pa.table({"n": [1], "b": pa.array([b"x"])})
    write_deltalake(tmp_path, add, partition_by=["b"])
    expected = DeltaTable(tmp_path).to_pyarrow_table().to_pylist()
    assert batch(tmp_path) == expected
    query = Query(tmp_path, startingVersion="0")
    assert query.plan()
    partitions = query.reader.partitions(json.loads(query.start), json.loads(query.end))
    assert list(rows(query.reader, partitions)) == expected


def test_a_schema_with_columns_that_the_table_does_not_have_is_refused(tmp_path: Path) -> None:
    add(tmp_path, 1)
    for read in (source(tmp_path).reader, source(tmp_path).streamReader):
        read(schema_of("n long"))
        with pytest.raises(BadOption, match="the table has no m, o: leave out"):
            read(schema_of("n long, m long, o long"))


def test_files_of_older_schemas_have_nulls_for_what_came_later(tmp_path: Path) -> None:
    inner = pa.struct([("x", pa.int64())])
    wider = pa.struct([("x", pa.int64()), ("y", pa.string())])
    write_deltalake(
        tmp_path,
        pa.table(
            {
                "n": [1],
                "s": pa.array([{"x": 1}], inner),
                "l": pa.array([[{"x": 2}]], pa.list_(inner)),
            }
        ),
    )
    new = {
        "n": [2, 3],
        "s": pa.array([{"x": 1, "y": "a"}, None], wider),
        "l": pa.array([[{"x": 2, "y": "b"}], None], pa.list_(wider)),
        "more": pa.array([True, None]),
    }
    write_deltalake(tmp_path, pa.table(new), mode="append", schema_mode="merge")
    assert sorted(batch(tmp_path), key=lambda row: row["n"]) == [
        {"n": 1, "s": {"x": 1, "y": None}, "l": [{"x": 2, "y": None}], "more": None},
        {"n": 2, "s": {"x": 1, "y": "a"}, "l": [{"x": 2, "y": "b"}], "more": True},
        {"n": 3, "s": None, "l": None, "more": None},
    ]


def test_what_would_give_wrong_rows_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CannotRead, match="there is no Delta table"):
        batch(tmp_path / "none")
    add(tmp_path, 1)
    metadata = json.loads((tmp_path / "_delta_log" / f"{0:020}.json").read_text().splitlines()[2])
    metadata["metaData"]["configuration"] = {"delta.columnMapping.mode": "name"}
    schema = json.loads(metadata["metaData"]["schemaString"])
    for number, field in enumerate(schema["fields"], 1):
        mapping = {"id": number, "physicalName": field["name"]}
        field["metadata"] = {f"delta.columnMapping.{name}": of for name, of in mapping.items()}
    metadata["metaData"]["schemaString"] = json.dumps(schema)
    protocol = {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}
    append_entry(tmp_path, protocol, metadata)
    with pytest.raises(CannotRead, match="column mapping"):
        batch(tmp_path)


@pytest.mark.parametrize("is_lost", [False, True])
def test_deletion_vectors_are_refused_by_name(tmp_path: Path, is_lost: bool) -> None:
    add(tmp_path, 1, 2)
    delete_by_vector(tmp_path)
    if is_lost:
        (tmp_path / "vectors.bin").unlink()
    with pytest.raises(CannotRead, match="it has deletion vectors"):
        batch(tmp_path)
    with pytest.raises(CannotRead, match="it has deletion vectors"):
        Query(tmp_path)
    assert len(batch(tmp_path, versionAsOf="1")) == 2


def test_a_table_that_only_may_have_deletion_vectors_is_read(tmp_path: Path) -> None:
    add(tmp_path, 1)
    features = ["deletionVectors"]
    versions = {"minReaderVersion": 3, "minWriterVersion": 7}
    protocol = {**versions, "readerFeatures": features, "writerFeatures": features}
    append_entry(tmp_path, {"protocol": protocol})
    assert Query(tmp_path).batch() == [1]


def test_reader_features_that_are_not_known_are_refused_by_name(tmp_path: Path) -> None:
    add(tmp_path, 1)
    features = ["typeWidening"]
    versions = {"minReaderVersion": 3, "minWriterVersion": 7}
    protocol = {**versions, "readerFeatures": features, "writerFeatures": features}
    append_entry(tmp_path, {"protocol": protocol})
    with pytest.raises(CannotRead, match="typeWidening"):
        batch(tmp_path)


def test_a_commit_with_deletion_vectors_is_refused_by_name() -> None:
    add = {"path": "a", "dataChange": True, "deletionVector": {"storageType": "u"}}
    with pytest.raises(CannotRead, match="version 3 of the table has deletion vectors"):
        parse_commit(3, [json.dumps({"add": add})])


# -- stream ----------------------------------------------------------------------------------------


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
    commit(options, SCHEMA, [{"n": 2, "day": None}], apply=merge_files(options))
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
