"""`python -m bench.spark.delta`: topic → table rows/s, the floor of a micro-batch, memory.

Delta tables and Iceberg tables in turns. Throughput is that of whole batches after the first two,
of all turns together, from Spark's own count and clock; the floor is the median time of batches of
a hundred rows. Warm-up is what came before: the session's start, and the first two batches, in
which workers start and load their code. Memory is the most that any process of a kind held.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.base_env import ROOT
from bench.spark.source import fill
from tests.broker_process import BrokerProcess

_FORMS = {"delta": "", "iceberg": "iceberg "}
_CORES = 2
_PARTITIONS = 4
_VALUE_BYTES = 100
_FLOOR_ROWS = 100
_FLOOR_BATCHES = 40
_TURNS = 2
_WARM = 2
"""Batches that are left out: workers start, code is compiled."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=6_000_000)
    parser.add_argument("--batch-rows", type=int, default=500_000)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="suwi-bench-") as directory:
        home = Path(directory)
        with BrokerProcess(home / "broker") as broker:
            fill(
                broker.address,
                "floor",
                _FLOOR_ROWS * _FLOOR_BATCHES,
                _VALUE_BYTES,
                partitions=_PARTITIONS,
            )
            fill(broker.address, "all", arguments.rows, _VALUE_BYTES, partitions=_PARTITIONS)
            turns: dict[str, list[Measured]] = {form: [] for form in _FORMS}
            for _ in range(_TURNS):
                for form in _FORMS:
                    turns[form].append(run(broker, "all", home, arguments.batch_rows, form))
            for form, prefix in _FORMS.items():
                results.append({"job": f"{prefix}all", **throughput(turns[form])})
                found = run(broker, "floor", home, _FLOOR_ROWS, form)
                results.append({"job": f"{prefix}floor", **floor(found)})
    print(json.dumps(results, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


class Measured:
    def __init__(self) -> None:
        self.session_s = 0.0
        self.batches: list[dict[str, Any]] = []
        self.peak_mb: dict[str, float] = {}


def run(broker: BrokerProcess, topic: str, home: Path, batch_rows: int, form: str) -> Measured:
    work = Path(tempfile.mkdtemp(dir=home))
    words = {
        "servers": broker.address,
        "topic": topic,
        "table": str(work / "table"),
        "checkpoint": str(work / "checkpoint"),
        "master": f"local[{_CORES}]",
        "scratch": str(work / "scratch"),
        "rows": str(batch_rows),
        "form": form,
    }
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    measured = Measured()
    job = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "bench.spark.delta_job",
            *(word for name, value in words.items() for word in (f"--{name}", value)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    while job.poll() is None:
        note_memory(job.pid, measured.peak_mb)
        time.sleep(0.5)
    assert job.stdout is not None
    assert job.returncode == 0, "the job failed"
    session, *batches = [json.loads(line) for line in job.stdout]
    measured.session_s, measured.batches = session["session_s"], batches
    return measured


def note_memory(pid: int, peak_mb: dict[str, float]) -> None:
    """Of the JVM and of the Python processes that it started."""
    listed = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,rss=,args="], capture_output=True, text=True, check=True
    )
    children: dict[int, list[tuple[int, int, str]]] = {}
    for line in listed.stdout.splitlines():
        child, parent, kilobytes, command = line.split(None, 3)
        children.setdefault(int(parent), []).append((int(child), int(kilobytes), command))
    waiting = [pid]
    while waiting:
        for child, kilobytes, command in children.get(waiting.pop(), []):
            kind = "jvm" if "java" in command.split(" ")[0] else "worker"
            peak_mb[kind] = max(peak_mb.get(kind, 0), kilobytes * 1024 / 1e6)
            waiting.append(child)


def warm_up(found: Measured) -> dict[str, Any]:
    first, second = (batch["spent_ms"]["triggerExecution"] for batch in found.batches[:2])
    return {
        "session_s": round(found.session_s, 1),
        "first_batch_ms": first,
        "second_batch_ms": second,
    }


def throughput(turns: list[Measured]) -> dict[str, Any]:
    # The last batch is smaller.
    warm = [batch for found in turns for batch in found.batches[_WARM:-1]]
    rates = [batch["rows"] / batch["spent_ms"]["triggerExecution"] * 1000 for batch in warm]
    return {
        "rows_per_s": round(statistics.median(rates)),
        "rows_per_s_best": round(max(rates)),
        "warm_up": warm_up(turns[0]),
        "peak_mb": {
            kind: round(max(found.peak_mb[kind] for found in turns)) for kind in turns[0].peak_mb
        },
    }


def floor(found: Measured) -> dict[str, Any]:
    warm = found.batches[_FLOOR_BATCHES // 4 :]
    spent = [batch["spent_ms"] for batch in warm]
    return {
        "floor_ms": statistics.median(each["triggerExecution"] for each in spent),
        "floor_ms_best": min(each["triggerExecution"] for each in spent),
        "of_which_ms": {
            name: statistics.median(each.get(name, 0) for each in spent) for name in spent[0]
        },
        "warm_up": warm_up(found),
        "peak_mb": {kind: round(size) for kind, size in found.peak_mb.items()},
    }


if __name__ == "__main__":
    main()
