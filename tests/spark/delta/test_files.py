"""Batches into files: parted by value, closed when large enough, none left behind."""

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="PyArrow is not installed: pip install .[spark]")
pytest.importorskip("deltalake", reason="deltalake is not installed: pip install .[spark]")

import pyarrow as pa
from deltalake import DeltaTable

from suwi.spark.delta import files as files_module
from suwi.spark.delta.errors import DeltaSinkError, SchemaMismatch
from suwi.spark.delta.files import FilePlan, FileWriter
from suwi.spark.delta.partitions import split
from suwi.spark.delta.schema import arrow_schema
from suwi.spark.delta.storage import storage_of
from tests.spark.delta.tables import commit, options_of, rows_of, schema_of, write_files


def test_a_partition_beyond_the_calendar_is_refused_by_name() -> None:
    table = pa.table({"day": pa.array([2**31 - 1], pa.int32()).cast(pa.date32()), "n": [1]})
    with pytest.raises(DeltaSinkError, match="`day` partitions the table and holds a time"):
        list(split(table, ["day"]))


def test_a_value_that_the_tables_type_cannot_hold_is_refused_by_name(tmp_path: Path) -> None:
    plan = FilePlan(
        schema=arrow_schema(schema_of("n double, m long")),
        target_bytes=1 << 20,
        codec="snappy",
        columns_with_statistics=32,
    )
    writer = FileWriter(storage_of(str(tmp_path), {}), plan, lambda: "part-0")
    writer.write([pa.record_batch({"m": pa.array([1]), "n": pa.array([2**53])})])
    with pytest.raises(SchemaMismatch, match=f"`n` is double in the table, .*{2**53 + 1}"):
        writer.write([pa.record_batch({"m": pa.array([1]), "n": pa.array([2**53 + 1])})])


def test_rows_go_to_the_directory_of_their_values(tmp_path: Path) -> None:
    options = options_of(tmp_path / "t", partitionBy="day,country")
    schema = schema_of("day date, country string, n long")
    rows = [
        {"day": date(2026, 1, 1), "country": "KR", "n": 1},
        {"day": date(2026, 1, 1), "country": "한국/a=b %", "n": 2},
        {"day": None, "country": "KR", "n": 3},
        {"day": date(2026, 1, 1), "country": "KR", "n": 4},
    ]
    files = write_files(options, schema, rows)
    assert sorted(file.rows for file in files) == [1, 1, 2]
    first = next(file for file in files if file.rows == 2)
    assert first.path.startswith("day=2026-01-01/country=KR/part-")
    assert first.partition_values == {"day": "2026-01-01", "country": "KR"}
    assert first.columns_with_nulls == frozenset()
    nameless = next(file for file in files if file.partition_values["day"] is None)
    assert nameless.path.startswith("day=__HIVE_DEFAULT_PARTITION__/")
    assert nameless.columns_with_nulls == {"day"}
    korean = next(file for file in files if "한국" in str(file.partition_values["country"]))
    assert korean.path.startswith("day=2026-01-01/country=한국%2Fa%3Db %25/part-")


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("string", ["a", "ä b/c=d%20", None, "x" * 300]),
        ("long", [1, -(2**63), None]),
        ("boolean", [True, False, None]),
        ("date", [date(2026, 1, 1), None]),
        (
            "timestamp",
            [datetime(2026, 1, 1, 3, 4, 5, 678_901, UTC), datetime(1969, 1, 1, tzinfo=UTC)],
        ),
        ("timestamp_ntz", [datetime.fromisoformat("2026-01-01T03:04:05.678901"), None]),
        ("double", [1.5, -1e300, None]),
    ],
)
def test_partition_values_come_back_as_they_were(
    tmp_path: Path, kind: str, values: list[Any]
) -> None:
    table = tmp_path / "t"
    rows = [{"p": value, "n": number} for number, value in enumerate(values)]
    commit(options_of(table, partitionBy="p"), schema_of(f"p {kind}, n long"), rows)
    assert sorted(rows_of(table), key=lambda row: row["n"]) == rows


def test_the_empty_text_is_null_as_a_partition_value_as_in_every_delta_table(
    tmp_path: Path,
) -> None:
    table = tmp_path / "t"
    commit(options_of(table, partitionBy="p"), schema_of("p string, n long"), [{"p": "", "n": 1}])
    assert rows_of(table) == [{"p": None, "n": 1}]


def writer_for(
    table: Path, *, partition_by: tuple[str, ...] = (), target_bytes: int = 1 << 30
) -> FileWriter:
    plan = FilePlan(
        schema=arrow_schema(schema_of("p long, text string")),
        partition_by=partition_by,
        target_bytes=target_bytes,
        codec="none",
        columns_with_statistics=32,
    )
    names = iter(range(10_000))
    return FileWriter(storage_of(str(table), {}), plan, lambda: f"part-{next(names)}")


def batch(p: list[int], text: str = "x") -> pa.RecordBatch:
    return pa.record_batch({"p": pa.array(p, pa.int64()), "text": pa.array([text] * len(p))})


def test_a_file_of_the_target_size_is_closed_and_the_next_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_module, "ROW_GROUP_BYTES", 10_000)
    writer = writer_for(tmp_path, target_bytes=30_000)
    texts = [str(number) * 1000 for number in range(100, 200)]
    for text in texts:
        writer.write([batch([1], text)])
    files = writer.close()
    assert sum(file.rows for file in files) == 100
    assert len(files) > 5
    for file in files:
        assert (tmp_path / file.path).stat().st_size == file.size_bytes
    assert all(file.size_bytes >= 30_000 for file in files[:-1])


def test_many_partitions_do_not_hold_many_files_or_much_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_module, "_BUFFERED_BYTES_MAX", 2_000)
    monkeypatch.setattr(files_module, "_OPEN_FILES_MAX", 3)
    writer = writer_for(tmp_path, partition_by=("p",))
    for round_ in range(5):
        writer.write([batch(list(range(20)), str(round_) * 200)])
        assert sum(part.writer is not None for part in writer._parts.values()) <= 3
        assert sum(part.buffered_bytes for part in writer._parts.values()) <= 2_000
    files = writer.close()
    assert sum(file.rows for file in files) == 100
    assert len({file.path for file in files}) == len(files)


def test_what_a_failed_task_wrote_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_module, "ROW_GROUP_BYTES", 100)
    writer = writer_for(tmp_path, partition_by=("p",), target_bytes=1)
    writer.write([batch([1, 2, 3], "a" * 200)])
    assert list(tmp_path.rglob("*.parquet"))
    writer.discard()
    assert not list(tmp_path.rglob("*.parquet"))


def test_times_of_any_zone_are_written_in_utc(tmp_path: Path) -> None:
    plan = FilePlan(
        schema=arrow_schema(schema_of("at timestamp")),
        target_bytes=1 << 20,
        codec="zstd",
        columns_with_statistics=32,
    )
    writer = FileWriter(storage_of(str(tmp_path), {}), plan, lambda: "part-0")
    moment = datetime(2026, 1, 1, 3, 4, 5, tzinfo=UTC)
    writer.write([pa.record_batch({"at": pa.array([moment], pa.timestamp("us", "Asia/Seoul"))})])
    (file,) = writer.close()
    import pyarrow.parquet as pq

    (column,) = pq.read_table(tmp_path / file.path).columns
    assert column.type == pa.timestamp("us", "UTC")
    assert column.to_pylist() == [moment]


def test_no_rows_make_no_file(tmp_path: Path) -> None:
    writer = writer_for(tmp_path)
    writer.write([batch([])])
    assert writer.close() == []
    assert list(tmp_path.iterdir()) == []


def test_a_table_can_be_read_where_its_directories_have_strange_names(tmp_path: Path) -> None:
    table = tmp_path / "a b,c é"
    commit(options_of(table, partitionBy="p"), schema_of("p string, n long"), [{"p": "%", "n": 1}])
    assert rows_of(table) == [{"p": "%", "n": 1}]
    assert DeltaTable(str(table)).version() == 1
