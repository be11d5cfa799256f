"""`python -m bench [--quick] [--only JOB] [--skip JOB] [--against SRC] [--no-kafka] [--redraw]`"""

import argparse
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench import pages, report, versions
from bench.base_env import ROOT, base_python
from bench.cluster_page import CLUSTER_PAGE
from bench.group_page import GROUPS_PAGE
from bench.homes import why_no_kafka
from bench.jobs import (
    cluster_failover,
    cluster_load,
    cluster_size,
    connections,
    failover,
    fairness,
    groups,
    java,
    latency,
    librdkafka,
    memory,
    partitions,
    raw,
    replicated,
    restart,
    stalls,
    startup,
    transactions,
    warm_up,
)
from bench.measure import Figure
from bench.plan import FULL, QUICK, VERSIONS, Plan
from bench.rig import Rig, rig
from bench.servers import KAFKA, SUWI
from bench.spark import page as spark_page
from bench.transactions_page import TRANSACTIONS_PAGE

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
# Parts with their own page: what is measured for it, one after another.
PAGES: dict[str, tuple[pages.Page, Sequence[Callable[[Plan, tuple[str, ...]], list[Figure]]]]] = {
    "stalls": (pages.STALLS, [stalls.measure]),
    "fairness": (pages.FAIRNESS, [fairness.measure]),
    "groups": (GROUPS_PAGE, [groups.measure]),
    "transactions": (TRANSACTIONS_PAGE, [transactions.measure]),
    "cluster": (
        CLUSTER_PAGE,
        [
            cluster_load.measure_replicated,
            cluster_failover.measure_kills,
            cluster_failover.measure_vanished,
            cluster_failover.measure_coordinator,
            cluster_size.measure_leaders,
            cluster_size.measure_start,
            cluster_load.measure_processes,
        ],
    ),
}
MINUTES = """\
Minutes of a full run on two idle cores (of a quick one): transactions 25 (3), cluster 40 (6),
spark 8 (3). What takes much longer has fewer repetitions, so that none takes more than about 80.
"""
# Jobs in which two versions of Suwi are compared.
RACE = "race"
RACED_OWN = ("startup", "restart", "connections", "partitions")
SPARK = "spark"
EVERYTHING = [*SHARED, *OWN, *PAGES, SPARK]
DOCUMENTS = ROOT / "docs" / "benchmarks"
SCRATCH = ROOT / "build" / "bench"


def main() -> None:
    options = _options()
    # A normal exit, so that servers and clients end, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if options.redraw:
        _redraw(options.out or DOCUMENTS)
        return
    started = time.perf_counter()
    missing = "not asked for" if options.no_kafka else why_no_kafka()
    if missing:
        print(f"Without Apache Kafka: {missing}", file=sys.stderr)
    base_python()
    jobs = [name for name in options.only or EVERYTHING if name not in options.skip]
    failed = _race_versions(options, jobs, missing) if RACE in jobs else []
    failed += _race_kafka(options, jobs, missing)
    failed += _pages(options, jobs, missing)
    if SPARK in jobs:
        failed += spark_page.measure(_out(options, is_whole=True), quick=options.quick)
    print(f"after {time.perf_counter() - started:.0f} s", file=sys.stderr)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measure the broker.", epilog=MINUTES
    )
    parser.add_argument("--quick", action="store_true", help="less of everything, a few minutes")
    parser.add_argument(
        "--only", action="append", choices=[*EVERYTHING, RACE], help="one job; repeatable"
    )
    parser.add_argument(
        "--skip", action="append", choices=EVERYTHING, default=[], help="not this one"
    )
    parser.add_argument(
        "--against",
        type=Path,
        help="with `--only race`: compare with the version of Suwi in this `src` directory",
    )
    parser.add_argument("--no-kafka", action="store_true", help="do not measure Apache Kafka")
    parser.add_argument(
        "--redraw", action="store_true", help="no run: tables and charts from existing results"
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="where results go; default: docs/benchmarks for a complete run, "
        "build/bench for others",
    )
    options = parser.parse_args()
    if (RACE in (options.only or [])) != (options.against is not None):
        parser.error("`--only race` and `--against SRC` must be used together")
    if options.against is not None:
        options.against = options.against.resolve()
        versions.check_source(options.against)
    return options


def _out(options: argparse.Namespace, *, is_whole: bool) -> Path:
    """A quick or partial run does not replace the documented results."""
    if options.out is not None:
        out: Path = options.out
        return out
    return DOCUMENTS if is_whole and not options.quick else SCRATCH


def _race_kafka(options: argparse.Namespace, jobs: list[str], missing: str | None) -> list[str]:
    """Run the jobs of `results.json`; returns those that failed."""
    wanted = [name for name in jobs if name in SHARED or name in OWN]
    if not wanted:
        return []
    plan = QUICK if options.quick else FULL
    out = _out(options, is_whole=set(wanted) == {*SHARED, *OWN})
    results = report.Results(plan.name, report.machine(missing), [])
    failed = []
    for name, figures in measure(plan, wanted, with_kafka=not missing):
        if figures is None:
            failed.append(name)
            continue
        results.figures.extend(figures)
        report.write(out, results)  # now, in case the run is interrupted
    report.show(report.write(out, results))
    print(f"wrote {out}", file=sys.stderr)
    return failed


def _pages(options: argparse.Namespace, jobs: list[str], missing: str | None) -> list[str]:
    plan = QUICK if options.quick else FULL
    brokers = (SUWI,) if missing else (SUWI, KAFKA)
    failed = []
    for name in [name for name in PAGES if name in jobs]:
        page, jobs_of_page = PAGES[name]
        results = report.Results(plan.name, report.machine(missing), [])
        out = _out(options, is_whole=True)
        for job in jobs_of_page:
            figures = _attempt(job, plan, brokers)
            if figures is None:
                failed.append(f"{name} ({job.__name__})")
                continue
            results.figures.extend(figures)
            page.write(out, results)  # now, in case the run is interrupted
        for finding in page.findings(results.figures):
            print(finding)
        print(f"wrote {out / page.name}.md", file=sys.stderr)
    return failed


def _race_versions(options: argparse.Namespace, jobs: list[str], missing: str | None) -> list[str]:
    """Only the jobs that are named beside `race`, if any."""
    plan = QUICK if options.quick else VERSIONS
    named = [name for name in jobs if name != RACE]
    shared = {name: job for name, job in SHARED.items() if not named or name in named}
    own = {name: OWN[name] for name in RACED_OWN if not named or name in named}
    jobs.clear()  # versions of Suwi, not Kafka
    results = report.Results(plan.name, report.machine(missing), [])
    out = _out(options, is_whole=False)
    source = options.against
    for figures in versions.measure(plan, source, shared, own, with_java=not missing):
        results.figures.extend(figures)
        versions.write(out, results, source)
    versions.show(versions.write(out, results, source))
    print(f"wrote {out / 'versions.md'}", file=sys.stderr)
    return []


def _redraw(out: Path) -> None:
    for page, _ in PAGES.values():
        if (out / f"{page.name}.json").exists():
            page.write(out, report.read(out / f"{page.name}.json"))
    spark_page.redraw(out)
    report.show(report.write(out, report.read(out / "results.json")))


def measure(
    plan: Plan, jobs: list[str], *, with_kafka: bool
) -> Iterator[tuple[str, list[Figure] | None]]:
    """The figures of one job after the other; None for a failed one, which stops no other."""
    brokers = (SUWI, KAFKA) if with_kafka else (SUWI,)
    if shared := [name for name in SHARED if name in jobs]:
        with rig(plan, brokers, with_java=with_kafka) as running:
            warm_up.everything(running)
            for name in shared:
                yield name, _attempt(SHARED[name], running)
    for name in [name for name in OWN if name in jobs]:
        yield name, _attempt(OWN[name], plan, brokers)


def _attempt(job: Callable[..., list[Figure]], *arguments: object) -> list[Figure] | None:
    try:
        return job(*arguments)
    except Exception:
        traceback.print_exc()
        return None


if __name__ == "__main__":
    main()
