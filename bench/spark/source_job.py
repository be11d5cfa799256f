"""The session that is measured: the same topics, read by one format after the other.

It prints one line of JSON for each read: seconds, CPU seconds of the JVM and its workers.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

_TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("servers", "topics", "jars", "scratch"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--cores", type=int, required=True)
    parser.add_argument("--repetitions", type=int, required=True)
    arguments = parser.parse_args()
    _take_cores(arguments.cores)
    spark = _session(arguments)
    topics = arguments.topics.split(",")
    for topic in topics:
        # Counted beforehand: to count while measuring would cost both as much as reading.
        for source in ("suwi", "kafka"):
            began_s = time.perf_counter()
            found = {"count": _rows(spark, source, arguments.servers, topic).count()}
            found |= {"topic": topic, "format": source, "wall_s": time.perf_counter() - began_s}
            print(json.dumps(found), flush=True)
    for number in range(arguments.repetitions + 1):
        for topic in topics:
            # Who is first changes, so that neither always finds a warmer machine.
            formats = ("suwi", "kafka") if number % 2 else ("kafka", "suwi")
            for source in formats:
                found = _read(spark, source, arguments.servers, topic)
                print(json.dumps({**found, "is_first": number == 0, "format": source}), flush=True)
    spark.stop()


def _take_cores(count: int) -> None:
    """The JVM and its workers inherit it."""
    if hasattr(os, "sched_setaffinity"):
        mine = sorted(os.sched_getaffinity(0))
        # From the end: whatever else runs tends to sit on the first.
        os.sched_setaffinity(0, set(mine[-count:]))


def _session(arguments: argparse.Namespace) -> Any:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    from suwi.spark import register

    spark = (
        SparkSession.builder.master(f"local[{arguments.cores}]")
        .config("spark.jars", arguments.jars)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.local.dir", arguments.scratch)
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark


def _rows(spark: Any, source: str, servers: str, topic: str) -> Any:
    return (
        spark.read.format(source)
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .load()
    )


def _read(spark: Any, source: str, servers: str, topic: str) -> dict[str, Any]:
    rows = _rows(spark, source, servers, topic)
    cpu_s, began_s = _cpu_s(), time.perf_counter()
    rows.write.format("noop").mode("overwrite").save()
    wall_s, cpu_s = time.perf_counter() - began_s, _cpu_s() - cpu_s
    return {"topic": topic, "wall_s": wall_s, "cpu_s": cpu_s, "worker_mb": _worker_mb()}


def _processes() -> dict[int, tuple[str, int, float, float]]:
    """Name, parent, CPU seconds (with those of children that ended) and megabytes, by pid."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue
        name = text[text.index("(") + 1 : text.rindex(")")]
        fields = text[text.rindex(")") + 2 :].split()
        cpu_s = sum(int(fields[i]) for i in (11, 12, 13, 14)) / _TICKS
        megabytes = int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / 1e6
        found[int(path.parent.name)] = (name, int(fields[1]), cpu_s, megabytes)
    return found


def _tree() -> list[tuple[str, int, float, float]]:
    processes, tree, waiting = _processes(), [], [os.getpid()]
    while waiting:
        parent = waiting.pop()
        for pid, process in processes.items():
            if process[1] == parent:
                tree.append(process)
                waiting.append(pid)
    return tree


def _cpu_s() -> float:
    return sum(process[2] for process in _tree())


def _worker_mb() -> int:
    """The largest Python worker; the JVM is called java."""
    return round(max((process[3] for process in _tree() if process[0] != "java"), default=0))


if __name__ == "__main__":
    main()
