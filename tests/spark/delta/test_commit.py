"""One batch, one commit, whoever else writes to the table and however often it is tried."""

import json
import multiprocessing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="PyArrow is not installed: pip install .[spark]")
pytest.importorskip("deltalake", reason="deltalake is not installed: pip install .[spark]")

from deltalake import CommitProperties, DeltaTable, Schema
from pyspark.sql.types import ArrayType, LongType, MapType, StringType, StructField, StructType

from suwi.spark.delta.commit import append_files
from suwi.spark.delta.errors import AnotherDriver, SchemaMismatch, UnsupportedTable
from suwi.spark.delta.table import check_release
from suwi.spark.origin import Origin
from suwi.spark.table_commit import Batch
from tests.spark.delta.tables import commit, options_of, rows_of, schema_of, write_files

SCHEMA = schema_of("n long")


def origin(version: int, run: str = "run-1", app: str = "query-1") -> Origin:
    return Origin(app, version, run)


def test_a_directory_of_other_files_is_not_made_a_table(tmp_path: Path) -> None:
    for name in ("part-00000-3f2b1c00-0000-4000-8000-000000000001-c000.snappy.parquet", "day=1/x"):
        table = tmp_path / name.partition("/")[0].partition("-")[0]
        file = table / name
        file.parent.mkdir(parents=True)
        file.write_bytes(b"PAR1")
        with pytest.raises(UnsupportedTable, match="is not empty and is no Delta table"):
            commit(options_of(table), SCHEMA, [{"n": 1}])
        assert not (table / "_delta_log").exists()


def test_narrower_values_and_new_nested_fields_get_into_the_table(tmp_path: Path) -> None:
    def struct(*names: str) -> StructType:
        inner = [StructField(name, LongType()) for name in names]
        fields = [StructField("n", LongType()), StructField("s", StructType(inner))]
        deep = ArrayType(StructType(inner))
        return StructType([*fields, StructField("l", deep)])

    options = options_of(tmp_path, mergeSchema="true")
    commit(options, struct("x"), [{"n": 1, "s": {"x": 1}, "l": [{"x": 1}]}])
    commit(options, struct("x", "y"), [{"n": 2, "s": {"x": 2, "y": 2}, "l": [{"x": 2, "y": 2}]}])
    commit(options, struct("x"), [{"n": 3, "s": {"x": 3}, "l": None}])
    assert sorted(rows_of(tmp_path), key=lambda row: row["n"]) == [
        {"n": 1, "s": {"x": 1, "y": None}, "l": [{"x": 1, "y": None}]},
        {"n": 2, "s": {"x": 2, "y": 2}, "l": [{"x": 2, "y": 2}]},
        {"n": 3, "s": {"x": 3, "y": None}, "l": None},
    ]


def test_what_a_killed_first_batch_left_does_not_keep_a_table_from_being_made(
    tmp_path: Path,
) -> None:
    options = options_of(tmp_path, partitionBy="n")
    write_files(options, schema_of("n long, m long"), [{"n": 1, "m": 1}])
    (tmp_path / "_checkpoint").mkdir()
    commit(options, schema_of("n long, m long"), [{"n": 2, "m": 2}])
    assert rows_of(tmp_path) == [{"n": 2, "m": 2}]


def test_a_batch_that_is_replayed_by_a_restarted_driver_is_suppressed(tmp_path: Path) -> None:
    options = options_of(tmp_path)
    assert not commit(options, SCHEMA, [{"n": 1}], origin(0)).is_suppressed
    replay = commit(options, SCHEMA, [{"n": 1}], origin(0, "run-2"))
    assert replay.is_suppressed
    assert not replay.may_hold_files
    assert rows_of(tmp_path) == [{"n": 1}]


def test_a_frozen_driver_that_wakes_late_writes_nothing(tmp_path: Path) -> None:
    options = options_of(tmp_path)
    for batch in range(3):
        commit(options, SCHEMA, [{"n": batch}], origin(batch, "run-2"))
    assert commit(options, SCHEMA, [{"n": 1}], origin(1, "run-1")).is_suppressed
    assert len(rows_of(tmp_path)) == 3


def test_a_new_checkpoint_counts_from_zero_and_nothing_of_it_is_dropped(tmp_path: Path) -> None:
    options = options_of(tmp_path)
    for app in ("query-1", "query-2"):
        for batch in range(2):
            commit(options, SCHEMA, [{"n": batch}], origin(batch, app=app))
    assert len(rows_of(tmp_path)) == 4


def test_a_commit_that_lost_a_race_to_its_own_replay_finds_out(tmp_path: Path) -> None:
    """The other driver commits between this one's look and its commit."""
    options = options_of(tmp_path)
    commit(options, SCHEMA, [{"n": 0}], origin(0, "run-0"))
    tries: list[int] = []

    def overtaken(table: DeltaTable, batch: Batch, properties: CommitProperties) -> None:
        if not tries:
            commit(options, SCHEMA, [{"n": 1}], origin(1, "run-2"))
        tries.append(table.version())
        append_files(table, batch, properties)

    outcome = commit(options, SCHEMA, [{"n": 1}], origin(1, "run-1"), overtaken)
    assert outcome.is_suppressed
    assert outcome.may_hold_files, "an attempt of ours went out"
    assert len(tries) == 1
    assert sorted(row["n"] for row in rows_of(tmp_path)) == [0, 1]


def test_a_commit_that_another_writer_overtook_is_made_again(tmp_path: Path) -> None:
    options = options_of(tmp_path)
    commit(options, SCHEMA, [{"n": 0}], origin(0))

    def overtaken(table: DeltaTable, batch: Batch, properties: CommitProperties) -> None:
        commit(options, SCHEMA, [{"n": 100}], origin(7, "other", app="query-2"))
        append_files(table, batch, properties)

    assert not commit(options, SCHEMA, [{"n": 1}], origin(1), overtaken).is_suppressed
    assert sorted(row["n"] for row in rows_of(tmp_path)) == [0, 1, 100]


def test_a_driver_that_finds_its_next_batch_done_by_another_stops(tmp_path: Path) -> None:
    options = options_of(tmp_path)
    commit(options, SCHEMA, [{"n": 0}], origin(0, "run-1"))
    commit(options, SCHEMA, [{"n": 1}], origin(1, "run-2"))
    with pytest.raises(AnotherDriver, match="two drivers use one checkpoint"):
        commit(options, SCHEMA, [{"n": 2}], origin(1, "run-1"))


def test_what_a_query_wrote_is_remembered_through_checkpoints_and_compaction(
    tmp_path: Path,
) -> None:
    options = options_of(tmp_path)
    for batch in range(5):
        commit(options, SCHEMA, [{"n": batch}], origin(batch))
    table = DeltaTable(str(tmp_path))
    table.optimize.compact()
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    DeltaTable(str(tmp_path)).create_checkpoint()
    for log in sorted((tmp_path / "_delta_log").glob("*.json"))[:-1]:
        log.unlink()  # as the clean-up of expired logs does
    assert commit(options, SCHEMA, [{"n": 4}], origin(4, "run-2")).is_suppressed
    assert sorted(row["n"] for row in rows_of(tmp_path)) == [0, 1, 2, 3, 4]


def _race(arguments: tuple[Path, int]) -> list[bool]:
    path, writer = arguments
    options = options_of(path)
    return [
        commit(
            options, SCHEMA, [{"n": batch}], origin(batch, f"run-{writer}-{batch}")
        ).is_suppressed
        for batch in range(10)
    ]


def test_two_drivers_that_race_from_the_first_batch_write_each_batch_once(tmp_path: Path) -> None:
    """The table is made by both at the same time, too."""
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        outcomes = pool.map(_race, [(tmp_path / "t", 1), (tmp_path / "t", 2)], chunksize=1)
    assert sorted(row["n"] for row in rows_of(tmp_path / "t")) == list(range(10))
    assert sum(map(sum, outcomes)) == 10


# -- columns ---------------------------------------------------------------------------------------


def test_a_column_that_the_table_does_not_have_is_refused_by_name(tmp_path: Path) -> None:
    options = options_of(tmp_path)
    commit(options, SCHEMA, [{"n": 1}])
    with pytest.raises(SchemaMismatch, match="`extra` is not in the table"):
        commit(options, schema_of("n long, extra string"), [{"n": 2, "extra": "x"}])


def test_mergeschema_adds_the_column_and_older_rows_have_null(tmp_path: Path) -> None:
    commit(options_of(tmp_path), SCHEMA, [{"n": 1}], origin(0))
    options = options_of(tmp_path, mergeSchema="true")
    commit(options, schema_of("n long, extra string"), [{"n": 2, "extra": "x"}], origin(1))
    commit(options, SCHEMA, [{"n": 3}], origin(2))
    assert sorted(rows_of(tmp_path), key=lambda row: row["n"]) == [
        {"n": 1, "extra": None},
        {"n": 2, "extra": "x"},
        {"n": 3, "extra": None},
    ]


def test_two_writers_may_add_the_same_column_at_the_same_time(tmp_path: Path) -> None:
    commit(options_of(tmp_path), SCHEMA, [{"n": 1}])
    options = options_of(tmp_path, mergeSchema="true")
    wide = schema_of("n long, extra string")

    def overtaken(table: DeltaTable, batch: Batch, properties: CommitProperties) -> None:
        if len(rows_of(tmp_path)) == 1:
            commit(options, schema_of("n long, other long"), [{"n": 3, "other": 1}])
        append_files(table, batch, properties)

    commit(options, wide, [{"n": 2, "extra": "x"}], origin(1), overtaken)
    assert {row["n"] for row in rows_of(tmp_path)} == {1, 2, 3}
    assert {"n", "extra", "other"} == set(rows_of(tmp_path)[0])


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ("n string", "`n` is long in the table and string here"),
        ("N long", "`N` is spelled `n` in the table"),
        ("n double", "`n` is long in the table and double here: .*widen"),
    ],
)
def test_a_column_of_another_type_or_spelling_is_refused_even_with_mergeschema(
    tmp_path: Path, data: str, complaint: str
) -> None:
    commit(options_of(tmp_path), SCHEMA, [{"n": 1}])
    with pytest.raises(SchemaMismatch, match=complaint):
        commit(options_of(tmp_path, mergeSchema="true"), schema_of(data), [])


def test_nulls_in_a_column_that_must_not_have_them_are_refused(tmp_path: Path) -> None:
    from deltalake import Field

    DeltaTable.create(str(tmp_path), Schema([Field("n", "long", nullable=False)]))
    options = options_of(tmp_path)
    commit(options, SCHEMA, [{"n": 1}])
    with pytest.raises(SchemaMismatch, match="`n` must not be null"):
        commit(options, SCHEMA, [{"n": None}])
    assert rows_of(tmp_path) == [{"n": 1}]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (StructType([StructField("x", LongType())]), {"x": None}),
        (ArrayType(LongType()), []),
        (MapType(StringType(), LongType()), [("k", None)]),
    ],
    ids=["struct", "array", "map"],
)
def test_nested_columns_that_must_not_be_null_are_not(
    tmp_path: Path, kind: Any, value: Any
) -> None:
    schema = StructType([StructField("v", kind, nullable=False)])
    DeltaTable.create(str(tmp_path), Schema.from_json(schema.json()))
    commit(options_of(tmp_path), schema, [{"v": value}])
    with pytest.raises(SchemaMismatch, match="`v` must not be null"):
        commit(options_of(tmp_path), schema, [{"v": value}, {"v": None}])
    assert rows_of(tmp_path) == [{"v": value}]


def test_a_table_that_is_partitioned_otherwise_is_refused(tmp_path: Path) -> None:
    schema = schema_of("p long, n long")
    commit(options_of(tmp_path, partitionBy="p"), schema, [{"p": 1, "n": 1}])
    with pytest.raises(SchemaMismatch, match="partitioned by `p`, the data by `n`"):
        commit(options_of(tmp_path, partitionBy="n"), schema, [{"p": 1, "n": 1}])


def test_a_table_with_rules_for_its_rows_is_refused(tmp_path: Path) -> None:
    commit(options_of(tmp_path), SCHEMA, [{"n": 1}])
    DeltaTable(str(tmp_path)).alter.add_constraint({"positive": "n > 0"})
    with pytest.raises(UnsupportedTable, match="constraint positive"):
        commit(options_of(tmp_path), SCHEMA, [{"n": -1}])


def test_a_release_of_delta_rs_that_forgets_transactions_is_refused() -> None:
    check_release()
    with pytest.raises(UnsupportedTable, match=r"deltalake 1.5.1 is too old"):
        check_release("1.5.1")


def test_the_log_says_which_query_batch_and_run_a_commit_is_of(tmp_path: Path) -> None:
    commit(options_of(tmp_path), SCHEMA, [{"n": 1}], origin(4))
    lines = (tmp_path / "_delta_log" / f"{1:020}.json").read_text().splitlines()
    entries: dict[str, Any] = {}
    for line in lines:
        entries |= json.loads(line)
    assert entries["txn"] == {"appId": "query-1", "version": 4}
    assert entries["commitInfo"]["suwi.runId"] == "run-1"
    assert json.loads(entries["add"]["stats"])["numRecords"] == 1
