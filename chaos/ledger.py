"""The ledger of chaos runs: one JSON line for each, and a page that adds them up.

`add_run` appends, `write_page` writes README.md beside it, `last_run` tells where to resume.
"""

import json
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chaos.broker_faults import HEALTHY_S, Report
from chaos.time_line import draw

LEDGER = Path(__file__).parents[1] / "docs/chaos/ledger.jsonl"
_WRONG = {"lost": "lost", "duplicate": "duplicated", "reordered write": "reordered"}
_WRONG_OF_COPIERS = {"torn transaction": "torn", "aborted read": "aborted"}
_PAGE, _PICTURE = "README.md", "last-run.svg"


def add_run(
    ledger: Path, report: Report, first: int, wanting: Sequence[str], *, copiers: bool = False
) -> None:
    wrong = Counter(violation.kind for violation in report.violations)
    line = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "seed": report.seed,
        "first": first,
        "faults": dict(sorted(report.faults.items())),
        "seconds": round(report.seconds),
        "acked": report.notes.acked.total(),
        "failed": len(report.notes.failed),
        **{name: wrong[kind] for kind, name in (_WRONG | _WRONG_OF_COPIERS).items()},
        "violations": wrong.total(),
        "divergent": len(report.files.differing),
        "processed": report.processed,
        "processed_again": report.processed_again,
        "skipped": report.skipped,
        "copiers": copiers,
        "copied": report.copied,
        "transactions": report.transactions,
        "back_s": _rounded(report.back_s),
        "silence_s": _rounded(report.silence_s),
        "per_second": report.per_second,
        "spans": [(kind, *(round(s, 1) for s in times)) for kind, *times in report.spans],
        "wanting": list(wanting[:10]),
    }
    ledger.parent.mkdir(parents=True, exist_ok=True)
    with ledger.open("a") as file:
        file.write(json.dumps(line) + "\n")


def _rounded(seconds: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    return {kind: [round(s, 2) for s in each] for kind, each in sorted(seconds.items())}


def read_ledger(ledger: Path) -> list[dict[str, Any]]:
    if not ledger.exists():
        return []
    return [json.loads(line) for line in ledger.read_text().splitlines()]


def last_run(ledger: Path, *, copiers: bool = False) -> tuple[int, int]:
    """The seed of the last run, and how many of its faults have been done."""
    runs = [run for run in read_ledger(ledger) if run.get("copiers", False) is copiers]
    if not runs:
        raise SystemExit(f"nothing to resume: {ledger} has no run")
    return runs[-1]["seed"], runs[-1]["first"] + sum(runs[-1]["faults"].values())


def write_page(ledger: Path) -> None:
    """The page, and a picture of the last run."""
    runs = read_ledger(ledger)
    last = runs[-1]
    (ledger.parent / _PAGE).write_text(page(runs))
    (ledger.parent / _PICTURE).write_text(draw(last.get("per_second", []), last.get("spans", [])))


def page(runs: Sequence[dict[str, Any]]) -> str:
    faults: Counter[str] = Counter()
    back_s: dict[str, list[float]] = {}
    silence_s: dict[str, list[float]] = {}
    for run in runs:
        faults.update(run["faults"])
        for name, kept in (("back_s", back_s), ("silence_s", silence_s)):
            for kind, each in run.get(name, {}).items():
                kept.setdefault(kind, []).extend(each)
    sums = Counter[str]()
    for run in runs:
        sums.update({key: value for key, value in run.items() if isinstance(value, int)})
    passed = sum(not run["wanting"] for run in runs)
    acked = f"{sums['acked']:,} acknowledged records"
    wrong = ", ".join(f"{sums[name]} {name}" for name in _WRONG.values())
    work = f"{sums['processed']:,} records, {sums['processed_again']:,} again"
    copied = f"{sums['copied']:,} records in {sums['transactions']:,} transactions"
    wrongly = f"{sums['torn']} torn, {sums['aborted']} aborted reads"
    lines = [
        "# Chaos runs of a cluster of processes",
        "",
        "Made by `python -m chaos.cluster` from `ledger.jsonl`; see [../chaos.md](../chaos.md).",
        "",
        f"- {len(runs)} runs, {passed} of them without a complaint, {faults.total()} faults",
        f"- {acked}: **{wrong}**",
        f"- {sums['divergent']} partitions whose files differ between replicas",
        f"- the consumer groups processed {work}, and skipped **{sums['skipped']}**",
        f"- {sums['copiers']} runs with transactional copiers, {copied}: **{wrongly}**",
        f"- bound for all replicas to be in sync again: {HEALTHY_S:.0f} s after each fault",
        "",
        "Silent: how long a partition at most had no new record for a consumer beside the writers,",
        "since all replicas were last in sync: a fault that followed another at once includes it.",
        "",
        "| fault | times | in sync again, median | longest | silent, median | longest |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for kind, times in faults.most_common():
        told = f"{_median_and_max(back_s.get(kind))} | {_median_and_max(silence_s.get(kind))}"
        lines.append(f"| {kind} | {times} | {told} |")
    lines += [
        "",
        f"![The last run: records per second, and its faults]({_PICTURE})",
        "",
        "The last run: red is a fault, pale red the time until all replicas were in sync again.",
    ]
    columns = "acked failed copied lost duplicated reordered torn aborted divergent skipped".split()
    lines += ["", "| date | seed | from | faults | " + " | ".join(columns) + " | verdict |"]
    lines.append("|---|" + "---:|" * (len(columns) + 3) + "---|")
    for run in runs:
        cells = [run["date"], run["seed"], run["first"] + 1, sum(run["faults"].values())]
        cells += [f"{run.get(column, 0):,}" for column in columns]
        verdict = "; ".join(run["wanting"]) or "right"
        lines.append(f"| {' | '.join(map(str, cells))} | {verdict} |")
    return "\n".join([*lines, ""])


def _median_and_max(seconds: Sequence[float] | None) -> str:
    return f"{statistics.median(seconds):.1f} s | {max(seconds):.1f} s" if seconds else "- | -"
