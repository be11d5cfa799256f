"""The ledger of chaos runs: one JSON line for each, and a page that adds them up.

`add_run` appends, `write_page` writes README.md beside it, `last_run` tells where to resume.
"""

import json
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from chaos.broker_faults import HEALTHY_S
from chaos.journal import RECORD_BYTES
from chaos.report import Report
from chaos.time_line import draw

LEDGER = Path(__file__).parents[1] / "docs/chaos/ledger.jsonl"
_WRONG = {"lost": "lost", "duplicate": "duplicated", "reordered write": "reordered"}
_WRONG_COPIES = {"torn transaction": "torn", "aborted read": "aborted"}
_OF_COPIES = "copies_"
_PAGE, _PICTURE = "README.md", "time-line.svg"


class Resumed(NamedTuple):
    seed: int
    first: int
    """How many of its faults have been done."""
    kinds: list[str]
    """Those it draws from."""


def add_run(
    ledger: Path, report: Report, first: int, kinds: Sequence[str], wanting: Sequence[str]
) -> None:
    wrong = Counter(violation.kind for violation in report.violations)
    wrong_copies = Counter(violation.kind for violation in report.copy_violations)
    line = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "seed": report.seed,
        "first": first,
        "kinds": list(kinds),
        "faults": dict(sorted(report.faults.items())),
        "seconds": round(report.seconds),
        "acked": report.notes.acked.total(),
        "failed": len(report.notes.failed),
        **{name: wrong[kind] for kind, name in _WRONG.items()},
        **{_OF_COPIES + name: wrong_copies[kind] for kind, name in _WRONG.items()},
        **{name: wrong_copies[kind] for kind, name in _WRONG_COPIES.items()},
        "violations": wrong.total() + wrong_copies.total(),
        "divergent": len(report.files.differing),
        "processed": report.processed,
        "processed_again": report.processed_again,
        "skipped": report.skipped,
        "copiers": list(report.copiers),
        "copied": report.copied,
        "transactions": report.transactions,
        "copies_silence_s": round(report.copies_silence_s, 1),
        "back_s": _rounded(report.back_s),
        "silence_s": _rounded(report.silence_s),
        "per_second": report.per_second,
        "spans": [(kind, *(round(s, 1) for s in times)) for kind, *times in report.spans],
        "pipeline": report.pipeline,
        "errors": dict(report.errors.most_common(10)),
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


def last_run(ledger: Path, *, with_copiers: bool = False) -> Resumed:
    runs = [run for run in read_ledger(ledger) if bool(run.get("copiers")) is with_copiers]
    if not runs:
        raise SystemExit(f"nothing to resume: {ledger} has no such run")
    last = runs[-1]
    return Resumed(last["seed"], last["first"] + sum(last["faults"].values()), last["kinds"])


def write_page(ledger: Path) -> None:
    """The page, and a picture of the run with the most kinds of faults, the last of those."""
    runs = read_ledger(ledger)
    shown = max(reversed(runs), key=lambda run: len(run["faults"]))
    (ledger.parent / _PAGE).write_text(page(runs, shown))
    (ledger.parent / _PICTURE).write_text(draw(shown["per_second"], shown["spans"]))


def page(runs: Sequence[dict[str, Any]], shown: dict[str, Any]) -> str:
    return "\n".join(
        [
            "# Chaos runs of a cluster of processes",
            "",
            "Three brokers and three ZooKeeper servers, writers with acks=all and idempotence, a",
            "consumer group or transactional copiers. Made by `python -m chaos.cluster` from",
            "`ledger.jsonl`; [../chaos.md](../chaos.md) says what is done and what is checked.",
            "",
            *_sums(runs),
            "",
            f"![The run of seed {shown['seed']}]({_PICTURE})",
            "",
            (
                f"The run of seed {shown['seed']}, with {sum(shown['faults'].values())} faults: "
                "what a consumer beside the writers read."
            ),
            "",
            "## Faults",
            "",
            "Silent: how long a partition at most had no new record for that consumer, since all",
            "replicas were last in sync: a fault that followed another at once includes it.",
            "",
            *_fault_table(runs),
            "",
            "## Runs",
            "",
            "Lost, duplicated and reordered are those of writers and of copies together.",
            "",
            *_run_table(runs),
            "",
        ]
    )


def _sums(runs: Sequence[dict[str, Any]]) -> list[str]:
    sums = Counter[str]()
    for run in runs:
        sums.update({key: value for key, value in run.items() if isinstance(value, int)})
    passed = sum(not run["wanting"] for run in runs)
    faults = sum(sum(run["faults"].values()) for run in runs)
    # Lines of runs with copiers once had one count for writers and copies.
    mixed = [run for run in runs if run.get("copiers") and _OF_COPIES + "lost" not in run]
    writers = [run for run in runs if run not in mixed]
    acked = sum(run["acked"] for run in writers)
    work = f"{sums['processed']:,} records, {sums['processed_again']:,} of them again"
    spark = [run["pipeline"] for run in runs if run["pipeline"]]
    lines = [
        (
            f"- runs: {len(runs)}, {passed} of them without a complaint, "
            f"{sums['seconds'] / 60:.0f} minutes; faults: {faults}"
        ),
        f"- writers: {acked:,} acknowledged records of {RECORD_BYTES} bytes: **{_wrong(writers)}**",
        f"- {sums['divergent']} partitions whose files differ between replicas",
        f"- the consumer groups processed {work}, and skipped **{sums['skipped']}**",
        (
            f"- all replicas have to be in sync again within {HEALTHY_S:.0f} s after each fault; "
            f"the longest time was {_longest(runs, 'back_s'):.0f} s"
        ),
    ]
    copiers = [run for run in runs if run.get("copiers")]
    if copiers:
        copied = f"{sums['copied']:,} records in {sums['transactions']:,} transactions"
        torn = ", ".join(f"{sums[name]} {name}" for name in _WRONG_COPIES.values())
        silence_s = max(run["copies_silence_s"] for run in copiers)
        lines.append(f"- copies: {len(copiers)} runs with copiers copied {copied}: **{torn}**")
        counted = [run for run in copiers if run not in mixed]
        if counted:
            lines.append(f"- copies of {len(counted)} of them: **{_wrong(counted, _OF_COPIES)}**")
        if mixed:
            acked = sum(run["acked"] for run in mixed)
            lines.append(
                f"- writers ({acked:,} acknowledged records) and copies of {len(mixed)} of them, "
                f"which were counted together: **{_wrong(mixed)}**; [results](../chaos.md#results)"
            )
        lines.append(f"- a partition of the copies had no new record for {silence_s:.0f} s at most")
    if spark:
        right = sum("equal" in told for told in spark)
        lines.append(f"- a Spark pipeline ran in {len(spark)} of them, and was right in {right}")
    return lines


def _wrong(runs: Sequence[dict[str, Any]], prefix: str = "") -> str:
    return ", ".join(
        f"{sum(run[prefix + name] for run in runs):,} {name}" for name in _WRONG.values()
    )


def _longest(runs: Sequence[dict[str, Any]], name: str) -> float:
    return max((max(each) for run in runs for each in run[name].values()), default=0.0)


def _fault_table(runs: Sequence[dict[str, Any]]) -> list[str]:
    faults: Counter[str] = Counter()
    back_s: dict[str, list[float]] = {}
    silence_s: dict[str, list[float]] = {}
    for run in runs:
        faults.update(run["faults"])
        for name, kept in (("back_s", back_s), ("silence_s", silence_s)):
            for kind, each in run[name].items():
                kept.setdefault(kind, []).extend(each)
    lines = [
        "| fault | times | in sync again, median | longest | silent, median | longest |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for kind, times in faults.most_common():
        told = f"{_median_and_max(back_s.get(kind))} | {_median_and_max(silence_s.get(kind))}"
        lines.append(f"| {kind} | {times} | {told} |")
    return lines


def _run_table(runs: Sequence[dict[str, Any]]) -> list[str]:
    columns = "acked failed copied lost duplicated reordered torn aborted divergent skipped".split()
    lines = ["| date | seed | kinds | faults | minutes | " + " | ".join(columns) + " | verdict |"]
    lines.append("|---|---:|---|---:|---:|" + "---:|" * len(columns) + "---|")
    for run in runs:
        kinds = [*run["faults"]] if len(run["faults"]) <= 3 else [f"{len(run['faults'])} mixed"]
        kinds += ["with Spark"] * bool(run["pipeline"])
        kinds += ["with copiers"] * bool(run.get("copiers"))
        cells = [run["date"], run["seed"], ", ".join(kinds), sum(run["faults"].values())]
        counts = [run.get(name, 0) + run.get(_OF_COPIES + name, 0) for name in columns]
        cells += [f"{run['seconds'] / 60:.0f}", *(f"{count:,}" for count in counts)]
        verdict = "; ".join(run["wanting"][:1]) or "right"
        verdict += " …" * (len(run["wanting"]) > 1)
        lines.append(f"| {' | '.join(map(str, cells))} | {verdict} |")
    return lines


def _median_and_max(seconds: Sequence[float] | None) -> str:
    return f"{statistics.median(seconds):.1f} s | {max(seconds):.1f} s" if seconds else "- | -"
