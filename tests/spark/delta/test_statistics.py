"""What a file says about itself must be true for every value in it."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="PyArrow is not installed: pip install .[spark]")
pytest.importorskip("deltalake", reason="deltalake is not installed: pip install .[spark]")

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql.types import StructType

from suwi.spark.delta.files import FilePlan, FileWriter
from suwi.spark.delta.statistics import lower_bound, upper_bound
from suwi.spark.delta.storage import storage_of
from tests.spark.delta.tables import commit, options_of, schema_of, write_files


def statistics_of(tmp_path: Path, schema: StructType, rows: list[dict[str, Any]]) -> Any:
    (file,) = write_files(options_of(tmp_path / "t"), schema, rows)
    return json.loads(file.statistics)


def test_bounds_and_nulls_of_every_plain_type(tmp_path: Path) -> None:
    schema = schema_of(
        "n long, s string, f double, d date, b boolean, m decimal(10,2), x binary, z integer"
    )
    rows = [
        {"n": 3, "s": "b", "f": 1.5, "d": date(2026, 1, 2), "b": True, "m": Decimal("1.25")},
        {"n": -1, "s": "a", "f": -2.0, "d": date(2025, 1, 2), "b": False, "m": None, "x": b"q"},
    ]
    found = statistics_of(tmp_path, schema, rows)
    assert found["numRecords"] == 2
    assert found["minValues"] == {
        "n": -1, "s": "a", "f": -2.0, "d": "2025-01-02", "b": False, "m": 1.25,
    }  # fmt: skip
    assert found["maxValues"] == {
        "n": 3, "s": "b", "f": 1.5, "d": "2026-01-02", "b": True, "m": 1.25,
    }  # fmt: skip
    assert found["nullCount"] == {
        "n": 0, "s": 0, "f": 0, "d": 0, "b": 0, "m": 1, "x": 1, "z": 2,
    }  # fmt: skip


def test_a_moment_beyond_the_calendar_has_no_bounds_and_stops_nothing(tmp_path: Path) -> None:
    far = pa.table(
        {
            "n": pa.array([1, 2], pa.int64()),
            "at": pa.array([0, 1772323200000 * 10**6], pa.timestamp("us", "UTC")),
        }
    )
    options = options_of(tmp_path / "t")
    plan = FilePlan(
        schema=far.schema, target_bytes=1 << 20, codec="snappy", columns_with_statistics=32
    )
    writer = FileWriter(storage_of(options.uri, {}), plan, lambda: "part-far")
    writer.write(far.to_batches())
    (file,) = writer.close()
    found = json.loads(file.statistics)
    assert found["minValues"] == {"n": 1}
    assert found["maxValues"] == {"n": 2}
    assert found["nullCount"] == {"n": 0, "at": 0}


def test_bounds_inside_of_structs_but_not_of_lists_and_maps(tmp_path: Path) -> None:
    schema = StructType.fromJson(
        {
            "type": "struct",
            "fields": [
                {"name": name, "type": kind, "nullable": True, "metadata": {}}
                for name, kind in (
                    ("l", {"type": "array", "elementType": "long", "containsNull": True}),
                    (
                        "m",
                        {
                            "type": "map",
                            "keyType": "string",
                            "valueType": "long",
                            "valueContainsNull": True,
                        },
                    ),
                    ("s", schema_of("a.b long, t string").jsonValue()),
                    ("last", "long"),
                )
            ],
        }
    )
    rows: list[dict[str, Any]] = [
        {"l": [1, 2], "m": [("k", 1)], "s": {"a.b": 5, "t": "x"}, "last": 9},
        {"l": None, "m": None, "s": None, "last": 8},
    ]
    found = statistics_of(tmp_path, schema, rows)
    assert found["minValues"] == {"s": {"a.b": 5, "t": "x"}, "last": 8}
    assert found["maxValues"] == {"s": {"a.b": 5, "t": "x"}, "last": 9}
    assert found["nullCount"] == {"s": {"a.b": 1, "t": 1}, "last": 0}


def test_a_column_with_nan_has_no_bounds_because_nan_is_greater_than_any(tmp_path: Path) -> None:
    found = statistics_of(tmp_path, schema_of("f double"), [{"f": 1.0}, {"f": float("nan")}])
    assert found["maxValues"] == {}
    assert found["nullCount"] == {"f": 0}


def test_infinite_bounds_are_left_out_as_json_has_no_word_for_them(tmp_path: Path) -> None:
    found = statistics_of(tmp_path, schema_of("f float"), [{"f": float("inf")}, {"f": 1.0}])
    assert found["maxValues"] == found["minValues"] == {}


def test_only_the_first_columns_have_statistics(tmp_path: Path) -> None:
    (file,) = write_files(
        options_of(tmp_path / "t"),
        schema_of("a long, b long"),
        [{"a": 1, "b": None}],
        columns_with_statistics=1,
    )
    assert json.loads(file.statistics)["nullCount"] == {"a": 0}
    assert file.columns_with_nulls == {"b"}


def test_times_are_rounded_outwards_to_milliseconds() -> None:
    moment = datetime(2026, 1, 1, 12, 0, 0, 123_456, UTC)
    assert lower_bound(moment) == "2026-01-01T12:00:00.123Z"
    assert upper_bound(moment) == "2026-01-01T12:00:00.124Z"
    local = datetime.fromisoformat("2026-01-01T23:59:59.999999")
    assert upper_bound(local) == "2026-01-02 00:00:00.000"
    assert upper_bound(datetime.max.replace(tzinfo=UTC)) is None


def test_long_texts_are_cut_and_the_upper_bound_stays_above_them() -> None:
    text = "a" * 31 + "é" + "rest"
    assert lower_bound(text) == "a" * 31 + "é"
    above = upper_bound(text)
    assert above.encode() > text.encode()
    assert len(above) == 33
    assert upper_bound("a" * 32 + "\U0010ffff") is None


def test_decimals_that_json_would_round_are_left_out() -> None:
    assert upper_bound(Decimal("0.10")) == 0.1
    assert upper_bound(Decimal("12345678901234567890.123456789")) is None


def test_a_reader_that_skips_files_by_their_statistics_finds_every_row(tmp_path: Path) -> None:
    table = tmp_path / "t"
    schema = schema_of("at timestamp, s string")
    moments = [datetime(2026, 1, 1, 0, 0, 0, us, UTC) for us in (1, 999, 1000, 1001, 999_999)]
    for moment in moments:
        commit(options_of(table), schema, [{"at": moment, "s": "x" * 40 + str(moment)}])
    opened = DeltaTable(str(table)).to_pyarrow_dataset()
    import pyarrow.dataset as ds

    for moment in moments:
        assert opened.to_table(filter=ds.field("at") == moment).num_rows == 1
        assert opened.to_table(filter=ds.field("s") == "x" * 40 + str(moment)).num_rows == 1
