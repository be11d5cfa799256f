"""`python -m bench [--quick] [--only JOB] [--against SRC] [--redraw]`"""

import argparse
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench import overview, report, versions
from bench.base_env import ROOT, base_python
from bench.homes import why_no_kafka
from bench.jobs import (
    access,
    cluster_failover,
    cluster_load,
    cluster_size,
    console,
    fairness,
    groups,
    java,
    latency,
    librdkafka,
    partitions,
    raw,
    restart,
    stalls,
    startup,
    transactions,
    warm_up,
)
from bench.loop_pages import FAIRNESS_PAGE, STALLS
from bench.measure import Figure
from bench.pages import (
    ACCESS_PAGE,
    BROKER,
    CLUSTER_PAGE,
    CONSOLE_PAGE,
    GROUPS_PAGE,
    TRANSACTIONS_PAGE,
    Page,
)
from bench.plan import FULL, QUICK, VERSIONS, Plan
from bench.rig import Rig, rig
from bench.servers import KAFKA, SUWI
from bench.spark import page as spark_page

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
    "partitions": partitions.measure,
}
# Other pages: what is measured for each, one after another.
PAGES: dict[str, tuple[Page, Sequence[Callable[[Plan, tuple[str, ...]], list[Figure]]]]] = {
    "stalls": (STALLS, [stalls.measure]),
    "fairness": (FAIRNESS_PAGE, [fairness.measure]),
    "groups": (GROUPS_PAGE, [groups.measure]),
    "transactions": (TRANSACTIONS_PAGE, [transactions.measure]),
    "console": (CONSOLE_PAGE, [console.measure]),
    "access": (ACCESS_PAGE, [access.measure]),
    "cluster": (
        CLUSTER_PAGE,
        [
            cluster_load.measure_replicated,
            cluster_failover.measure_kills,
            cluster_failover.measure_coordinator,
            cluster_size.measure_leaders,
            cluster_size.measure_start,
        ],
    ),
}
MINUTES = """\
Minutes of a full run on two idle cores (of a quick one): transactions 25 (3), cluster 40 (6),
console 5 (1), access 3 (1), spark 10 (4), each part of it, as spark-outputs, about 2 (1). What
takes much longer has fewer repetitions, so that none takes more than about 80.
"""
# Jobs in which two versions of Suwi are compared.
RACE = "race"
SPARK = "spark"
SPARK_PARTS = {f"{SPARK}-{job}": job for job in spark_page.JOBS}
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
    missing = why_no_kafka()
    if missing:
        print(f"Without Apache Kafka: {missing}", file=sys.stderr)
    base_python()
    jobs = list(options.only or EVERYTHING)
    failed = _race_versions(options, jobs, missing) if RACE in jobs else []
    failed += _race_kafka(options, jobs, missing)
    failed += _pages(options, jobs, missing)
    spark_jobs = [job for part, job in SPARK_PARTS.items() if part in jobs or SPARK in jobs]
    if spark_jobs:
        out = _out(options, is_whole=True)
        failed += spark_page.measure(out, spark_jobs, quick=options.quick)
        _write_overview(out)
    print(f"after {time.perf_counter() - started:.0f} s", file=sys.stderr)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measure the broker.", epilog=MINUTES
    )
    parser.add_argument("--quick", action="store_true", help="less of everything, a few minutes")
    parser.add_argument(
        "--only",
        action="append",
        choices=[*EVERYTHING, *SPARK_PARTS, RACE],
        help="one job; repeatable",
    )
    parser.add_argument(
        "--against",
        type=Path,
        help="with `--only race`: compare with the version of Suwi in this `src` directory",
    )
    parser.add_argument(
        "--redraw", action="store_true", help="no run: pages and picture from existing results"
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
        BROKER.write(out, results)  # now, in case the run is interrupted
    _show(BROKER, out, results)
    return failed


def _show(page: Page, out: Path, results: report.Results) -> None:
    """The rows of a page that was written, and the overview that has them too."""
    for row in page.rows(results.figures):
        print(row)
    _write_overview(out)
    print(f"wrote {out / page.name}.md", file=sys.stderr)


def _write_overview(out: Path) -> None:
    sections = []
    for page in (BROKER, *(page for page, _ in PAGES.values())):
        if results := page.read(out):
            rows = page.rows(results.figures)
            sections.append(overview.Section(page.name, page.title, results.date, rows))
    overview.write(out, [*sections, *spark_page.sections(out)])


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
        _show(page, out, results)
    return failed


def _race_versions(options: argparse.Namespace, jobs: list[str], missing: str | None) -> list[str]:
    """Only the jobs that are named beside `race`, if any."""
    plan = QUICK if options.quick else VERSIONS
    named = [name for name in jobs if name != RACE]
    shared = {name: job for name, job in SHARED.items() if not named or name in named}
    own = {name: job for name, job in OWN.items() if not named or name in named}
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
    for page in (BROKER, *(page for page, _ in PAGES.values())):
        if results := page.read(out):
            page.render(out, results)
    spark_page.redraw(out)
    _write_overview(out)


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
