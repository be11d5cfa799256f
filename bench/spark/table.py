"""`python -m bench.spark.table`: rows/s of `format("suwi-delta")`, `read_delta` and Spark's Parquet
source.

All read the same files of one table, one after the other, in one session, into nothing (`noop`);
who is first changes. The first read of each is left out. One row count has all columns, the other
one column only. The bound is a source in Python that reads nothing: it yields the first rows of the
table, again and again, as many as the table has.
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

_COLUMNS = (
    "id, id % 97 AS n, concat('value-', id % 1000) AS s, id / 3 AS f, timestamp_seconds(id) AS at"
)


_WAYS = ("suwi-delta", "read_delta", "parquet", "bound")
_BATCH_ROWS = 10_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
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
    from suwi.spark import open_session, register, to_delta

    spark = open_session(
        "bench",
        {
            "spark.ui.enabled": "false",
            "spark.driver.memory": "2g",
            "spark.local.dir": str(home / "scratch"),
        },
        master=f"local[{arguments.cores}]",
    )
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    spark.dataSource.register(_bound(arguments.rows, arguments.cores))
    table = str(home / "table")
    to_delta(spark.sql(f"SELECT {_COLUMNS} FROM range({arguments.rows})"), table)
    results = []
    for columns in ("*", "n"):
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in _WAYS}
        for number in range(arguments.repetitions + 1):
            for source in sorted(found, reverse=number % 2 == 0):
                found[source].append(_read(spark, source, table, columns))
        for source, all_reads in found.items():
            reads = all_reads[1:]
            rates = [arguments.rows / wall_s for wall_s, _ in reads]
            cpu_s = statistics.median(cpu_s for _, cpu_s in reads)
            results.append(
                {
                    "columns": columns,
                    "format": source,
                    "cores": arguments.cores,
                    "rows_per_s": round(statistics.median(rates)),
                    "rows_per_s_best": round(max(rates)),
                    "cpu_us_per_row": round(cpu_s / arguments.rows * 1e6, 3),
                }
            )
    spark.stop()
    return results


def _read(spark: Any, source: str, table: str, columns: str) -> tuple[float, float]:
    from suwi.spark import read_delta

    reader = spark.read.format(source)
    if source in ("suwi-delta", "bound") and columns != "*":
        reader = reader.option("columns", columns)
    cpu_s, began_s = _cpu_s(), time.perf_counter()
    is_ours = source == "read_delta"
    rows = read_delta(spark, table, streaming=False) if is_ours else reader.load(table)
    rows.select(columns).write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began_s, _cpu_s() - cpu_s


def _bound(rows: int, tasks: int) -> Any:
    """The data source that reads nothing. Spark pickles it: all that it needs is inside."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    def first_rows(path: str, columns: str | None) -> Any:
        import pyarrow.parquet as pq

        file = next(Path(path).rglob("*.parquet"))
        names = None if columns is None else [columns]
        return next(pq.ParquetFile(file).iter_batches(_BATCH_ROWS, columns=names))

    class Reader(DataSourceReader):
        def __init__(self, options: Any, schema: Any) -> None:
            self._options, self._schema = options, schema

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(number) for number in range(tasks)]

        def read(self, partition: InputPartition) -> Any:
            import pyarrow as pa
            from pyspark.sql.pandas.types import to_arrow_schema

            batch = first_rows(self._options["path"], self._options.get("columns"))
            kind = to_arrow_schema(self._schema, timezone="UTC")
            batch = pa.RecordBatch.from_arrays(batch.columns, schema=kind)
            for _ in range(rows // tasks // _BATCH_ROWS):
                yield batch

    class Bound(DataSource):
        @classmethod
        def name(cls) -> str:
            return "bound"

        def schema(self) -> Any:
            from pyspark.sql.pandas.types import from_arrow_schema

            return from_arrow_schema(
                first_rows(self.options["path"], self.options.get("columns")).schema
            )

        def reader(self, schema: Any) -> Any:
            return Reader(self.options, schema)

    return Bound


if __name__ == "__main__":
    main()
