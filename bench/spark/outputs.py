"""`python -m bench.spark.outputs`: CPU of two outputs of one read and of two pipelines.

Both copy the same topic into two Delta tables in one session: a query with two outputs, or two
queries, which run beside each other and read all of it each. A row goes to one of the tables. The
records are taken as they are, or decoded from JSON. They come in turns; the first turn of each is
left out. CPU is that of the JVM and its Python workers.
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

COPIED, DECODED = "copied", "decoded from JSON"
_CONDITIONS = {
    COPIED: {"even": "offset % 2 = 0", "odd": "offset % 2 = 1"},
    DECODED: {"paid": "cents % 2 = 0", "open": "cents % 2 = 1"},
}
_SCHEMA = "id BIGINT NOT NULL, at TIMESTAMP, shop STRING, cents INT NOT NULL, rate DOUBLE"
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
        for topic, value_of in ((COPIED, None), (DECODED, _order)):
            name = topic.split()[0]
            fill(
                broker.address,
                name,
                arguments.rows,
                _VALUE_BYTES,
                partitions=_PARTITIONS,
                value_of=value_of,
            )
        # After the broker has started, which keeps all cores.
        _take_cores(arguments.cores)
        results = _measure(arguments, broker.address, Path(directory))
    for one in results:
        print(json.dumps(one), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


def _order(number: int) -> bytes:
    return (
        f'{{"id": {number}, "at": "2026-01-31T12:{number % 60:02}:00Z", '
        f'"shop": "shop-{number % 1000}", "cents": {number * 7 % 9973}, "rate": {number % 100}.25}}'
    ).encode()


def _measure(arguments: argparse.Namespace, servers: str, home: Path) -> list[dict[str, Any]]:
    from suwi.spark import decode, open_session, register

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
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(arguments.rows // _BATCHES),
        }
    )
    found: dict[tuple[str, str], list[tuple[float, float]]] = {
        (rows, way): [] for rows in _CONDITIONS for way in ("one read", "two pipelines")
    }
    for number in range(arguments.repetitions + 1):
        for rows, way in sorted(found, reverse=number % 2 == 0):
            read = source.option("subscribe", rows.split()[0]).load()
            if rows == DECODED:
                read = decode(read, json=_SCHEMA).good
            else:
                read = read.select("partition", "offset", "timestamp", "value")
            at = home / f"{rows} {way} {number}"
            found[rows, way].append(_copy(read, _CONDITIONS[rows], way, at, arguments.rows))
    spark.stop()
    return [
        {
            "rows": rows,
            "way": way,
            "cores": arguments.cores,
            "rows_per_s": round(statistics.median(arguments.rows / wall_s for wall_s, _ in turns)),
            "cpu_us_per_row": round(
                statistics.median(cpu_s for _, cpu_s in turns) / arguments.rows * 1e6, 3
            ),
        }
        for (rows, way), (_, *turns) in found.items()
    ]


def _copy(
    rows: Any, conditions: dict[str, str], way: str, home: Path, count: int
) -> tuple[float, float]:
    from deltalake import DeltaTable

    from suwi.spark import delta_output, to_delta, to_outputs

    tables = {name: str(home / name) for name in conditions}
    now: dict[str, Any] = {"availableNow": True}
    cpu_s, began_s = _cpu_s(), time.perf_counter()
    if way == "one read":
        outputs = {name: delta_output(tables[name], when=when) for name, when in conditions.items()}
        queries = [to_outputs(rows, outputs, checkpoint=str(home / "checkpoint"), trigger=now)]
    else:
        queries = [
            to_delta(rows.where(when), tables[name], checkpoint=f"{tables[name]}-at", trigger=now)
            for name, when in conditions.items()
        ]
    for query in queries:
        assert query is not None
        query.awaitTermination()
    spent = time.perf_counter() - began_s, _cpu_s() - cpu_s
    assert sum(DeltaTable(table).count() for table in tables.values()) == count
    return spent


if __name__ == "__main__":
    main()
