"""One run: kills at random moments until there were enough, then the comparison.

Invariant: from the first kill to the comparison nothing is repaired by hand. What was killed is
started again, as a supervisor would, and nothing else.
"""

import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from chaos.brokers import Brokers, OneBroker, ThreeBrokers
from chaos.checker import Row, Verdict, compare
from chaos.events import Writer, read_topic
from chaos.processes import Process, kill_one

TOPIC = "events"
STRIKES = ("commit", "commit", "driver", "jvm", "worker", "worker", "broker")
_FIRST_BATCH = 3
"""This many kills before the first batch is in the table."""
_SECOND_DRIVER_EVERY = 9
_SUPPRESSED = re.compile(r"batch suppressed")
_START_S = 300
_COMMIT_S = 180
_FINISH_S = 900
_FINISH_TRIES = 5
_LAST_BATCHES = 25
"""How much larger batches are at the end, when nothing is killed any more."""


@dataclass(frozen=True, slots=True)
class Plan:
    kills: int
    seed: int
    brokers: int = 1
    partitions: int = 12
    pipelines: tuple[str, ...] = ("left", "right")
    rows_per_batch: int = 1_000
    masters: tuple[str, ...] = ("local[1,4]", "local[2,4]", "local[3,4]", "local[4,4]")
    """Four attempts for a task, so that a killed worker does not end the query."""
    strikes: tuple[str, ...] = ()
    """In this order, again and again; if empty, at random."""
    with_upkeep: bool = True


@dataclass(slots=True)
class Report:
    kills: Counter[str] = field(default_factory=Counter)
    starts: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    suppressed: int = 0
    replays: int = 0
    upkeep: dict[str, int] = field(default_factory=dict)
    """How often which maintenance was done beside the pipelines."""
    commits: int = 0
    seconds: float = 0
    verdict: Verdict | None = None

    needed: tuple[str, ...] = ()
    """Who must have been killed several times."""

    @property
    def killed(self) -> int:
        return sum(self.kills.values())

    def times(self, who: str) -> int:
        return sum(times for kind, times in self.kills.items() if kind.startswith(who))


class Run:
    def __init__(self, plan: Plan, home: Path, say: Callable[[str], None]) -> None:
        self._plan = plan
        self._home = home
        self._say = say
        self._random = random.Random(plan.seed)
        self._table = home / "table"
        self._log = home / "drivers.log"
        self._brokers: Brokers = OneBroker(home) if plan.brokers == 1 else ThreeBrokers(home)
        self._drivers: list[Process] = []
        self._upkeep: Process | None = None
        self._batch_s = 2.0
        """The approximate duration of a batch."""
        self._strikes_left: list[str] = []
        """Each kind is used before any is used again, so that none is missing in a long run."""
        self._is_batch: dict[str, bool] = {}
        """By log entry of the table."""
        self.report = Report()

    def go(self) -> Report:
        began = time.monotonic()
        self._brokers.start()
        try:
            self._make_topics()
            writer = Writer(self._brokers.servers, TOPIC, self._plan.partitions).start()
            self._start_upkeep()
            self._strike_until_enough()
            sent = writer.stop()
            self._finish()
            self._check_upkeep()
            self.report.verdict = self._compare_with_topic(sent)
        finally:
            self._end()
        self.report.suppressed = len(_SUPPRESSED.findall(self._log.read_text(errors="replace")))
        self.report.seconds = time.monotonic() - began
        return self.report

    def _make_topics(self) -> None:
        self._brokers.make_topic(TOPIC, self._plan.partitions)

    def _start_upkeep(self) -> None:
        if self._plan.with_upkeep:
            arguments = ["-m", "chaos.upkeep", str(self._table)]
            self._upkeep = Process(arguments, self._home / "upkeep.log")

    def _check_upkeep(self) -> None:
        """It runs until it is killed: if it has ended, it has failed."""
        if self._upkeep is not None and not self._upkeep.is_running:
            why = (self._home / "upkeep.log").read_text(errors="replace")[-2_000:]
            raise AssertionError(f"upkeep ended by itself: {why}")

    def _end(self) -> None:
        self._kill_drivers()
        if self._upkeep is not None:
            self._upkeep.kill()
            self.report.upkeep = json.loads(self._upkeep.lines[-1]) if self._upkeep.lines else {}
        self._brokers.stop()

    # -- strikes ---------------------------------------------------------------------------------

    def _strike_until_enough(self) -> None:
        for number in range(10 * self._plan.kills):
            if self._is_enough():
                return
            self._keep_running()
            self._strike(self._choose(number))
        raise AssertionError(f"only {self.report.killed} of {self._plan.kills} strikes hit")

    def _is_enough(self) -> bool:
        return self.report.killed >= self._plan.kills

    def _choose(self, number: int) -> str:
        if self._plan.strikes:
            return self._plan.strikes[number % len(self._plan.strikes)]
        if number < _FIRST_BATCH:
            return "first batch"
        if number % _SECOND_DRIVER_EVERY == _SECOND_DRIVER_EVERY - 1:
            return "second driver"
        if not self._strikes_left:
            self._strikes_left = self._random.sample(STRIKES, len(STRIKES))
        return self._strikes_left.pop()

    def _strike(self, strike: str) -> None:
        match strike:
            case "first batch":
                self._await_first_batch()
                self._kill_driver("driver in its first batch" if not self._commits() else "driver")
            case "commit":
                family = self._drivers[-1].family()
                if self._await_commit():
                    self._kill_driver("driver just after a commit", family)
            case "driver":
                self._await_any_moment()
                self._kill_driver("driver")
            case "jvm":
                self._await_any_moment()
                self._kill_jvm()
            case "worker":
                self._await_any_moment()
                self._kill_worker()
            case "broker":
                self._await_any_moment()
                self._kill_broker()
            case "second driver":
                self._second_driver()
            case _:
                raise ValueError(f"no such strike: {strike}")

    def _kill_driver(self, kind: str, family: Sequence[int] | None = None) -> None:
        driver = self._drivers[-1]
        if driver.is_running:
            driver.kill(family)
            self._hit(kind)

    def _kill_jvm(self) -> None:
        """Only the JVM: the Python side of the driver has to notice."""
        driver = self._drivers[-1]
        if driver.is_running and kill_one(driver.family()[0]):
            self._hit("driver's JVM")
            driver.wait(_START_S)

    def _kill_worker(self) -> None:
        workers = self._drivers[-1].workers()
        if workers and kill_one(self._random.choice(workers)):
            self._hit("Python worker")

    def _kill_broker(self) -> None:
        self._hit(self._brokers.kill(self._random))
        self._pause(0, 1)
        self._brokers.revive()

    def _second_driver(self) -> None:
        """A second driver on the checkpoints of a running one; then both are killed."""
        self._start_driver()
        for driver in self._random.sample(self._drivers[-2:], 2):
            self._await_any_moment()
            if driver.is_running:
                driver.kill()
                self._hit("driver, one of two on a checkpoint")

    def _hit(self, kind: str) -> None:
        self.report.kills[kind] += 1
        self._say(f"  {self.report.killed:3} of {self._plan.kills}: killed the {kind}")

    # -- drivers ---------------------------------------------------------------------------------

    def _keep_running(self) -> None:
        """Restart the driver if it has ended, as a supervisor does."""
        if self._drivers and self._drivers[-1].is_running:
            return
        if self._drivers and any(line.startswith("failed") for line in self._drivers[-1].lines):
            self.report.ended["query failed"] += 1
        self._start_driver()

    def _start_driver(self, *, once: bool = False) -> Process:
        self.report.replays += self._uncommitted_batches()
        master = self._random.choice(self._plan.masters)
        self.report.starts[master] += 1
        arguments = {
            "servers": self._brokers.servers,
            "topic": TOPIC,
            "checkpoints": str(self._home / "checkpoints"),
            "pipelines": ",".join(self._plan.pipelines),
            "master": master,
            "scratch": str(self._home / "scratch"),
            "rows": str(self._plan.rows_per_batch * (_LAST_BATCHES if once else 1)),
            **self._sink_arguments(),
        }
        words = [word for name, value in arguments.items() for word in (f"--{name}", value)]
        driver = Process(["-m", "chaos.job", *words, *(["--once"] if once else [])], self._log)
        self._drivers.append(driver)
        driver.wait_for("started", _START_S)
        return driver

    def _sink_arguments(self) -> dict[str, str]:
        return {"table": str(self._table)}

    def _uncommitted_batches(self) -> int:
        """Batches that Spark has started and not committed: it will run them again."""
        replayed = 0
        for pipeline in self._plan.pipelines:
            begun = self._begun(pipeline)
            done = _entries(self._home / "checkpoints" / pipeline / "commits")
            replayed += len(begun - done)
        return replayed

    def _begun(self, pipeline: str) -> set[str]:
        return _entries(self._home / "checkpoints" / pipeline / "offsets")

    def _kill_drivers(self) -> None:
        for driver in self._drivers:
            if driver.is_running:
                driver.kill()

    def _commits(self) -> int:
        """How many batches are in the table; maintenance commits are not counted."""
        for entry in (self._table / "_delta_log").glob("*.json"):
            if entry.name not in self._is_batch:
                self._is_batch[entry.name] = '"txn"' in entry.read_text()
        return sum(self._is_batch.values())

    # -- moments ---------------------------------------------------------------------------------

    def _await_first_batch(self) -> None:
        """Wait until a batch has started, and then for a part of its duration."""
        self._wait(lambda: any(self._begun(pipeline) for pipeline in self._plan.pipelines))
        self._pause(0, 3)

    def _await_any_moment(self) -> None:
        """Wait for a moment between one commit and the next."""
        began = time.monotonic()
        if self._await_commit():
            self._batch_s = min(10.0, (self._batch_s + time.monotonic() - began) / 2)
            self._pause(0, self._batch_s)

    def _await_commit(self) -> bool:
        before = self._commits()
        return self._wait(lambda: self._commits() != before)

    def _wait(self, is_so: Callable[[], bool]) -> bool:
        """False if the driver ended before, or it takes too long."""
        limit = time.monotonic() + _COMMIT_S
        while not is_so():
            if time.monotonic() > limit or not self._drivers[-1].is_running:
                return False
            time.sleep(0.002)
        return True

    def _pause(self, least_s: float, most_s: float) -> None:
        time.sleep(self._random.uniform(least_s, most_s))

    # -- the end ---------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Let the pipelines reach the end of the topic, without kills."""
        self._kill_drivers()
        for _ in range(_FINISH_TRIES):
            driver = self._start_driver(once=True)
            if driver.wait(_FINISH_S) == 0:
                return
        raise AssertionError(f"the pipelines did not finish: see {self._log}")

    def _compare_with_topic(self, sent: Sequence[int]) -> Verdict:
        rows = self._rows()
        topic = read_topic(self._brokers.servers, TOPIC, self._plan.partitions)
        return compare(sent, topic, rows, self._plan.pipelines)

    def _rows(self) -> list[Row]:
        """What stands in the output."""
        return self._rows_of_table()

    def _rows_of_table(self) -> list[Row]:
        table = self._open_table()
        self.report.commits = table.version()
        columns = table.to_pyarrow_table().to_pydict()
        return [
            Row(pipeline, (partition, offset), number)
            for pipeline, partition, offset, number in zip(
                columns["pipeline"],
                columns["partition"],
                columns["offset"],
                columns["number"],
                strict=True,
            )
        ]

    def _open_table(self) -> DeltaTable:
        try:
            return DeltaTable(str(self._table))
        except DeltaError as error:
            raise AssertionError(f"there is no table: {error}") from error


def _entries(directory: Path) -> set[str]:
    return {entry.name for entry in directory.glob("[0-9]*")} if directory.exists() else set()
