"""`python -m bench [--quick] [--only JOB] [--skip JOB] [--no-kafka] [--redraw]`"""

import argparse
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from bench import report
from bench.base_env import ROOT, base_python
from bench.homes import why_no_kafka
from bench.jobs import (
    connections,
    failover,
    java,
    latency,
    librdkafka,
    memory,
    partitions,
    raw,
    replicated,
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
    "replicated": replicated.measure,
    "failover": failover.measure,
}


def main() -> None:
    options = _options()
    # An exit like any other, so that servers and clients end with us.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if options.redraw:
        report.show(report.write(options.out, report.read(options.out)))
        return
    started = time.perf_counter()
    plan = QUICK if options.quick else FULL
    missing = "not asked for" if options.no_kafka else why_no_kafka()
    if missing:
        print(f"Without the columns of Apache Kafka: {missing}", file=sys.stderr)
    base_python()
    results = report.Results(plan.name, report.machine(missing), [])
    wanted = options.only or [*SHARED, *OWN]
    jobs = [name for name in wanted if name not in options.skip]
    failed = []
    for name, figures in measure(plan, jobs, with_kafka=not missing):
        if figures is None:
            failed.append(name)
            continue
        results.figures.extend(figures)
        report.write(options.out, results)  # now, in case the run does not come to its end
    report.show(report.write(options.out, results))
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
    parser.add_argument(
        "--skip", action="append", choices=[*SHARED, *OWN], default=[], help="not this one"
    )
    parser.add_argument("--no-kafka", action="store_true", help="do not race Apache Kafka")
    parser.add_argument(
        "--redraw", action="store_true", help="no run: table and picture from results.json"
    )
    parser.add_argument(
        "--out", type=Path, default=ROOT / "docs" / "benchmarks", help="where results go"
    )
    return parser.parse_args()


def measure(
    plan: Plan, jobs: list[str], *, with_kafka: bool
) -> Iterator[tuple[str, list[Figure] | None]]:
    """The figures of one job after the other; None for one that failed, which stops no other."""
    if shared := [name for name in SHARED if name in jobs]:
        with rig(plan, with_kafka=with_kafka) as running:
            warm_up.everything(running)
            for name in shared:
                yield name, _attempt(SHARED[name], running)
    brokers = (SUWI, KAFKA) if with_kafka else (SUWI,)
    for name in [name for name in OWN if name in jobs]:
        yield name, _attempt(OWN[name], plan, brokers)


def _attempt(job: Callable[..., list[Figure]], *arguments: object) -> list[Figure] | None:
    try:
        return job(*arguments)
    except Exception:
        traceback.print_exc()
        return None


main()
