"""Tables that the Iceberg sink writes, read by Iceberg's own classes, in the jar for Spark.

Not by SQL of Spark: that jar is for Spark 4.1, and its catalog does not load in later ones.
"""

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install .[spark]")
pytest.importorskip("pyiceberg", reason="pyiceberg is not installed: pip install .[iceberg]")
pytest.importorskip("duckdb", reason="DuckDB is not installed: pip install .[spark-tests]")

from pyspark.sql.types import ArrayType, StructField, StructType

from compat.kafka import Unavailable, run_java
from compat.spark_connector import iceberg_jars
from suwi.spark.origin import Origin
from tests.spark.delta.tables import schema_of
from tests.spark.iceberg.tables import NAME, commit, load, options_of

NEEDS_KAFKA = False
_INSIDE = [
    *schema_of("x long").fields,
    StructField("l", ArrayType(schema_of("d double")[0].dataType)),
]
SCHEMA = StructType(
    [
        *schema_of("id long, at timestamp, text string, price decimal(10,2)").fields,
        StructField("st", StructType(_INSIDE)),
    ]
)
TEXTS = ("apple", "avocado", "북", None)


def row(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "at": datetime(1969, 12, 30 + number % 2, 23, 59, 59, 999_999, UTC),
        "text": TEXTS[number % 4],
        "price": None,
        "st": {"x": number, "l": [0.5, None]},
    }


def read(warehouse: Path, *conditions: str) -> dict[str, list[str]]:
    """What Iceberg's classes say, by the first word."""
    try:
        jars = iceberg_jars()
    except Unavailable as reason:
        pytest.skip(str(reason))
    source = str(Path(__file__).with_name("ReadIceberg.java"))
    printed = run_java(source, str(warehouse), NAME, *conditions, jars=":".join(jars))
    found: dict[str, list[str]] = {"file": [], "row": [], "where": []}
    for line in printed.splitlines():
        kind, _, rest = line.partition(" ")
        if kind in found:
            found[kind].append(rest)
    return found


def test_icebergs_own_classes_read_what_is_written_and_both_write_on(tmp_path: Path) -> None:
    options = options_of(
        tmp_path,
        partitionBy="day(at), bucket(4, id), truncate(1, text)",
        mergeSchema="true",
    )
    commit(options, SCHEMA, [row(number) for number in range(12)], Origin("query", 0, "run"))
    more = StructType([*SCHEMA.fields, *schema_of("twice long").fields])
    commit(options, more, [{**row(12), "twice": 24}], Origin("query", 1, "run"))

    conditions = [*(f"id EQ {number}" for number in range(13)), "text EQ 북"]
    conditions += ["at LT 1969-12-31T00:00:00Z", "twice GT_EQ 0", "price NOT_NULL"]
    found = read(tmp_path, *conditions)
    assert [line.split(" Record(", 1)[1] for line in found["row"][-2:]] == [
        "11, 1969-12-31T23:59:59.999999Z, null, null, Record(11, [0.5, null]), null)",
        "12, 1969-12-30T23:59:59.999999Z, apple, null, Record(12, [0.5, null]), 24)",
    ]
    # Each file has the rows that their transforms put into its partition.
    computed = Counter(line.split(" Record(", 1)[0] for line in found["row"])
    files: Counter[str] = Counter()
    for line in found["file"]:
        partition, rows = line.rsplit(" ", 1)
        files[partition] += int(rows)
    assert files == computed
    assert computed.total() == 13
    assert found["where"] == [
        *(f"id EQ {number} [{number}]" for number in range(13)),
        "text EQ 북 [2, 6, 10]",
        "at LT 1969-12-31T00:00:00Z [0, 2, 4, 6, 8, 10, 12]",
        "twice GT_EQ 0 [12]",
        "price NOT_NULL []",
    ]

    # They have committed a snapshot: what is replayed is still known, and the next batch comes in.
    assert commit(
        options, more, [{**row(12), "twice": 24}], Origin("query", 1, "new")
    ).is_suppressed
    commit(options, SCHEMA, [row(13)], Origin("query", 2, "new"))
    assert len(read(tmp_path)["row"]) == 14
    operations = [one.summary and one.summary.operation.value for one in load(tmp_path).snapshots()]
    assert operations == ["append", "append", "replace", "append", "replace"]
