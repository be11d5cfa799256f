"""The report of a run with faults of brokers: what was done, and why it is no proof if it is not.

`complaints` judges, `format_report` tells, `conclude` ends a run.
"""

import shutil
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chaos.journal import Notes
from chaos.log_files import Compared
from chaos.time_line import Span
from simulation.history_checker import Violation

_SHOWN = 10
_VERDICT = {
    "lost": "lost",
    "duplicate": "duplicated",
    "reordered write": "reordered",
    "invented": "that nobody sent",
    "torn transaction": "torn",
    "aborted read": "aborted",
}


@dataclass(slots=True)
class Report:
    wanted: int
    seed: int
    faults: Counter[str] = field(default_factory=Counter)
    back_s: dict[str, list[float]] = field(default_factory=dict)
    """By kind: the time from the end of a fault until all replicas were in sync, if awaited."""
    silence_s: dict[str, list[float]] = field(default_factory=dict)
    """By kind: how long a partition at most had no new record for a consumer, since all replicas
    were last in sync."""
    per_second: list[int] = field(default_factory=list)
    """How many records the consumer beside the writers read."""
    spans: list[Span] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    """Unexpected events during the run."""
    notes: Notes = field(default_factory=Notes)
    violations: list[Violation] = field(default_factory=list)
    copy_violations: list[Violation] = field(default_factory=list)
    """Of what copiers copied; `violations` are those of the writers."""
    files: Compared = field(default_factory=Compared)
    records: int = 0
    stored_in_spite_of_an_error: int = 0
    log_lines: Counter[str] = field(default_factory=Counter)
    """The brokers' log, by level."""
    errors: Counter[str] = field(default_factory=Counter)
    """Its errors, those that are alike as one."""
    pipeline: str = ""
    """The verdict about the Spark pipeline, if there was one."""
    seconds: float = 0.0
    processed: int = 0
    """Records that the group has processed."""
    processed_again: int = 0
    """How often it processed one again, because its commit had not arrived."""
    skipped: int = 0
    """Records that it has not processed though it was there for them."""
    copiers: Sequence[str] = ()
    """The clients of which there were copiers."""
    copied: int = 0
    """Records that they have copied, in so many transactions."""
    transactions: int = 0
    copies_silence_s: float = 0.0
    """How long a partition of the copies at most had no new record."""


def complaints(report: Report) -> list[str]:
    """Why a run is no proof."""
    found = [str(violation) for violation in (*report.violations, *report.copy_violations)]
    found += report.files.differing
    found += [f"fatal error of {told}" for told in report.notes.fatal]
    found += [
        f"{writer} got no response for {count} records"
        for writer, count in report.notes.unanswered.items()
    ]
    found += [f"{writer} ended early" for writer in report.notes.broken_off]
    found += report.findings
    done = report.faults.total()
    if not done:
        found.append("there was no fault")
    elif done < report.wanted:
        found.append(f"only {done} of {report.wanted} faults")
    if not report.notes.acked:
        found.append("nothing was acknowledged")
    return found


def format_report(report: Report) -> str:
    notes = report.notes
    kinds = ", ".join(f"{times} × {kind}" for kind, times in sorted(report.faults.items()))
    acked = ", ".join(f"{count} {writer}" for writer, count in sorted(notes.acked.items()))
    errors = Counter((writer, error) for writer, error, _ in notes.failed)
    errors_told = ", ".join(f"{n} × {error} {who}" for (who, error), n in sorted(errors.items()))
    epoch = max(report.files.producers.values(), default=0)
    levels = ", ".join(f"{n} {level}" for level, n in sorted(report.log_lines.items()))
    differing = len(report.files.differing)
    stored = report.stored_in_spite_of_an_error
    lines = [
        f"seed {report.seed}: {report.faults.total()} faults in {report.seconds:.0f} s: {kinds}",
        f"acknowledged: {notes.acked.total()} records ({acked}); read at the end: {report.records}",
        f"errors of writers: {len(notes.failed)}, {stored} of them stored {errors_told}",
        f"fatal client errors: {len(notes.fatal)}; unanswered: {notes.unanswered.total()}",
        f"producers: {len(report.files.producers)}, highest epoch {epoch}",
    ]
    for kind, times in sorted(report.back_s.items()):
        median, longest = statistics.median(times), max(times)
        silence_s = max(report.silence_s.get(kind, [0.0]))
        lines.append(
            f"in sync again after {kind}: median {median:.1f} s, longest {longest:.1f} s; "
            f"longest silence of a partition {silence_s:.1f} s"
        )
    if report.processed:
        lines.append(
            f"the group: {report.processed} records processed, {report.skipped} skipped, "
            f"{report.processed_again} again"
        )
    if report.copiers:
        lines.append(
            f"copied: {report.copied} records in {report.transactions} transactions; "
            f"longest silence of a partition {report.copies_silence_s:.1f} s"
        )
    if report.pipeline:
        lines.append(f"the Spark pipeline: {report.pipeline}")
    lines += [
        f"brokers' log: {levels or 'no warnings'}",
        *(f"{times} × {line}" for line, times in report.errors.most_common()),
        f"replicas: {report.files.size_bytes} bytes below the watermarks, {differing} differ",
        f"verdict: {_verdict(report.violations)}",
        *([f"verdict of the copies: {_verdict(report.copy_violations)}"] if report.copiers else []),
    ]
    return "\n".join(lines)


def _verdict(violations: Sequence[Violation]) -> str:
    wrong = Counter(violation.kind for violation in violations)
    counts = ", ".join(f"{wrong[kind]} {word}" for kind, word in _VERDICT.items())
    return f"{counts}, {wrong.total()} violations in all"


def conclude(report: Report, home: Path, *, keep: bool) -> int:
    """Print the report and remove the data of a run that passed. Returns the exit code."""
    print(format_report(report))
    wanting = complaints(report)
    for complaint in wanting[:_SHOWN]:
        print(f"not sufficient: {complaint}", file=sys.stderr)
    if len(wanting) > _SHOWN:
        print(f"… and {len(wanting) - _SHOWN} more", file=sys.stderr)
    if wanting or keep:
        (home / "complaints.txt").write_text("\n".join(wanting))
        print(f"kept: {home}")
    else:
        shutil.rmtree(home)
    return 1 if wanting else 0
