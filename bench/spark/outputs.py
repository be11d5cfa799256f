"""`python -m bench.spark.outputs`: CPU of two outputs of one read and of two pipelines.

Both copy the same topic into two Delta tables in one session: a query with two outputs, or two
queries, which run beside each other and read all of it each. A row goes to one of the tables. They
come in turns; the first turn of each is left out. CPU is that of the JVM and its Python workers.
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

from bench.spark.source import fill
from bench.spark.source_job import _cpu_s, _take_cores
from tests.broker_process import BrokerProcess

_CONDITIONS = {"even": "offset % 2 = 0", "odd": "offset % 2 = 1"}
_PARTITIONS = 4
_VALUE_BYTES = 100
_BATCHES = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="suwi-bench-") as directory,
        BrokerProcess(Path(directory) / "broker") as broker,
    ):
        fill(broker.address, "all", arguments.rows, _VALUE_BYTES, partitions=_PARTITIONS)
        # After the broker has started, which keeps all cores.
        _take_cores(arguments.cores)
        results = _measure(arguments, broker.address, Path(directory))
    for one in results:
        print(json.dumps(one), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


def _measure(arguments: argparse.Namespace, servers: str, home: Path) -> list[dict[str, Any]]:
    from suwi.spark import open_session, register

    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "2g",
        "spark.local.dir": str(home / "scratch"),
    }
    spark = open_session("bench", settings, master=f"local[{arguments.cores}]")
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    source = spark.readStream.format("suwi").options(
        **{
            "kafka.bootstrap.servers": servers,
            "subscribe": "all",
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(arguments.rows // _BATCHES),
        }
    )
    found: dict[str, list[tuple[float, float]]] = {"one read": [], "two pipelines": []}
    for number in range(arguments.repetitions + 1):
        for way in sorted(found, reverse=number % 2 == 0):
            rows = source.load().select("partition", "offset", "timestamp", "value")
            found[way].append(_copy(rows, way, home / f"{way} {number}", arguments.rows))
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


def _copy(rows: Any, way: str, home: Path, count: int) -> tuple[float, float]:
    from deltalake import DeltaTable

    from suwi.spark import delta_output, to_delta, to_outputs

    tables = {name: str(home / name) for name in _CONDITIONS}
    now: dict[str, Any] = {"availableNow": True}
    cpu_s, began_s = _cpu_s(), time.perf_counter()
    if way == "one read":
        outputs = {
            name: delta_output(tables[name], when=when) for name, when in _CONDITIONS.items()
        }
        queries = [to_outputs(rows, outputs, checkpoint=str(home / "checkpoint"), trigger=now)]
    else:
        queries = [
            to_delta(rows.where(when), tables[name], checkpoint=f"{tables[name]}-at", trigger=now)
            for name, when in _CONDITIONS.items()
        ]
    for query in queries:
        assert query is not None
        query.awaitTermination()
    spent = time.perf_counter() - began_s, _cpu_s() - cpu_s
    assert sum(DeltaTable(table).count() for table in tables.values()) == count
    return spent


if __name__ == "__main__":
    main()
