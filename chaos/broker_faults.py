"""`make chaos-brokers`: faults of three brokers, one after another, under four idempotent writers.

At the end every acknowledged record must be there once and in order, no other records may be there,
and the log files of all replicas must be equal. Otherwise the exit code is 1, and the data, the
journals of the writers and the brokers' log are kept.
"""

import argparse
import logging
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from confluent_kafka import KafkaException

from chaos.faults import KINDS, Fault, Kind, plan
from chaos.group_worker import read_work
from chaos.journal import Notes, partition_name, read_journal, stored_in_spite_of_an_error
from chaos.log_files import Compared
from chaos.readers import Tail
from chaos.time_line import Span
from chaos.writer import FLUSH_S
from suwi.cli.log_format import FieldFormatter
from suwi.sim.history import History, Seen
from suwi.sim.history_checker import Violation, violations
from suwi.testing import Cluster, NotInTime

WRITERS = ("librdkafka", "librdkafka", "librdkafka-impatient", "aiokafka")
TOPIC = "numbers"
PARTITIONS = 4
_SEGMENT_BYTES = 1 << 18
HEALTHY_S = 90.0
"""All replicas must be in sync again within this time after each fault."""
_READ_S = 120.0
_SHOWN = 10
ROOT = Path(__file__).parents[1]
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
    files: Compared = field(default_factory=Compared)
    records: int = 0
    stored_in_spite_of_an_error: int = 0
    log_lines: Counter[str] = field(default_factory=Counter)
    """The brokers' log, by level."""
    seconds: float = 0.0
    processed: int = 0
    """Records that the group has processed."""
    processed_again: int = 0
    """How often it processed one again, because its commit had not arrived."""
    skipped: int = 0
    """Records that it has not processed though it was there for them."""
    copied: int = 0
    """Records that copiers have copied, in so many transactions."""
    transactions: int = 0


class Target(Protocol):
    """The cluster of a run: `suwi.testing.Cluster`, or `chaos.process_cluster`."""

    def __enter__(self) -> Any: ...

    def __exit__(self, *_: object) -> None: ...

    @property
    def brokers(self) -> tuple[int, ...]: ...

    @property
    def bootstrap_servers(self) -> str: ...

    def files(self, broker: int) -> Path: ...

    def replicas(self, topic: str, partition: int) -> Mapping[int, Any]: ...

    def events(self) -> Sequence[object]: ...

    def create_topic(
        self, name: str, partitions: int, *, replication_factor: int, configs: Mapping[str, object]
    ) -> Any: ...

    def wait_leader(self, topic: str, partition: int, *, timeout_s: float) -> int: ...

    def wait_until_healthy(self, timeout_s: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Plan:
    faults: Sequence[Fault]
    seed: int
    kinds: Mapping[str, Kind]
    minutes: float
    """No fault starts later."""
    until_time_is_up: bool = False
    """The plan has more faults than there is time for."""
    writers: Sequence[str] = WRITERS
    group_members: int = 0

    @classmethod
    def of_brokers(cls, faults: int, seed: int, minutes: float) -> "Plan":
        """Of three brokers in this process."""
        return cls(plan(faults, (1, 2, 3), PARTITIONS, seed), seed, KINDS, minutes)


def three_brokers(home: Path) -> Cluster:
    return Cluster(3, directory=str(home / "brokers"), settings={"min.insync.replicas": 2})


class Run:
    def __init__(self, plan: Plan, cluster: Target, home: Path, say: Callable[[str], None]) -> None:
        self._plan = plan
        self._cluster = cluster
        self._home = home
        self._say = say
        self._started_s = time.monotonic()
        self._ends_s = self._started_s + plan.minutes * 60
        self._history = History()
        self.report = Report(0 if plan.until_time_is_up else len(plan.faults), plan.seed)

    def go(self) -> Report:
        report = self.report
        with self._cluster as cluster:
            configs = {"min.insync.replicas": 2, "segment.bytes": _SEGMENT_BYTES}
            cluster.create_topic(TOPIC, PARTITIONS, replication_factor=3, configs=configs)
            tail = self._tail("the consumer beside the writers")
            writers = [self._writer(n, kind) for n, kind in enumerate(self._plan.writers)]
            members = [self._group_member(n) for n in range(self._plan.group_members)]
            try:
                self._disturb(self._plan.faults, tail)
            finally:
                self._end(writers)
            self._wait_until_healthy("at the end")
            self._read([tail, self._tail("the consumer afterwards")])
            report.per_second = tail.per_second()
            self._check_group()
            self._end(members)
            self._compare_files()
        for number, kind in enumerate(self._plan.writers):
            name = _name(number, kind)
            read_journal(self._journal(name), name, TOPIC, self._history, report.notes)
        self._say("checking")
        self._check_history()
        report.seconds = time.monotonic() - self._started_s
        return report

    # -- writers and readers -------------------------------------------------------------------

    def _writer(self, number: int, kind: str) -> "subprocess.Popen[bytes]":
        name = _name(number, kind)
        servers, journal = self._cluster.bootstrap_servers, str(self._journal(name))
        arguments = (kind, name, servers, TOPIC, str(PARTITIONS), journal)
        return self._start(name, "chaos.writer", *arguments)

    def _group_member(self, number: int) -> "subprocess.Popen[bytes]":
        name = f"member-{number + 1}"
        servers, journal = self._cluster.bootstrap_servers, str(self._journal(name))
        return self._start(name, "chaos.group_worker", servers, TOPIC, journal)

    def _start(self, name: str, module: str, *arguments: str) -> "subprocess.Popen[bytes]":
        with (self._home / f"{name}.log").open("wb") as errors:
            return subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stderr=errors,
            )

    def _journal(self, name: str) -> Path:
        return self._home / f"{name}.journal"

    def _end(self, processes: "list[subprocess.Popen[bytes]]") -> None:
        """End writers or members of the group."""
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in processes:
            try:
                process.wait(FLUSH_S + 30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _tail(self, name: str) -> Tail:
        servers = self._cluster.bootstrap_servers
        return Tail(servers, TOPIC, PARTITIONS, self._history.reader(name)).start()

    # -- faults --------------------------------------------------------------------------------

    def _disturb(self, faults: Sequence[Fault], tail: Tail) -> None:
        tail.start_silence()
        first_s = tail.started_s
        for fault in faults:
            if time.monotonic() > self._ends_s:
                self._say("the time is up")
                return
            began_s = time.monotonic()
            try:
                what, ended_s = self._strike(fault)
            except Exception as error:
                # A broker that does not start, a partition without a leader: the checks still run.
                self._find(f"fault {fault} failed: {error!r}")
                return
            span = fault.kind, began_s - first_s, ended_s - first_s
            if fault.is_hasty:
                self._say(what)
                self.report.spans.append((*span, ended_s - first_s))
                continue
            if not self._wait_until_healthy(f"after fault {what}"):
                return
            back_s, silence_s = time.monotonic() - ended_s, tail.longest_silence_s()
            tail.start_silence()
            self.report.spans.append((*span, time.monotonic() - first_s))
            self.report.back_s.setdefault(fault.kind, []).append(back_s)
            self.report.silence_s.setdefault(fault.kind, []).append(silence_s)
            self._say(f"{what}; in sync again after {back_s:.1f} s, silent for {silence_s:.1f} s")

    def _strike(self, fault: Fault) -> tuple[str, float]:
        """What was done, and when the fault ended."""
        kind, broker = self._plan.kinds[fault.kind], fault.broker
        if broker is None and kind.has_target:
            broker = self._cluster.wait_leader(TOPIC, fault.partition, timeout_s=HEALTHY_S)
        broker = broker or 0
        kind.begin(self._cluster, broker)
        time.sleep(fault.hold_s)
        ended_s = time.monotonic()
        kind.end(self._cluster, broker)
        self.report.faults[fault.kind] += 1
        aim = f" of broker {broker}" if kind.has_target else ""
        if kind.has_target and fault.broker is None:
            aim += f", leader of {TOPIC}-{fault.partition},"
        what = f"{fault.number}: {fault.kind}{aim} for {fault.hold_s:.1f} s"
        return what, ended_s

    def _wait_until_healthy(self, when: str) -> bool:
        try:
            self._cluster.wait_until_healthy(timeout_s=HEALTHY_S)
        except NotInTime as error:
            self._find(f"not in sync {when}: {error}")
            return False
        return True

    def _find(self, what: str) -> None:
        self.report.findings.append(what)
        self._say(what)

    # -- the end -------------------------------------------------------------------------------

    def _ends(self, topic: str = TOPIC, partitions: int = PARTITIONS) -> dict[int, int]:
        """The high watermarks, which all replicas have reached."""
        until_s = time.monotonic() + HEALTHY_S
        while True:
            states = [self._cluster.replicas(topic, p) for p in range(partitions)]
            places = [{(s.high_watermark, s.log_end) for s in each.values()} for each in states]
            level = all(len(each) == 1 and len({*next(iter(each))}) == 1 for each in places)
            if level or time.monotonic() > until_s:
                break
            time.sleep(0.05)
        if not level:
            self._find(f"watermarks and log ends differ at the end: {places}")
        return {p: max((end for _, end in each), default=0) for p, each in enumerate(places)}

    def _read(self, tails: list[Tail]) -> None:
        ends = self._ends()
        for tail in tails:
            self._read_to(tail, ends)
        fresh = self._history.readings[-1]
        for name, events in fresh.events.items():
            seen = [event for event in events if isinstance(event, Seen)]
            self._history.final(name, ((event.offset, event.value) for event in seen))
            self.report.records += len(seen)
        for event in self._cluster.events():
            self._find(f"the cluster reports a loss: {event}")

    def _read_to(self, tail: Tail, ends: Mapping[int, int]) -> None:
        try:
            if not tail.read_to(ends, _READ_S):
                self._find(f"{tail.reading.name} did not reach the ends {ends}")
        except KafkaException as error:
            self._find(f"{tail.reading.name} failed: {error}")

    def _check_group(self) -> None:
        """Wait until the members of the group have processed everything below the ends."""
        if not self._plan.group_members:
            return
        journals = [self._journal(f"member-{n + 1}") for n in range(self._plan.group_members)]
        ends = self._ends()
        until_s = time.monotonic() + _READ_S
        while True:
            work = read_work(journals)
            missing = work.missing(ends)
            if not missing or time.monotonic() > until_s:
                break
            time.sleep(0.2)
        self.report.processed, self.report.processed_again = work.processed, work.again
        for partition, ranges in missing.items():
            self._find(f"the group skipped {ranges} of {partition_name(TOPIC, partition)}")
            self.report.skipped += sum(end - first for first, end in ranges)

    def _compare_files(self, topic: str = TOPIC, partitions: int = PARTITIONS) -> None:
        for partition, end in self._ends(topic, partitions).items():
            name = partition_name(topic, partition)
            directories = {b: self._cluster.files(b) / name for b in self._cluster.brokers}
            self.report.files.add(name, directories, end)

    def _check_history(self) -> None:
        report = self.report
        report.violations += violations(self._history)
        report.stored_in_spite_of_an_error = stored_in_spite_of_an_error(
            self._history, report.notes
        )


def _name(number: int, kind: str) -> str:
    return f"{kind}-{number + 1}"


def complaints(report: Report) -> list[str]:
    """Why a run is no proof."""
    found = [str(violation) for violation in report.violations]
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
    wrong = Counter(violation.kind for violation in report.violations)
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
    if report.copied:
        lines.append(f"copied: {report.copied} records in {report.transactions} transactions")
    lines += [
        f"brokers' log: {levels or 'no warnings'}",
        f"replicas: {report.files.size_bytes} bytes below the watermarks, {differing} differ",
        "verdict: "
        + ", ".join(f"{wrong[kind]} {word}" for kind, word in _VERDICT.items())
        + f", {wrong.total()} violations in all",
    ]
    return "\n".join(lines)


class _Count(logging.Handler):
    def __init__(self, lines: Counter[str]) -> None:
        super().__init__(logging.WARNING)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines[record.levelname] += 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos.broker_faults", description=__doc__)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--minutes", type=float, default=20, help="no fault starts later")
    parser.add_argument("--keep", action="store_true", help="keep the data of a passed run, too")
    arguments = parser.parse_args()
    seed = random.randrange(10**6) if arguments.seed is None else arguments.seed
    home = Path(tempfile.mkdtemp(prefix=f"suwi-chaos-{seed}-"))
    print(f"{arguments.faults} faults, seed {seed}, in {home}", flush=True)
    run = Run(
        Plan.of_brokers(arguments.faults, seed, arguments.minutes),
        three_brokers(home),
        home,
        lambda line: print(line, flush=True),
    )
    lines = logging.FileHandler(home / "brokers.log")
    lines.setFormatter(FieldFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[lines, _Count(run.report.log_lines)])
    return conclude(run.go(), home, keep=arguments.keep)


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


if __name__ == "__main__":
    sys.exit(main())
