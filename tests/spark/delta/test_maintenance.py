"""Compaction and clean-up change no row of any version."""

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="PyArrow is not installed: pip install .[spark]")
pytest.importorskip("deltalake", reason="deltalake is not installed: pip install .[spark]")

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql.types import StructType

from suwi.spark import to_delta, write
from suwi.spark.delta import maintenance
from suwi.spark.delta.errors import CannotRead, CommitContended, SchemaMismatch
from suwi.spark.delta.files import NAME
from suwi.spark.delta.maintenance import TARGET_BYTES, clean_orphans, compact, widen
from suwi.spark.origin import Origin
from tests.spark.delta.tables import commit, delete_by_vector, options_of, rows_of, schema_of

SCHEMA = schema_of("n long")
OLD = "part-00000000-0000-4000-8000-000000000001.snappy.parquet"
NEW = "part-00000000-0000-4000-8000-000000000002.snappy.parquet"


def fill(table: Path, batches: int) -> None:
    for batch in range(batches):
        commit(options_of(table), SCHEMA, [{"n": batch}], Origin("q", batch, "r"))


def leave(file: Path, hours: float) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"x")
    age(file, hours)


def age(file: Path, hours: float) -> None:
    then = time.time() - hours * 3600
    os.utime(file, (then, then))


def test_small_files_become_one_and_a_replay_is_still_known(tmp_path: Path) -> None:
    fill(tmp_path, 6)
    assert compact(str(tmp_path))["numFilesRemoved"] == 6
    assert len(DeltaTable(str(tmp_path)).file_uris()) == 1
    assert commit(options_of(tmp_path), SCHEMA, [{"n": 5}], Origin("q", 5, "r2")).is_suppressed
    assert sorted(row["n"] for row in rows_of(tmp_path)) == list(range(6))


def test_only_old_files_that_no_version_names_are_removed(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    compact(str(tmp_path))
    for file in tmp_path.glob("part-*.parquet"):
        age(file, 50)
    leave(tmp_path / OLD, 50)
    leave(tmp_path / "day=1" / OLD, 50)
    leave(tmp_path / "_suwi_staging" / OLD, 50)
    leave(tmp_path / NEW, 0)
    leave(tmp_path / "README.txt", 50)
    of_spark = tmp_path / "part-00000-3f2b1c00-0000-4000-8000-000000000001-c000.snappy.parquet"
    leave(of_spark, 50)
    orphans = [f"_suwi_staging/{OLD}", f"day=1/{OLD}", OLD]
    assert sorted(clean_orphans(str(tmp_path), dry_run=True)) == orphans
    assert (tmp_path / OLD).exists()
    assert sorted(clean_orphans(str(tmp_path))) == orphans
    assert not (tmp_path / "day=1" / OLD).exists()
    assert (tmp_path / NEW).exists()
    assert (tmp_path / "README.txt").exists()
    assert of_spark.exists(), "somebody else's"
    assert len(rows_of(tmp_path)) == 3
    old = DeltaTable(str(tmp_path), version=2)
    assert old.to_pyarrow_table().num_rows == 2, "versions before the compaction stay readable"


def test_files_that_may_belong_to_a_batch_under_way_are_not_asked_for(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    with pytest.raises(ValueError, match="may belong to a batch under way"):
        clean_orphans(str(tmp_path), older_than_hours=0)


def test_a_column_is_widened_in_one_commit_and_every_value_stays(tmp_path: Path) -> None:
    options = options_of(tmp_path, partitionBy="p")
    narrow = schema_of("n integer, p string")
    commit(options, narrow, [{"n": 1, "p": "a"}, {"n": None, "p": None}], Origin("q", 0, "r"))
    widen(str(tmp_path), {"n": "long"})
    commit(options, schema_of("n long, p string"), [{"n": 2**40, "p": "a"}], Origin("q", 1, "r"))
    widen(str(tmp_path), {"n": "double"})
    found = sorted((row["n"] or 0, row["p"]) for row in rows_of(tmp_path) if row["p"])
    assert found == [(1.0, "a"), (2.0**40, "a")]
    assert len(rows_of(tmp_path)) == 3
    table = DeltaTable(str(tmp_path))
    assert '"double"' in table.schema().to_json()
    assert table.metadata().partition_columns == ["p"]
    assert commit(options, narrow, [{"n": 1, "p": "a"}], Origin("q", 1, "r2")).is_suppressed
    with pytest.raises(SchemaMismatch, match="`n` is double: it cannot be widened"):
        widen(str(tmp_path), {"n": "long"})


def nested(kind: str) -> StructType:
    who = schema_of(f"name string, age {kind}").jsonValue()
    ages = {"type": "array", "elementType": kind, "containsNull": True}
    by_name = {"type": "map", "keyType": "string", "valueType": who, "valueContainsNull": True}
    fields = {"who": who, "ages": ages, "by_name": by_name}
    return StructType.fromJson(
        {
            "type": "struct",
            "fields": [
                {"name": name, "type": one, "nullable": True, "metadata": {}}
                for name, one in fields.items()
            ],
        }
    )


def test_fields_elements_and_values_are_widened_as_the_refusal_names_them(tmp_path: Path) -> None:
    ann = {"name": "Ann", "age": 7}
    old = {"who": ann, "ages": [7, None], "by_name": [("Ann", ann)]}
    commit(options_of(tmp_path), nested("integer"), [old, {}])
    old_ann = {"name": "Ann", "age": 2**40}
    new = {"who": old_ann, "ages": [2**40], "by_name": [("Ann", old_ann)]}
    with pytest.raises(SchemaMismatch) as refused:
        commit(options_of(tmp_path), nested("long"), [new])
    columns = {"who.age": "long", "ages": "long", "by_name.age": "long"}
    for path in columns:
        assert f"widen(path, {{'{path}': 'long'}})" in str(refused.value)
    widen(str(tmp_path), columns)
    commit(options_of(tmp_path), nested("long"), [new])
    found = sorted(rows_of(tmp_path), key=lambda row: str(row["ages"]))
    assert found == [{"who": None, "ages": None, "by_name": None}, new, old]
    for wrong in ("who", "who.name", "who.size", "nobody"):
        with pytest.raises(SchemaMismatch, match=f"`{wrong}` is "):
            widen(str(tmp_path), {wrong: "long"})


def test_a_value_that_the_wider_type_cannot_hold_is_named_and_leaves_no_file(
    tmp_path: Path,
) -> None:
    commit(options_of(tmp_path), SCHEMA, [{"n": 1}])
    commit(options_of(tmp_path), SCHEMA, [{"n": 2**53 + 1}])
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CannotRead, match=f"`n` of .* is no double: .*{2**53 + 1}"):
        widen(str(tmp_path), {"n": "double"})
    assert sorted(tmp_path.rglob("*")) == before


def test_a_table_that_others_change_all_the_time_is_not_widened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, narrow = options_of(tmp_path), schema_of("n integer")
    commit(options, narrow, [{"n": 1}])
    listed = maintenance.files_of

    def files_of(table: DeltaTable) -> Any:
        found = listed(table)
        DeltaTable(str(tmp_path)).update({"n": "n + 1"})
        return found

    monkeypatch.setattr(maintenance, "files_of", files_of)
    with pytest.raises(CommitContended, match="others wrote to the table in each of 5 attempts"):
        widen(str(tmp_path), {"n": "long"})
    assert "integer" in DeltaTable(str(tmp_path)).schema().to_json()
    assert not [file for file in tmp_path.glob("*.parquet") if NAME.fullmatch(file.name)][1:]


def test_a_column_that_others_add_while_a_table_is_widened_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(options_of(tmp_path), schema_of("n integer"), [{"n": 1}])
    listed, added = maintenance.files_of, []

    def files_of(table: DeltaTable) -> Any:
        found = listed(table)
        if not added:
            options, wider = (
                options_of(tmp_path, mergeSchema="true"),
                schema_of("n integer, m long"),
            )
            added.append(commit(options, wider, [{"n": 2, "m": 3}]))
        return found

    monkeypatch.setattr(maintenance, "files_of", files_of)
    widen(str(tmp_path), {"n": "long"})
    found = sorted(rows_of(tmp_path), key=lambda row: row["n"])
    assert found == [{"n": 1, "m": None}, {"n": 2, "m": 3}]


def test_a_table_with_deletion_vectors_is_not_widened(tmp_path: Path) -> None:
    commit(options_of(tmp_path), schema_of("n integer"), [{"n": 1}, {"n": 2}])
    delete_by_vector(tmp_path)
    with pytest.raises(CannotRead, match="deletion vectors"):
        widen(str(tmp_path), {"n": "long"})


def test_what_others_add_while_a_table_is_widened_is_widened_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow = schema_of("n integer")
    commit(options_of(tmp_path), narrow, [{"n": 1}])
    listed, added = maintenance.files_of, []

    def files_of(table: DeltaTable) -> Any:
        if not added:
            added.append(commit(options_of(tmp_path), narrow, [{"n": 2}]))
        return listed(table)

    monkeypatch.setattr(maintenance, "files_of", files_of)
    widen(str(tmp_path), {"n": "long"})
    assert sorted(row["n"] for row in rows_of(tmp_path)) == [1, 2]
    for uri in DeltaTable(str(tmp_path)).file_uris():
        assert pq.read_schema(uri.removeprefix("file://")).field("n").type == pa.int64()


class Started:
    """A writer that starts nothing."""

    def format(self, _: str) -> "Started":
        return self

    def options(self, **_: str) -> "Started":
        return self

    def start(self) -> None:
        return None


def test_files_are_compacted_to_the_size_that_the_sink_was_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[int] = []
    stream: Any = SimpleNamespace(isStreaming=True, sparkSession=None, columns=[])
    monkeypatch.setattr(write, "register", lambda spark: None)
    monkeypatch.setattr(write, "streaming", lambda *_: Started())
    monkeypatch.setattr(write, "_create_table", lambda *_: None)
    monkeypatch.setattr(
        maintenance, "keep_compact", lambda *_, target_bytes, **__: sizes.append(target_bytes)
    )
    for size in ("1mb", None):
        to_delta(stream, "/lake", checkpoint="/c", target_file_size=size, compact_every_s=60)
    assert sizes == [1 << 20, TARGET_BYTES]
