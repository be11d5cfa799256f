"""`make chaos`: kill processes often, and compare table or copy with the topic at the end."""

import argparse
import importlib.util
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chaos.run import Report

UPKEEP = ("compactions", "vacuums")
_KILLS_OF_EACH = 5
"""Of those whom a report names."""
_KILLS_OF_ALL = 20
"""From this many kills on, each kind of process must be among the killed."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--kills", type=int, help="50")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=1)
    parser.add_argument("--sink", choices=("table", "topic", "outputs"), default="table")
    arguments = parser.parse_args()
    lake = ("pyiceberg", "duckdb") if arguments.sink == "outputs" else ()
    for needed in ("pyspark", "deltalake", *lake):
        if importlib.util.find_spec(needed) is None:
            extras = "spark,iceberg,spark-tests" if lake else "spark"
            print(f"{needed} is missing: pip install -e '.[{extras}]'", file=sys.stderr)
            return 2
    from chaos.outputs import OutputsRun, add_run
    from chaos.run import Plan, Run
    from chaos.topic_sink import TopicRun

    kills = arguments.kills or 50
    kinds = {"table": Run, "topic": TopicRun, "outputs": OutputsRun}
    kind, works = kinds[arguments.sink], () if arguments.sink == "topic" else UPKEEP
    seed = random.randrange(10**6) if arguments.seed is None else arguments.seed
    with tempfile.TemporaryDirectory(prefix="suwi-chaos-") as directory:
        home = Path(directory)
        print(f"{kills} kills, seed {seed}, in {home}", flush=True)
        run = kind(
            Plan(kills, seed, arguments.brokers, with_upkeep=bool(works)),
            home,
            lambda line: print(line, flush=True),
        )
        report = run.go()
        print(format_report(report))
        if isinstance(run, OutputsRun):
            add_run(run.summary())
        wanting = complaints(report, works)
        if wanting:
            print("not sufficient: " + "; ".join(wanting), file=sys.stderr)
            print((home / "drivers.log").read_text(errors="replace")[-5_000:], file=sys.stderr)
        return 1 if wanting else 0


def complaints(report: "Report", works: Sequence[str] = UPKEEP) -> list[str]:
    """Why a run is no proof: the output is wrong, or too few faults happened."""
    found = []
    if report.verdict is None or not report.verdict.is_exact:
        found.append("the output differs from the topic")
    if report.suppressed == 0:
        found.append("no batch was suppressed")
    found += [f"there were no {work}" for work in works if report.upkeep.get(work, 0) == 0]
    found += [
        f"{report.times(who)} × {who} is less than {_KILLS_OF_EACH}"
        for who in report.needed
        if report.times(who) < _KILLS_OF_EACH
    ]
    if report.killed >= _KILLS_OF_ALL:
        hit = " ".join(report.kills)
        found += [
            f"no {who} was killed" for who in ("driver", "worker", "broker") if who not in hit
        ]
    return found


def format_report(report: "Report") -> str:
    kills = [f"{times:6} × {kind}" for kind, times in report.kills.most_common()]
    starts = ", ".join(f"{times} × {master}" for master, times in sorted(report.starts.items()))
    return "\n".join(
        [
            f"killed {report.killed}:",
            *kills,
            f"started drivers: {starts}; queries that failed: {report.ended.total()}",
            "beside them: "
            + (", ".join(f"{times} {work}" for work, times in report.upkeep.items()) or "nothing"),
            f"batches run again: {report.replays}; in the output already, so suppressed: "
            + str(report.suppressed),
            f"{report.commits} commits in {report.seconds:.0f} s",
            f"verdict: {report.verdict}",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
