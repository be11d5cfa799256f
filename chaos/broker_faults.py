"""`make chaos-brokers`: faults of three brokers, one after another, under four idempotent writers.

At the end every acknowledged record must be there once and in order, no other records may be there,
and the log files of all replicas must be equal. Otherwise the exit code is 1, and the data, the
journals of the writers and the brokers' log are kept.
"""

import argparse
import logging
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from confluent_kafka import KafkaException

from chaos.faults import KINDS, Fault, Kind, plan
from chaos.group_worker import read_work
from chaos.journal import partition_name, read_journal
from chaos.readers import Tail
from chaos.record_checker import Reading, stored_in_spite_of_an_error, violations
from chaos.report import Report, conclude
from chaos.writer import FLUSH_S
from suwi.cli.output import FieldFormatter
from suwi.testing import Cluster, NotInTime

WRITERS = ("librdkafka", "librdkafka", "librdkafka-impatient", "aiokafka")
TOPIC = "numbers"
PARTITIONS = 4
SEGMENT_BYTES = 1 << 18
HEALTHY_S = 60.0
"""All replicas must be in sync again within this time after each fault."""
GOES_ON_S = 10.0
"""Writers and groups that must not notice a fault may be silent for this time."""
_READ_S = 120.0
ROOT = Path(__file__).parents[1]


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
    with_spark: bool = False
    """A Spark pipeline runs beside the writers, from a topic of its own."""
    copiers: Sequence[str] = ()
    """Clients of which transactional copiers copy what the writers write."""

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
        self._readings: list[Reading] = []
        self.report = Report(0 if plan.until_time_is_up else len(plan.faults), plan.seed)

    def go(self) -> Report:
        report = self.report
        with self._cluster as cluster:
            configs = {"min.insync.replicas": 2, "segment.bytes": SEGMENT_BYTES}
            cluster.create_topic(TOPIC, PARTITIONS, replication_factor=3, configs=configs)
            tail = self._tail("the consumer beside the writers")
            writers = [self._writer(n, kind) for n, kind in enumerate(self._plan.writers)]
            members = [self._group_member(n) for n in range(self._plan.group_members)]
            with self._pipeline() as pipeline:
                try:
                    self._wait_until_all_work(tail)
                    self._disturb(self._plan.faults, tail)
                finally:
                    self._end(writers)
                self._wait_until_healthy("at the end")
                if pipeline is not None:
                    report.pipeline, is_right = pipeline.finish()
                    if not is_right:
                        self._find(f"the Spark pipeline: {report.pipeline}")
            self._read([tail, self._tail("the consumer afterwards")])
            report.per_second = tail.per_second()
            self._check_group()
            self._end(members)
            self._compare_files()
        for number, kind in enumerate(self._plan.writers):
            name = _name(number, kind)
            read_journal(self._journal(name), name, number + 1, report.notes)
        self._say("checking")
        *others, final = self._readings
        report.violations += violations(report.notes, others, final)
        report.stored_in_spite_of_an_error = stored_in_spite_of_an_error(report.notes, final)
        report.seconds = time.monotonic() - self._started_s
        return report

    # -- writers and readers -------------------------------------------------------------------

    def _writer(self, number: int, kind: str) -> "subprocess.Popen[bytes]":
        name = _name(number, kind)
        servers, journal = self._cluster.bootstrap_servers, str(self._journal(name))
        arguments = (kind, str(number + 1), servers, TOPIC, str(PARTITIONS), journal)
        return self._start(name, "chaos.writer", *arguments)

    def _group_member(self, number: int) -> "subprocess.Popen[bytes]":
        name = f"member-{number + 1}"
        servers, journal = self._cluster.bootstrap_servers, str(self._journal(name))
        return self._start(name, "chaos.group_worker", servers, TOPIC, journal)

    def _pipeline(self) -> AbstractContextManager[Any]:
        if not self._plan.with_spark:
            return nullcontext()
        from chaos.pipeline import TOPIC as EVENTS
        from chaos.pipeline import Pipeline

        self._cluster.create_topic(
            EVENTS, PARTITIONS, replication_factor=3, configs={"min.insync.replicas": 2}
        )
        return Pipeline(self._cluster.bootstrap_servers, PARTITIONS, self._home)

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

    @property
    def _member_journals(self) -> list[Path]:
        return [self._journal(f"member-{n + 1}") for n in range(self._plan.group_members)]

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
        self._readings.append(Reading(name))
        return Tail(servers, TOPIC, PARTITIONS, self._readings[-1]).start()

    # -- faults --------------------------------------------------------------------------------

    def _wait_until_all_work(self, tail: Tail) -> None:
        """Writers write and members of the group process what they have written."""
        until_s = time.monotonic() + HEALTHY_S
        while not tail.has_all_partitions() or not all(
            journal.exists() and journal.stat().st_size for journal in self._member_journals
        ):
            if time.monotonic() > until_s:
                self._find("not all writers and members of the group began")
                return
            time.sleep(0.1)

    def _disturb(self, faults: Sequence[Fault], tail: Tail) -> None:
        tail.start_silence()
        first_s = tail.started_s
        for fault in faults:
            if time.monotonic() > self._ends_s:
                self._say("the time is up")
                return
            began_s = time.monotonic()
            try:
                what, ended_s = self._strike(fault, tail)
            except Exception as error:
                # A broker that does not start, a partition without a leader: the checks still run.
                self._find(f"fault {fault} failed: {error!r}")
                return
            span = fault.kind, began_s - first_s, ended_s - first_s
            if fault.is_hasty:
                self._say(what)
                self.report.spans.append((*span, time.monotonic() - first_s))
                continue
            if not self._wait_until_healthy(f"after fault {what}"):
                return
            back_s, silence_s = time.monotonic() - ended_s, tail.longest_silence_s()
            tail.start_silence()
            self.report.spans.append((*span, time.monotonic() - first_s))
            self.report.back_s.setdefault(fault.kind, []).append(back_s)
            self.report.silence_s.setdefault(fault.kind, []).append(silence_s)
            self._say(f"{what}; in sync again after {back_s:.1f} s, silent for {silence_s:.1f} s")

    def _strike(self, fault: Fault, tail: Tail) -> tuple[str, float]:
        """What was done, and when the fault ended."""
        kind, broker = self._plan.kinds[fault.kind], fault.broker
        if broker is None and kind.has_target:
            broker = self._cluster.wait_leader(TOPIC, fault.partition, timeout_s=HEALTHY_S)
        broker = broker or 0
        kind.begin(self._cluster, broker)
        time.sleep(fault.hold_s)
        if kind.goes_on:
            self._check_going_on(fault.kind, tail)
        ended_s = time.monotonic()
        kind.end(self._cluster, broker)
        self.report.faults[fault.kind] += 1
        aim = f" of broker {broker}" if kind.has_target else ""
        if kind.has_target and fault.broker is None:
            aim += f", leader of {TOPIC}-{fault.partition},"
        what = f"{fault.number}: {fault.kind}{aim} for {fault.hold_s:.1f} s"
        return what, ended_s

    def _check_going_on(self, kind: str, tail: Tail) -> None:
        silence_s = tail.longest_silence_s()
        if silence_s > GOES_ON_S:
            self._find(f"a partition took no writes for {silence_s:.1f} s in {kind}")
        for journal in self._member_journals:
            idle_s = time.time() - journal.stat().st_mtime
            if idle_s > GOES_ON_S:
                self._find(f"{journal.stem} processed nothing for {idle_s:.1f} s in {kind}")

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
        self.report.records = sum(map(len, self._readings[-1].keys.values()))
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
        ends = self._ends()
        until_s = time.monotonic() + _READ_S
        while True:
            work = read_work(self._member_journals)
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
            try:
                self.report.files.add(name, directories, end)
            except OSError as error:
                self._find(f"the files of {name} cannot be compared: {error}")


def _name(number: int, kind: str) -> str:
    return f"{kind}-{number + 1}"


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


if __name__ == "__main__":
    sys.exit(main())
