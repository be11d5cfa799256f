"""`make chaos-cluster`: faults of three brokers and three ZooKeeper servers, all real processes.

As `chaos.broker_faults`, and a consumer group commits after processing: it may skip nothing. Each
run ends by itself and adds a line to a ledger; `docs/chaos/README.md` is made from it.
"""

import argparse
import random
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from chaos.broker_faults import PARTITIONS, Plan, Report, Run, complaints, conclude
from chaos.copiers import CLIENTS, COPIER_BAG, COPIER_KINDS, CopierCluster, CopierRun
from chaos.copiers import WRITERS as COPIED_WRITERS
from chaos.faults import plan
from chaos.ledger import LEDGER, add_run, last_run, write_page
from chaos.process_cluster import BROKERS, ProcessCluster
from chaos.process_faults import BAG, PROCESS_KINDS
from suwi.local_cluster.zookeeper import why_unavailable

WRITERS = ("librdkafka", "librdkafka-impatient", "librdkafka-bulk")
GROUP_MEMBERS = 2
_FAULTS_MAX = 2_000


def process_plan(
    seed: int,
    first: int,
    faults: int | None,
    minutes: float,
    bag: Sequence[str],
    *,
    copiers: bool = False,
) -> Plan:
    """The faults from the `first` on; all that there is time for if `faults` is None."""
    count = first + (_FAULTS_MAX if faults is None else faults)
    kinds = COPIER_KINDS if copiers else PROCESS_KINDS
    drawn = plan(count, tuple(range(1, BROKERS + 1)), PARTITIONS, seed, kinds, bag)
    return Plan(
        drawn[first:],
        seed,
        kinds,
        minutes,
        until_time_is_up=faults is None,
        writers=COPIED_WRITERS if copiers else WRITERS,
        group_members=0 if copiers else GROUP_MEMBERS,
    )


def run(wanted: Plan, home: Path, port: int, *, copiers: Sequence[str] = ()) -> Report:
    """`copiers`: the clients of which there are some."""

    def say(line: str) -> None:
        print(line, flush=True)

    if copiers:
        of_copiers = cluster = CopierCluster(home, port, say, wanted.seed, copiers)
        report = CopierRun(wanted, of_copiers, home, say).go()
    else:
        cluster = ProcessCluster(home / "cluster", port, say)
        report = Run(wanted, cluster, home, say).go()
    report.log_lines = cluster.log_levels()
    if report.log_lines["tracebacks"]:
        report.findings.append(f"{report.log_lines['tracebacks']} tracebacks in the brokers' logs")
    return report


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
    parser.add_argument("--resume", action="store_true", help="go on after the last run's faults")
    parser.add_argument("--ledger", type=Path, default=LEDGER, help="default: %(default)s")
    parser.add_argument("--port", type=int, default=24092, help="the first of 700")
    parser.add_argument("--keep", action="store_true", help="keep the data of a passed run, too")
    arguments = parser.parse_args()
    # A normal exit, so that the cluster's processes end, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    copiers = arguments.copiers is not None
    bag = arguments.kinds.split(",") if arguments.kinds else COPIER_BAG if copiers else BAG
    unknown = set(bag) - set(COPIER_KINDS if copiers else PROCESS_KINDS)
    missing = why_unavailable()
    if unknown or missing:
        print(missing or f"no such kind: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    seed = random.randrange(10**6) if arguments.seed is None else arguments.seed
    first = 0
    if arguments.resume:
        seed, first = last_run(arguments.ledger, copiers=copiers)
    home = Path(tempfile.mkdtemp(prefix=f"suwi-chaos-{seed}-"))
    print(f"seed {seed}, from fault {first + 1}, in {home}", flush=True)
    wanted = process_plan(seed, first, arguments.faults, arguments.minutes, bag, copiers=copiers)
    clients = (arguments.copiers or CLIENTS) if copiers else ()
    report = run(wanted, home, arguments.port, copiers=clients)
    add_run(arguments.ledger, report, first, complaints(report), copiers=copiers)
    write_page(arguments.ledger)
    return conclude(report, home, keep=arguments.keep)


if __name__ == "__main__":
    sys.exit(main())
