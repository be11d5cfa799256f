"""`python -m bench [--quick] [--long] [--only JOB]`"""

import argparse
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

from bench import chart, report
from bench.base_env import ROOT
from bench.goals import judge
from bench.jobs import clients, latency, memory, raw, startup
from bench.measure import Figure
from bench.plan import FULL, QUICK, Plan
from bench.servers import mock_cluster, suwi, temporary_directory

JOBS = ("produce", "fetch", "clients", "latency", "startup", "memory")
_TRAFFIC_GB = 10


def main() -> None:
    options = _options()
    # An exit like any other, so that servers and clients end with us.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    plan = QUICK if options.quick else FULL
    if options.long:
        plan = replace(plan, name=f"{plan.name}, long", traffic_gb=_TRAFFIC_GB)
    started = time.perf_counter()
    about = report.machine()
    figures = measure(plan, options.only or JOBS)
    verdicts = judge(figures)
    report.write(options.out, plan.name, about, figures, verdicts)
    chart.draw(options.out / "results.svg", figures)
    report.show(verdicts)
    took_s = time.perf_counter() - started
    print(f"wrote {options.out} after {took_s:.0f} s", file=sys.stderr)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure the broker.")
    parser.add_argument("--quick", action="store_true", help="less of everything, under a minute")
    parser.add_argument("--long", action="store_true", help=f"add {_TRAFFIC_GB} GB of traffic")
    parser.add_argument("--only", action="append", choices=JOBS, help="one job; repeatable")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "docs" / "benchmarks", help="where results go"
    )
    return parser.parse_args()


def measure(plan: Plan, jobs: tuple[str, ...] | list[str]) -> list[Figure]:
    figures: list[Figure] = []
    with temporary_directory() as work_dir, suwi() as broker, mock_cluster() as mock:
        if "produce" in jobs:
            figures += raw.measure_produce(plan, broker, mock, work_dir)
        if "fetch" in jobs:
            figures += raw.measure_fetch(plan, broker, mock, work_dir)
        if "clients" in jobs:
            figures += clients.measure(plan, broker, mock)
        if "latency" in jobs:
            figures += latency.measure(plan, broker)
    if "startup" in jobs:
        figures += startup.measure(plan)
    if "memory" in jobs:
        figures += memory.measure(plan)
    return figures


main()
