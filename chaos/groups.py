"""`make chaos-groups`: members of real clients come, leave and are killed, and so are coordinators.

Each kind of client has a group of its own, every member in a process of its own, over three brokers
in this process, while records flow. At the end no group may have skipped a record, or read one
again that it had committed. Otherwise the exit code is 1, and the journals are kept.
"""

import argparse
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from chaos.events import Writer, read_topic
from chaos.group_checker import Note, read_notes, repeated, unread, violations
from chaos.group_member import KINDS
from suwi.coordinator.runtime import shard_index
from suwi.testing import Cluster

TOPIC = "orders"
PARTITIONS = 6
OFFSETS, SHARDS = "__consumer_offsets", 4
MEMBERS_MAX = 3
_HEALTHY_S = 90.0
_READ_S = 120.0
_LEFT_S = 60.0
_ROOT = Path(__file__).parents[1]


@dataclass(slots=True)
class Report:
    seed: int
    faults: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    records: int = 0
    repeated: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0


class GroupMembers:
    """The members of one group, alive and dead."""

    def __init__(self, kind: str, servers: str, home: Path, chance: random.Random) -> None:
        self.kind = kind
        self._servers = servers
        self._home = home
        self._chance = chance
        self._count = 0
        self._living: dict[str, tuple[subprocess.Popen[bytes], str]] = {}
        self._journals: list[Path] = []

    # -- faults: what was done, or None where it cannot be ---------------------------------------

    def add(self) -> str | None:
        if len(self._living) >= MEMBERS_MAX:
            return None
        is_static = self._chance.random() < 0.4
        return f"{self._start(f'i{self._count}' if is_static else '-')} is added"

    def remove(self) -> str | None:
        if len(self._living) < 2:
            return None
        name, process, _ = self._choose()
        del self._living[name]
        process.send_signal(signal.SIGTERM)
        process.wait(_LEFT_S)
        return f"{name} leaves"

    def kill(self) -> str | None:
        name, process, instance = self._choose()
        self._kill(name, process)
        again = self._start(instance if self._chance.random() < 0.5 else "-")
        return f"{name} is killed, {again} is added"

    def restart_static(self) -> str | None:
        static = [name for name, (_, instance) in self._living.items() if instance != "-"]
        if not static:
            return None
        name = self._chance.choice(static)
        process, instance = self._living[name]
        self._kill(name, process)
        return f"static {name} comes back as {self._start(instance)}"

    def _choose(self) -> tuple[str, "subprocess.Popen[bytes]", str]:
        name = self._chance.choice(list(self._living))
        return name, *self._living[name]

    def _kill(self, name: str, process: "subprocess.Popen[bytes]") -> None:
        del self._living[name]
        process.kill()
        process.wait()

    def _start(self, instance: str) -> str:
        self._count += 1
        name = f"{self.kind}-{self._count}"
        journal = self._home / f"{name}.journal"
        self._journals.append(journal)
        about = (self.kind, name, instance, self._servers, TOPIC, self.kind, str(journal))
        with (self._home / f"{name}.log").open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "chaos.group_member", *about], cwd=_ROOT, stderr=errors
            )
        self._living[name] = process, instance
        return name

    # -- the end ---------------------------------------------------------------------------------

    def notes(self) -> dict[str, list[Note]]:
        return {each.stem: read_notes(each) for each in self._journals if each.exists()}

    def ended_early(self) -> list[str]:
        return [
            f"{name} ended with code {process.returncode}"
            for name, (process, _) in self._living.items()
            if process.poll() is not None
        ]

    def end(self) -> None:
        for process, _ in self._living.values():
            process.terminate()
        for process, _ in self._living.values():
            try:
                process.wait(_LEFT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Run:
    def __init__(
        self,
        kinds: Iterable[str],
        minutes: float,
        seed: int,
        home: Path,
        say: Callable[[str], None],
    ) -> None:
        self.report = Report(seed)
        self._chance = random.Random(seed)
        self._ends_s = time.monotonic() + minutes * 60
        self._started_s = time.monotonic()
        self._home = home
        self._say = say
        self._kinds = list(kinds)
        self._groups: list[GroupMembers] = []
        settings = {"min.insync.replicas": 2, "offsets.topic.num.partitions": SHARDS}
        self._cluster = Cluster(3, directory=str(home / "brokers"), settings=settings)

    def go(self) -> Report:
        report = self.report
        with self._cluster as cluster:
            cluster.create_topic(TOPIC, PARTITIONS, replication_factor=3)
            servers = cluster.bootstrap_servers
            writer = Writer(servers, TOPIC, PARTITIONS).start()
            self._groups = [
                GroupMembers(kind, servers, self._home, self._chance) for kind in self._kinds
            ]
            try:
                for group in self._groups:
                    group.add()
                    group.add()
                self._disturb()
                writer.stop()
                self._wait_until_read(servers)
            finally:
                for group in self._groups:
                    group.end()
        report.seconds = time.monotonic() - self._started_s
        return report

    def _disturb(self) -> None:
        while time.monotonic() < self._ends_s:
            time.sleep(self._chance.uniform(0.5, 6))
            group = self._chance.choice(self._groups)
            kind = self._chance.choice(_FAULTS)
            if kind == "coordinator":
                done: str | None = self._kill_coordinator(group)
            else:
                done = getattr(group, kind)()
            if done is not None:
                self.report.faults[kind] += 1
                self._say(done)
            for ended in group.ended_early():
                self._find(ended)
                return

    def _kill_coordinator(self, group: GroupMembers) -> str:
        cluster = self._cluster
        shard = shard_index(group.kind, SHARDS)
        broker = cluster.wait_leader(OFFSETS, shard, timeout_s=_HEALTHY_S)
        cluster.kill(broker)
        time.sleep(self._chance.uniform(0, 4))
        cluster.restart(broker)
        cluster.wait_until_healthy(timeout_s=_HEALTHY_S)
        return f"broker {broker}, coordinator of {group.kind}, was killed and is back"

    def _wait_until_read(self, servers: str) -> None:
        topic = read_topic(servers, TOPIC, PARTITIONS)
        ends = {p: sum(place[0] == p for place in topic) for p in range(PARTITIONS)}
        self.report.records = len(topic)
        limit_s = time.monotonic() + _READ_S
        while time.monotonic() < limit_s:
            if not any(unread(group.notes(), ends) for group in self._groups):
                break
            time.sleep(0.5)
        for group in self._groups:
            notes = group.notes()
            self.report.repeated[group.kind] = repeated(notes)
            for wrong in violations(notes, ends):
                self._find(f"{group.kind}: {wrong}")

    def _find(self, what: str) -> None:
        self.report.findings.append(what)
        self._say(what)


_FAULTS = ("add", "remove", "kill", "restart_static", "coordinator")


def format_report(report: Report) -> str:
    faults = ", ".join(f"{times} × {kind}" for kind, times in sorted(report.faults.items()))
    again = ", ".join(f"{count} {kind}" for kind, count in report.repeated.items())
    count = report.faults.total()
    return "\n".join(
        [
            f"seed {report.seed}: {count} faults in {report.seconds:.0f} s: {faults}",
            f"{report.records} records; read again because they were not committed: {again}",
            f"verdict: {len(report.findings)} violations",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos.groups", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    arguments = parser.parse_args()
    seed = random.randrange(10**6) if arguments.seed is None else arguments.seed
    home = Path(tempfile.mkdtemp(prefix=f"suwi-chaos-groups-{seed}-"))
    print(f"{arguments.minutes:g} minutes, seed {seed}, in {home}", flush=True)
    run = Run(arguments.kinds, arguments.minutes, seed, home, lambda line: print(line, flush=True))
    report = run.go()
    print(format_report(report))
    if report.findings:
        print(f"kept: {home}")
    else:
        shutil.rmtree(home)
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
