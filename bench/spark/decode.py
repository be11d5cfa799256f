"""`python -m bench.spark.decode`: rows/s of strict `decode(json=…)` and of Spark's own `from_json`.

Both read the same files of records, one after the other, in one session, into nothing (`noop`); who
is first changes. The first turn of each is left out. All records are good ones.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.spark.source_job import _cpu_s, _take_cores

_SCHEMA = "id BIGINT NOT NULL, at TIMESTAMP, shop STRING, cents INT, rate DOUBLE"
_VALUE = """
    concat('{"id": ', id, ', "at": "2026-01-31T12:', lpad(id % 60, 2, '0'), ':00Z", "shop": "shop-',
        id % 1000, '", "cents": ', id % 9973, ', "rate": ', id % 100, '.25}')
"""
_RECORDS = f"""
    cast(null AS binary) AS key, cast({_VALUE} AS binary) AS value, 'orders' AS topic,
    0 AS partition, id AS offset, timestamp_seconds(id) AS timestamp
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    _take_cores(arguments.cores)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with tempfile.TemporaryDirectory(prefix="suwi-bench-") as directory:
        results = _measure(arguments, Path(directory))
    for one in results:
        print(json.dumps(one), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


def _measure(arguments: argparse.Namespace, home: Path) -> list[dict[str, Any]]:
    from suwi.spark import open_session

    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "2g",
        "spark.local.dir": str(home / "scratch"),
        "spark.sql.session.timeZone": "UTC",
    }
    spark = open_session("bench", settings, master=f"local[{arguments.cores}]")
    spark.sparkContext.setLogLevel("ERROR")
    records = str(home / "records")
    spark.sql(f"SELECT {_RECORDS} FROM range({arguments.rows})").write.parquet(records)
    found: dict[str, list[tuple[float, float]]] = {"decode": [], "from_json": []}
    for number in range(arguments.repetitions + 1):
        for way in sorted(found, reverse=number % 2 == 0):
            found[way].append(_decode(spark.read.parquet(records), way))
    spark.stop()
    return [
        {
            "way": way,
            "cores": arguments.cores,
            "rows_per_s": round(statistics.median(arguments.rows / wall_s for wall_s, _ in turns)),
            "cpu_us_per_row": round(
                statistics.median(cpu_s for _, cpu_s in turns) / arguments.rows * 1e6, 3
            ),
        }
        for way, (_, *turns) in found.items()
    ]


def _decode(records: Any, way: str) -> tuple[float, float]:
    from pyspark.sql import functions as f

    from suwi.spark import decode

    if way == "decode":
        rows = decode(records, json=_SCHEMA).good
    else:
        row = f.from_json(records["value"].cast("string"), _SCHEMA)
        kept = [name for name in records.columns if name != "value"]
        rows = records.select(row.alias("row"), *kept).select("row.*", *kept)
    cpu_s, began_s = _cpu_s(), time.perf_counter()
    rows.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began_s, _cpu_s() - cpu_s


if __name__ == "__main__":
    main()
