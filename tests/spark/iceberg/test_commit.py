"""One batch, one snapshot of an Iceberg table, whoever else writes, however often it is tried."""

import multiprocessing
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyiceberg", reason="pyiceberg is not installed: pip install .[iceberg]")
pytest.importorskip("duckdb", reason="DuckDB is not installed: pip install .[spark-tests]")

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitStateUnknownException
from pyiceberg.types import IntegerType, LongType
from pyspark.sql.types import ArrayType, MapType, StringType, StructField, StructType

from suwi.env import SystemRandom
from suwi.spark.delta.errors import (
    AnotherDriver,
    CommitContended,
    DeltaSinkError,
    SchemaMismatch,
    UnsupportedTable,
)
from suwi.spark.iceberg.data_source import IcebergFormat
from suwi.spark.iceberg.table import OpenIceberg
from suwi.spark.options import read_iceberg_options
from suwi.spark.origin import Origin
from suwi.spark.table_commit import commit_batch
from tests.spark.delta.tables import schema_of
from tests.spark.iceberg.rest_catalog import serving
from tests.spark.iceberg.tables import NAME, commit, load, options_of, rows_of, write_batch

SCHEMA = schema_of("n long")


def origin(version: int, run: str = "run-1", app: str = "query-1") -> Origin:
    return Origin(app, version, run)


def numbers(warehouse: Path) -> list[Any]:
    return sorted(row["n"] for row in rows_of(warehouse))


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
    """Catalog, namespace and table are made by both at the same time, too."""
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        outcomes = pool.map(_race, [(tmp_path, 1), (tmp_path, 2)], chunksize=1)
    assert numbers(tmp_path) == list(range(10))
    assert sum(map(sum, outcomes)) == 10
    assert len(load(tmp_path).metadata.snapshots) == 10


def test_a_driver_that_read_the_table_before_another_committed_its_batch_does_not_commit(
    tmp_path: Path,
) -> None:
    options = options_of(tmp_path)
    tables = [IcebergFormat(options), IcebergFormat(options)]
    batches = [
        write_batch(table, SCHEMA, [{"n": 1}], origin(0, run))
        for table, run in zip(tables, ("run-1", "run-2"), strict=True)
    ]
    opened = [table.open(SCHEMA) for table in tables]
    assert opened[0].commit(batches[0])
    with pytest.raises(Exception, match="CommitFailedException"):
        opened[1].commit(batches[1])
    assert commit_batch(tables[1], batches[1], SystemRandom()).is_suppressed
    assert numbers(tmp_path) == [1]


def test_the_snapshot_and_the_number_of_its_batch_are_one_commit(tmp_path: Path) -> None:
    commit(options_of(tmp_path), SCHEMA, [{"n": 1}], origin(4, app="query-1:good"))
    table = load(tmp_path)
    (snapshot,) = table.metadata.snapshots
    assert table.properties["suwi.txn.query-1.good"] == "4"
    assert snapshot.summary is not None
    assert snapshot.summary["suwi.version"] == "4"
    assert len(table.metadata.metadata_log) == 1, "one commit after the table was created"


def test_a_batch_that_is_replayed_by_a_restarted_driver_is_suppressed(tmp_path: Path) -> None:
    options = options_of(tmp_path)
    assert not commit(options, SCHEMA, [{"n": 1}], origin(0)).is_suppressed
    replay = commit(options, SCHEMA, [{"n": 1}], origin(0, "run-2"))
    assert replay.is_suppressed
    assert not replay.may_hold_files
    assert numbers(tmp_path) == [1]


def test_a_new_checkpoint_counts_from_zero_and_nothing_of_it_is_dropped(tmp_path: Path) -> None:
    options = options_of(tmp_path)
    for app in ("query-1", "query-2"):
        for batch in range(2):
            commit(options, SCHEMA, [{"n": batch}], origin(batch, app=app))
    assert numbers(tmp_path) == [0, 0, 1, 1]


def test_a_commit_that_another_writer_overtook_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = options_of(tmp_path)
    commit(options, SCHEMA, [{"n": 0}], origin(0))
    commit_here, tries = OpenIceberg.commit, []

    def overtaken(self: OpenIceberg, batch: Any) -> bool:
        if not tries:
            tries.append(1)
            commit(options, SCHEMA, [{"n": 100}], origin(7, "other", app="query-2"))
        return commit_here(self, batch)

    monkeypatch.setattr(OpenIceberg, "commit", overtaken)
    assert not commit(options, SCHEMA, [{"n": 1}], origin(1)).is_suppressed
    assert numbers(tmp_path) == [0, 1, 100]


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_commit_whose_outcome_is_not_known_is_in_the_table_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_stored: bool
) -> None:
    options = options_of(tmp_path)
    commit(options, SCHEMA, [{"n": 0}], origin(0))
    commit_table, lost = SqlCatalog.commit_table, []

    def answer_is_lost(self: SqlCatalog, *arguments: Any) -> Any:
        if lost:
            return commit_table(self, *arguments)
        lost.append(1)
        if is_stored:
            commit_table(self, *arguments)
        raise CommitStateUnknownException("the connection was closed")

    monkeypatch.setattr(SqlCatalog, "commit_table", answer_is_lost)
    outcome = commit(options, SCHEMA, [{"n": 1}], origin(1))
    assert outcome.is_suppressed is is_stored
    assert outcome.may_hold_files, "the files must stay"
    assert numbers(tmp_path) == [0, 1]


def test_a_driver_that_finds_its_next_batch_done_by_another_stops(tmp_path: Path) -> None:
    options = options_of(tmp_path)
    commit(options, SCHEMA, [{"n": 0}], origin(0, "run-1"))
    commit(options, SCHEMA, [{"n": 1}], origin(1, "run-2"))
    with pytest.raises(AnotherDriver, match="two drivers use one checkpoint"):
        commit(options, SCHEMA, [{"n": 2}], origin(1, "run-1"))


def test_what_a_query_wrote_is_remembered_when_its_snapshots_are_expired(tmp_path: Path) -> None:
    options = options_of(tmp_path)
    for batch in range(5):
        commit(options, SCHEMA, [{"n": batch}], origin(batch))
    table = load(tmp_path)
    old = [one.snapshot_id for one in table.metadata.snapshots[:-1]]
    table.maintenance.expire_snapshots().by_ids(old).commit()
    assert commit(options, SCHEMA, [{"n": 4}], origin(4, "run-2")).is_suppressed
    commit(options, SCHEMA, [{"n": 5}], origin(5, "run-2"))
    assert numbers(tmp_path) == [0, 1, 2, 3, 4, 5]


def test_files_for_a_table_that_was_dropped_and_created_again_are_not_committed(
    tmp_path: Path,
) -> None:
    options = options_of(tmp_path)
    table = IcebergFormat(options)
    batch = write_batch(table, SCHEMA, [{"n": 1}], origin(0))
    with load(tmp_path).catalog as catalog:
        catalog.drop_table(options.table)
    with pytest.raises(CommitContended, match="created or partitioned anew"):
        commit_batch(table, batch, SystemRandom())


def test_another_release_of_pyiceberg_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyiceberg.__version__", "0.13.1")
    with pytest.raises(UnsupportedTable, match=r"pyiceberg is 0\.13\.1: pip install"):
        commit(options_of(tmp_path), SCHEMA, [{"n": 1}])


def test_a_table_is_not_overwritten(tmp_path: Path) -> None:
    with pytest.raises(DeltaSinkError, match="only appended to"):
        IcebergFormat(options_of(tmp_path)).plan(SCHEMA, overwrite=True)
    assert not (tmp_path / "catalog.db").exists()


def test_a_table_is_judged_without_being_created(tmp_path: Path) -> None:
    IcebergFormat(options_of(tmp_path)).judge(SCHEMA, overwrite=False)
    with pytest.raises(SchemaMismatch, match="'week\\(n\\)' is to partition the table"):
        IcebergFormat(options_of(tmp_path, partitionBy="week(n)")).judge(SCHEMA, overwrite=False)
    assert not (tmp_path / "catalog.db").exists()


def test_a_catalog_that_is_asked_over_http_has_each_batch_once(tmp_path: Path) -> None:
    with serving(tmp_path / "lake") as server:
        given = {
            "table": NAME,
            "partitionBy": "bucket(4, n)",
            "mergeSchema": "true",
            "catalog.uri": server.uri,
            "catalog.token": "secret",
        }
        options = read_iceberg_options(given)
        commit(options, SCHEMA, [{"n": 0}], origin(0))
        server.lost_answers = 1
        assert commit(options, SCHEMA, [{"n": 1}], origin(1)).may_hold_files
        wider = schema_of("n long, more string")
        commit(options, wider, [{"n": 2, "more": "x"}], origin(2))
        assert commit(options, SCHEMA, [{"n": 2}], origin(2, "run-2")).is_suppressed
        with server.behind() as catalog:
            table = catalog.load_table(NAME)
        assert sorted(table.scan().to_arrow().column("n").to_pylist()) == [0, 1, 2]
        assert len(table.metadata.snapshots) == 3
        assert server.tokens == {"Bearer secret"}


# -- columns ---------------------------------------------------------------------------------------

ALL = StructType(
    [
        *schema_of(
            "id long, b byte, i integer, f float, d double, ok boolean, day date, at timestamp, "
            "local timestamp_ntz, text string, raw binary, price decimal(10,2)"
        ).fields,
        StructField("tags", ArrayType(StringType())),
        StructField("place", StructType(schema_of("x double, y string").fields)),
        StructField("counts", MapType(StringType(), schema_of("n long")["n"].dataType)),
    ]
)
ROW = {
    "id": 7,
    "b": -3,
    "i": 5,
    "f": 0.5,
    "d": float("inf"),
    "ok": True,
    "day": date(2026, 1, 31),
    "at": datetime(2026, 1, 31, 12, 0, 0, 123456, UTC),
    "local": datetime(2026, 1, 31, 12),  # noqa: DTZ001
    "text": "북",
    "raw": b"\0\xff",
    "price": Decimal("-12.34"),
    "tags": ["a", None],
    "place": {"x": 1.5, "y": "here"},
    "counts": [("a", 1)],
}


def test_every_type_comes_back_as_it_was(tmp_path: Path) -> None:
    nothing = dict.fromkeys(ROW)
    commit(options_of(tmp_path), ALL, [ROW, nothing])
    first, second = sorted(rows_of(tmp_path), key=lambda row: row["id"] is None)
    assert first | {"counts": dict(first["counts"])} == ROW | {"counts": {"a": 1}}
    assert second == nothing
    assert load(tmp_path).scan(row_filter="id = 7 and text = '북'").to_arrow().num_rows == 1
    assert load(tmp_path).scan(row_filter="id > 7").to_arrow().num_rows == 0


def test_new_columns_and_fields_of_structs_are_added(tmp_path: Path) -> None:
    def of(inner: str, more: str = "n long") -> StructType:
        fields = schema_of(inner).fields
        deep = StructField("l", ArrayType(StructType(fields)))
        return StructType([*schema_of(more).fields, StructField("s", StructType(fields)), deep])

    options = options_of(tmp_path, mergeSchema="true")
    commit(options, of("x long"), [{"n": 1, "s": {"x": 1}, "l": [{"x": 1}]}])
    new = {"n": 2, "s": {"x": 2, "y": 2}, "l": [{"x": 2, "y": 2}], "extra": "new"}
    commit(options, of("x long, y long", "n long, extra string"), [new])
    commit(options, of("x long"), [{"n": 3, "s": {"x": 3}, "l": None}])
    assert sorted(rows_of(tmp_path), key=lambda row: row["n"]) == [
        {"n": 1, "s": {"x": 1, "y": None}, "l": [{"x": 1, "y": None}], "extra": None},
        new,
        {"n": 3, "s": {"x": 3, "y": None}, "l": None, "extra": None},
    ]


def test_what_does_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    options = options_of(tmp_path)
    commit(options, schema_of("n integer, text string"), [{"n": 1, "text": "a"}])
    for text, reason in (
        ("n integer, more string", "`more` is not in the table"),
        ("n long", r"`n` is integer in the table and long here: update_schema\(\)"),
        ("n string", "`n` is integer in the table and string here"),
        ("N integer", "`N` is spelled `n` in the table"),
    ):
        with pytest.raises(SchemaMismatch, match=reason):
            commit(options, schema_of(text), [])
    assert numbers(tmp_path) == [1]


def test_a_column_that_others_widened_or_renamed_takes_the_batch_that_was_being_written(
    tmp_path: Path,
) -> None:
    table = IcebergFormat(options_of(tmp_path))
    batch = write_batch(table, schema_of("n integer, m integer"), [{"n": 1, "m": 2}], origin(0))
    with load(tmp_path).update_schema() as update:
        update.update_column("n", LongType())
        update.rename_column("m", "k")
    commit_batch(table, batch, SystemRandom())
    assert rows_of(tmp_path) == [{"n": 1, "k": 2}]


def test_null_in_a_required_column_is_refused(tmp_path: Path) -> None:
    options = options_of(tmp_path)
    commit(options, SCHEMA, [{"n": 1}])
    with load(tmp_path).update_schema(allow_incompatible_changes=True) as update:
        update.add_column("must", IntegerType(), required=True, default_value=0)
    with pytest.raises(SchemaMismatch, match="`must` must not be null in the table and is missing"):
        commit(options, SCHEMA, [{"n": 2}])


# -- partitions ------------------------------------------------------------------------------------


def test_each_file_has_the_rows_of_one_partition(tmp_path: Path) -> None:
    by = "day(at), bucket(4, id), truncate(1, text), ok, price"
    options = options_of(tmp_path, partitionBy=by)
    texts = ["apple", "avocado", "", None]
    days = [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2)] + [None]
    rows = [
        {**ROW, "id": number, "text": texts[number % 4], "at": days[number % 3]}
        for number in range(48)
    ]
    commit(options, ALL, rows)
    assert sorted(row["id"] for row in rows_of(tmp_path)) == list(range(48))
    table = load(tmp_path)
    assert [field.name for field in table.spec().fields] == [
        "at_day",
        "id_bucket",
        "text_trunc",
        "ok",
        "price",
    ]
    files = table.inspect.files().to_pylist()
    assert len({str(file["partition"]) for file in files}) == len(files) > 10
    assert all(file["partition"]["price"] == Decimal("-12.34") for file in files)
    one = table.scan(row_filter="at >= '2026-01-02T00:00:00+00:00' and text = 'apple'")
    assert len(list(one.plan_files())) < len(files)
    assert {row["id"] % 12 for row in one.to_arrow().to_pylist()} == {4}


def test_a_partitioning_that_is_not_the_tables_is_refused(tmp_path: Path) -> None:
    commit(options_of(tmp_path, partitionBy="day(at)"), ALL, [ROW])
    commit(options_of(tmp_path, partitionBy="days(at)"), ALL, [ROW])
    commit(options_of(tmp_path), ALL, [ROW])
    with pytest.raises(SchemaMismatch, match=r"partitioned by day\(at\), the data by hour\(at\)"):
        commit(options_of(tmp_path, partitionBy="hour(at)"), ALL, [ROW])
    with pytest.raises(SchemaMismatch, match="partitioned by at_day: the data has no such"):
        commit(options_of(tmp_path), schema_of("id long"), [{"id": 1}])


def test_a_moment_that_python_does_not_have_is_written_but_partitions_nothing(
    tmp_path: Path,
) -> None:
    schema, far = schema_of("at timestamp"), [{"at": 300_000_000_000_000_000}]
    commit(options_of(tmp_path), schema, far)
    (file,) = load(tmp_path).scan().plan_files()
    assert file.file.record_count == 1
    with pytest.raises(DeltaSinkError, match="at_day partitions the table and is a time that is"):
        commit(options_of(tmp_path / "by-day", partitionBy="day(at)"), schema, far)
