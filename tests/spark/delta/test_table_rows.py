"""Which rows of a table a batch or a stream gets, with which columns, and what is refused."""

import json
import time
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="PyArrow is not installed: pip install .[spark]")
pytest.importorskip("deltalake", reason="deltalake is not installed: pip install .[spark]")

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, convert_to_deltalake, write_deltalake

from suwi.spark.delta.errors import (
    CannotRead,
    VersionGone,
)
from suwi.spark.delta.log import parse_commit
from suwi.spark.options import BadOption
from tests.spark.delta.tables import (
    Query,
    add,
    append_entry,
    commit,
    delete_by_vector,
    options_of,
    rows,
    schema_of,
    source,
)

pytestmark = pytest.mark.usefixtures("spark_release")


def batch(table: Path, **options: str) -> list[dict[str, Any]]:
    found = source(table, **options)
    reader = found.reader(found.schema())
    return list(rows(reader, reader.partitions()))


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


@pytest.mark.parametrize(
    "stored", [{"use_deprecated_int96_timestamps": True}, {"coerce_timestamps": "ms"}]
)
def test_moments_of_any_year_are_read_however_their_writer_has_stored_them(
    tmp_path: Path, stored: dict[str, Any]
) -> None:
    moments = [datetime(year, 12, 31, 23, 59, tzinfo=UTC) for year in (1, 1500, 2026, 9999)]
    table = pa.table({"at": pa.array(moments, pa.timestamp("us", "UTC"))})
    pq.write_table(table, tmp_path / "a.parquet", **stored)
    convert_to_deltalake(tmp_path)
    assert [row["at"] for row in batch(tmp_path)] == moments


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
