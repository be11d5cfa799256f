"""`make chaos-cluster`: faults of three brokers and three ZooKeeper servers, all real processes.

As `chaos.broker_faults`, and a consumer group commits after processing: it may skip nothing; or,
with `--copiers`, clients copy all records in transactions (`chaos.copiers`). Each run ends by
itself and adds a line to a ledger; `docs/chaos/README.md` is made from it.
"""

import argparse
import random
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from chaos import disks
from chaos.broker_faults import PARTITIONS, Plan, Run
from chaos.copiers import CLIENTS, COPIER_BAG, COPIER_KINDS, CopierCluster, CopierRun
from chaos.copiers import WRITERS as COPIED_WRITERS
from chaos.faults import plan
from chaos.ledger import LEDGER, add_run, last_run, write_page
from chaos.process_cluster import BROKERS, ProcessCluster
from chaos.process_faults import BAG, DISK_KINDS, PROCESS_KINDS
from chaos.report import Report, complaints, conclude
from suwi.local_cluster.zookeeper import why_unavailable

WRITERS = ("librdkafka", "librdkafka-impatient", "librdkafka-bulk")
GROUP_MEMBERS = 2
_FAULTS_MAX = 2_000


EXPECTED_ERRORS = {
    "event loop hangs, session ended": (
        "pause",
        "pause of a transaction coordinator",
        "pause of a leader of copies",
    ),
    "kind=directory-offline": ("failing syncs",),
    "kind=disk-full": ("full disk", "full disk in a roll"),
    "kind=damaged-batch": ("damaged segment",),
    "kind=no-descriptors": ("no descriptors",),
    "kind=connections-refused": ("no descriptors",),
    "too many open files": ("no descriptors",),
    "no space left on": ("full disk", "full disk in a roll"),
}
"""Errors in a broker's log, each with the faults that it reports; others are complaints."""


def process_plan(
    seed: int,
    first: int,
    faults: int | None,
    minutes: float,
    bag: Sequence[str],
    *,
    with_spark: bool = False,
    copiers: Sequence[str] = (),
) -> Plan:
    """The faults from the `first` on; all that there is time for if `faults` is None."""
    count = first + (_FAULTS_MAX if faults is None else faults)
    drawn = plan(count, tuple(range(1, BROKERS + 1)), PARTITIONS, seed, COPIER_KINDS, bag)
    return Plan(
        drawn[first:],
        seed,
        COPIER_KINDS,
        minutes,
        until_time_is_up=faults is None,
        writers=COPIED_WRITERS if copiers else WRITERS,
        group_members=0 if copiers else GROUP_MEMBERS,
        with_spark=with_spark,
        copiers=copiers,
    )


def run(wanted: Plan, home: Path, port: int) -> Report:
    def say(line: str) -> None:
        print(line, flush=True)

    cluster: ProcessCluster
    if wanted.copiers:
        cluster = with_copiers = CopierCluster(wanted, home, port, say)
        report = CopierRun(wanted, with_copiers, home, say).go()
    else:
        cluster = ProcessCluster(home / "cluster", port, say)
        report = Run(wanted, cluster, home, say).go()
    report.log_lines, report.errors = cluster.log_lines()
    report.findings += [
        f"{times} × in the brokers' logs: {line}"
        for line, times in report.errors.items()
        if not any(
            told in line.lower() and report.faults.keys() & kinds
            for told, kinds in EXPECTED_ERRORS.items()
        )
    ]
    return report


def available(kinds: Sequence[str]) -> list[str]:
    """Without faults of disks where there can be none."""
    why_not = disks.why_unavailable()
    if why_not is None or DISK_KINDS.keys().isdisjoint(kinds):
        return list(kinds)
    print(f"without {', '.join(DISK_KINDS)}: {why_not}", flush=True)
    return [kind for kind in kinds if kind not in DISK_KINDS]


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos.cluster", description=__doc__)
    parser.add_argument(
        "--copiers", nargs="*", choices=CLIENTS, help="transactional copiers; default: of all"
    )
    parser.add_argument("--minutes", type=float, default=5, help="no fault starts later")
    parser.add_argument("--faults", type=int, help="default: as many as there is time for")
    parser.add_argument("--seed", type=int)
    parser.add_argument(
        "--kinds", help="only these, separated by commas: " + "; ".join(COPIER_KINDS)
    )
    parser.add_argument("--spark", action="store_true", help="with a pipeline to a Delta table")
    parser.add_argument(
        "--resume", action="store_true", help="go on with the last run's next fault"
    )
    parser.add_argument("--ledger", type=Path, default=LEDGER, help="default: %(default)s")
    parser.add_argument("--port", type=int, default=24092, help="the first of 700")
    parser.add_argument("--keep", action="store_true", help="keep the data of a passed run, too")
    arguments = parser.parse_args()
    # A normal exit, so that the cluster's processes end, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    copiers = () if arguments.copiers is None else arguments.copiers or CLIENTS
    whole_bag = COPIER_BAG if copiers else BAG
    bag = arguments.kinds.split(",") if arguments.kinds else available(whole_bag)
    unknown = set(bag) - set(COPIER_KINDS if copiers else PROCESS_KINDS)
    missing = why_unavailable()
    if unknown or missing:
        print(missing or f"no such kind: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    seed = random.randrange(10**6) if arguments.seed is None else arguments.seed
    first = 0
    if arguments.resume:
        seed, first, bag = last_run(arguments.ledger, with_copiers=bool(copiers))
    home = Path(tempfile.mkdtemp(prefix=f"suwi-chaos-{seed}-"))
    print(f"seed {seed}, from fault {first + 1}, in {home}", flush=True)
    wanted = process_plan(
        seed,
        first,
        arguments.faults,
        arguments.minutes,
        bag,
        with_spark=arguments.spark,
        copiers=copiers,
    )
    report = run(wanted, home, arguments.port)
    add_run(arguments.ledger, report, first, bag, complaints(report))
    write_page(arguments.ledger)
    return conclude(report, home, keep=arguments.keep)


if __name__ == "__main__":
    sys.exit(main())
