"""`python -m bench.spark.source`: rows/s of `format("suwi")` and of Spark's Kafka connector.

Both read the same topics of the same broker in the same session, one after the other, into nothing
(`noop`). With `local[N]` the JVM and its Python workers together get N of the machine's CPUs, if it
has more. CPU is that of all these processes. The first two reads of each are left out: workers
start, and code is compiled; how long the very first took is a figure of its own. What is left of
Python's start is in every figure: a batch query is planned by processes of its own.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.base_env import ROOT
from compat.spark_connector import connector_jars
from tests.broker_process import BrokerProcess

_PARTITIONS = 2


def main() -> None:
    arguments = _arguments()
    topics = [
        (f"{value_bytes}-{codec}", value_bytes, codec)
        for value_bytes in arguments.value_bytes
        for codec in arguments.codecs
    ]
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="suwi-bench-") as directory:
        home = Path(directory)
        with BrokerProcess(home / "broker") as broker:
            rows = {name: _rows(arguments.rows, value_bytes) for name, value_bytes, _ in topics}
            for name, value_bytes, codec in topics:
                fill(broker.address, name, rows[name], value_bytes, codec)
            for cores in arguments.cores:
                found = run(broker.address, rows, cores, arguments.repetitions, home)
                results += summarize(found, rows, cores)
    print(json.dumps(results, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000, help="of 100 B")
    parser.add_argument("--value-bytes", type=int, nargs="*", default=[100, 1000])
    parser.add_argument("--codecs", nargs="*", default=["none", "zstd"])
    parser.add_argument("--cores", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def _rows(rows: int, value_bytes: int) -> int:
    """Fewer large ones, so that every topic takes about as long."""
    return rows if value_bytes <= 100 else rows // 4


def fill(
    servers: str,
    topic: str,
    count: int,
    value_bytes: int,
    codec: str = "none",
    *,
    partitions: int = _PARTITIONS,
    value_of: Callable[[int], bytes] | None = None,
) -> None:
    """`value_of`: the value of each record, by its number; without it any digits."""
    settings = {"bootstrap.servers": servers, "log_level": 3}
    admin = AdminClient(settings)  # It must live until it has answered.
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(60)
    producer = Producer(
        {
            **settings,
            "linger.ms": 20,
            "batch.size": 64 * 1024,
            "compression.type": codec,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    # Digits that differ, as values do; the same bytes again and again would compress to nothing.
    pool = os.urandom(1 << 20).hex().encode()
    for number in range(count):
        at = number * 31 % (len(pool) - value_bytes)
        value = pool[at : at + value_bytes] if value_of is None else value_of(number)
        while True:
            try:
                producer.produce(topic, value, partition=number % partitions)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 10_000 == 0:
            producer.poll(0)
    assert producer.flush(120) == 0


def run(
    servers: str, rows: dict[str, int], cores: int, repetitions: int, home: Path
) -> list[dict[str, Any]]:
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "bench.spark.source_job",
            f"--servers={servers}",
            f"--topics={','.join(rows)}",
            f"--cores={cores}",
            f"--repetitions={repetitions}",
            f"--jars={','.join(connector_jars())}",
            f"--scratch={tempfile.mkdtemp(dir=home)}",
        ],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def summarize(
    found: list[dict[str, Any]], rows: dict[str, int], cores: int
) -> list[dict[str, Any]]:
    results = []
    for topic, count in rows.items():
        for source in ("suwi", "kafka"):
            lines = [each for each in found if (each["topic"], each["format"]) == (topic, source)]
            first = lines.pop(0)
            assert first["count"] == count, "not every row was read"
            warm = [each for each in lines if not each["is_first"]]
            rates = [count / each["wall_s"] for each in warm]
            results.append(
                {
                    "topic": topic,
                    "format": source,
                    "cores": cores,
                    "rows_per_s": round(statistics.median(rates)),
                    "rows_per_s_best": round(max(rates)),
                    "cpu_us_per_row": round(
                        statistics.median(each["cpu_s"] for each in warm) / count * 1e6, 3
                    ),
                    "first_read_s": round(first["wall_s"], 2),
                    "worker_mb": max(each["worker_mb"] for each in lines),
                    "values": [round(rate) for rate in rates],
                }
            )
    return results


if __name__ == "__main__":
    main()
