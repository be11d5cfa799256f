"""`python -m bench [--quick] [--only JOB] [--no-kafka]`"""

import argparse
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from bench import report
from bench.base_env import ROOT, base_python
from bench.homes import why_no_kafka
from bench.jobs import (
    connections,
    java,
    latency,
    librdkafka,
    memory,
    partitions,
    raw,
    restart,
    startup,
    warm_up,
)
from bench.measure import Figure
from bench.plan import FULL, QUICK, Plan
from bench.rig import Rig, rig
from bench.servers import KAFKA, SUWI

# Jobs that share running brokers, and jobs that start their own.
SHARED: dict[str, Callable[[Rig], list[Figure]]] = {
    "java": java.measure,
    "librdkafka": librdkafka.measure,
    "produce": raw.measure_produce,
    "fetch": raw.measure_fetch,
    "latency": latency.measure,
}
OWN: dict[str, Callable[[Plan, tuple[str, ...]], list[Figure]]] = {
    "startup": startup.measure,
    "restart": restart.measure,
    "connections": connections.measure,
    "partitions": partitions.measure,
    "memory": memory.measure,
}


def main() -> None:
    options = _options()
    # An exit like any other, so that servers and clients end with us.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    started = time.perf_counter()
    if options.redraw:
        report.show(report.write(options.out, report.read(options.out)))
        return
    plan = QUICK if options.quick else FULL
    missing = "not asked for" if options.no_kafka else why_no_kafka()
    if missing:
        print(f"Without the columns of Apache Kafka: {missing}", file=sys.stderr)
    base_python()
    about = report.machine(missing)
    figures, failed = measure(plan, options.only or [*SHARED, *OWN], with_kafka=not missing)
    report.show(report.write(options.out, report.Results(plan.name, about, figures)))
    took_s = time.perf_counter() - started
    print(f"wrote {options.out} after {took_s:.0f} s", file=sys.stderr)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure the broker.")
    parser.add_argument("--quick", action="store_true", help="less of everything, a few minutes")
    parser.add_argument(
        "--only", action="append", choices=[*SHARED, *OWN], help="one job; repeatable"
    )
    parser.add_argument("--no-kafka", action="store_true", help="do not race Apache Kafka")
    parser.add_argument(
        "--redraw", action="store_true", help="no run: table and picture from results.json"
    )
    parser.add_argument(
        "--out", type=Path, default=ROOT / "docs" / "benchmarks", help="where results go"
    )
    return parser.parse_args()


def measure(plan: Plan, jobs: list[str], *, with_kafka: bool) -> tuple[list[Figure], list[str]]:
    """All figures, and which jobs failed: one that does leaves the others alone."""
    figures: list[Figure] = []
    failed: list[str] = []

    def attempt(name: str, job: Callable[..., list[Figure]], *arguments: object) -> None:
        try:
            figures.extend(job(*arguments))
        except Exception:
            traceback.print_exc()
            failed.append(name)

    if shared := [name for name in SHARED if name in jobs]:
        with rig(plan, with_kafka=with_kafka) as running:
            warm_up.everything(running)
            for name in shared:
                attempt(name, SHARED[name], running)
    brokers = (SUWI, KAFKA) if with_kafka else (SUWI,)
    for name in [name for name in OWN if name in jobs]:
        attempt(name, OWN[name], plan, brokers)
    return figures, failed


main()
