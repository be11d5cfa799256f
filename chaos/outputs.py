"""The run of `chaos/run.py` with several outputs of one read: `python -m chaos --sink outputs`.

Chance decides whether a row goes to the Delta table, the Iceberg table, the topic or the dead
letters: what a batch has sent to one of them in one attempt goes to another in the next. In the end
all of them together equal the topic. Drivers are killed at named points: the job waits at the one
that the file `hold` names (`chaos/job.py`), and is killed there. Such a kill takes as long as a new
driver needs to start, so of five points four are reached in a running Java: there the query fails,
and begins again from its checkpoint. Most second drivers only ask for the checkpoint.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from chaos.checker import Row
from chaos.job import FAULT
from chaos.ledger import LEDGER, read_ledger
from chaos.processes import Process
from chaos.run import Plan
from chaos.topic_sink import TopicRun

ICEBERG: Final = "chaos.rows"
LETTERS: Final = "letters"
POINTS: Final = (
    "files",
    "manifest",
    "commit of topic",
    "commit of dead_letters",
    "commit of table",
    "commit of iceberg",
)
"""The steps of a batch in their order: a driver is killed after each."""
_STRIKES: Final = {
    **{f"driver after {point}": point for point in POINTS},
    "second driver": "second driver",
    "driver's JVM": "jvm",
    "Python worker": "worker",
    "broker": "broker",
}
"""By who is killed."""
_SHARE: Final = 10
"""Everyone is killed at least so often: this part of all kills."""
_REAL: Final = 5
"""Of so many strikes at drivers one kills a process with its Java."""
_SECOND: Final = """
import sys, time
from suwi.spark.manifest import AnotherProcess, ManifestLog
for checkpoint in sys.argv[1:]:
    try:
        ManifestLog(checkpoint).lock()
        print("took", checkpoint, flush=True)
    except AnotherProcess:
        print("refused", flush=True)
time.sleep(600)
"""
RUNS: Final = LEDGER.with_name("outputs.jsonl")
PAGE: Final = "outputs.md"
_HOLD_S: Final = 180.0
_TAKES_OVER_S: Final = 0.3
"""About as long does a second driver that has started take to its first batch."""


class OutputsRun(TopicRun):
    def __init__(self, plan: Plan, home: Path, say: Callable[[str], None]) -> None:
        super().__init__(plan, home, say)
        self._hold = home / "hold"
        self._warehouse = home / "warehouse"
        self.report.needed = tuple(_STRIKES)
        self._strikes = 0
        self.rows: dict[str, int] = {}
        """How many each output has in the end."""

    def summary(self) -> dict[str, Any]:
        """For the ledger."""
        report = self.report
        return {
            "what": f"around Spark, seed {self._plan.seed}",
            "kills": dict(report.kills),
            "seconds": round(report.seconds),
            "starts": report.starts.total(),
            "records": report.verdict.records if report.verdict else 0,
            "rows": self.rows,
            "exact": bool(report.verdict and report.verdict.is_exact),
        }

    def _make_topics(self) -> None:
        super()._make_topics()
        self._brokers.make_topic(LETTERS, 1)

    def _sink_arguments(self) -> dict[str, str]:
        return {
            **super()._sink_arguments(),
            "table": str(self._table),
            "iceberg": ICEBERG,
            "warehouse": str(self._warehouse),
            "letters": LETTERS,
            "hold": str(self._hold),
        }

    def _is_enough(self) -> bool:
        least = max(1, self._plan.kills // _SHARE)
        return super()._is_enough() and all(self.report.times(who) >= least for who in _STRIKES)

    def _choose(self, number: int) -> str:
        fewest = min(map(self.report.times, _STRIKES))
        return self._random.choice(
            [strike for who, strike in _STRIKES.items() if self.report.times(who) == fewest]
        )

    def _strike(self, strike: str) -> None:
        if strike not in POINTS:
            super()._strike(strike)
            return
        self._strikes += 1
        is_real, who = self._strikes % _REAL == 0, f"driver after {strike}"
        order = f"{'hold' if is_real else FAULT} {self._strikes}"
        written = self._hold.with_suffix(".new")
        written.write_text(f"{order}\n{strike}")
        written.replace(self._hold)
        if self._drivers[-1].wait_for(f"at {order}", _HOLD_S):
            if is_real:
                self._kill_driver(who)
            else:
                self._hit(f"{who}, its Java goes on")
        self._hold.unlink(missing_ok=True)

    def _second_driver(self) -> None:
        """The second is refused while the first has the checkpoint, and takes it over else."""
        if (self.report.times("second driver") + 1) % _REAL:
            self._ask_for_checkpoints()
            return
        first, second = self._drivers[-1], self._start_driver()
        for driver in self._random.sample((first, second), 2):
            self._pause(0, _TAKES_OVER_S)
            if driver.is_running:
                driver.kill()
                self._hit("second driver" if driver is second else "first driver of two")

    def _ask_for_checkpoints(self) -> None:
        """As a second driver begins; then it is killed. The first goes on."""
        if not self._await_commit():
            return
        checkpoints = [str(self._home / "checkpoints" / name) for name in self._plan.pipelines]
        second = Process(["-c", _SECOND, *checkpoints], self._log)
        second.wait_for("refused", _HOLD_S)
        second.kill()
        # A pipeline that has had no batch since its driver was started has no lock yet.
        if not any(line == "refused" for line in second.lines):
            raise AssertionError(f"nobody has the checkpoints: {second.lines}")
        self._hit("second driver, refused")

    def _commits(self) -> int:
        """How many manifests were stored: the next moments are those of the commits."""
        manifests = (self._home / "checkpoints").glob("*/suwi-outputs/[0-9]*.json")
        self._seen |= {str(path): 1 for path in manifests}
        return len(self._seen)

    def _rows(self) -> list[Row]:
        from tests.spark.iceberg.tables import rows_of

        found = {
            "Delta": self._rows_of_table(),
            "Iceberg": [
                Row(row["pipeline"], (row["partition"], row["offset"]), row["number"])
                for row in rows_of(self._warehouse, ICEBERG)
            ],
            "topic": self._rows_of_topic(),
            "dead letters": self._rows_of_topic(LETTERS, 1),
        }
        self.rows = {name: len(rows) for name, rows in found.items()}
        self._say("rows: " + ", ".join(f"{name} {count}" for name, count in self.rows.items()))
        return [row for rows in found.values() for row in rows]


# -- the ledger ------------------------------------------------------------------------------------


def add_run(found: Mapping[str, Any], ledger: Path = RUNS) -> None:
    """One line for a run, and the page beside it anew."""
    with ledger.open("a") as file:
        file.write(json.dumps({"date": time.strftime("%Y-%m-%d", time.gmtime()), **found}) + "\n")
    ledger.with_name(PAGE).write_text(page(read_ledger(ledger)))


_HEAD: Final = """\
# Kills around a query with several outputs

Made by `python -m chaos --sink outputs` (around a Spark) and `python -m chaos.points` (without one)
from `outputs.jsonl`; [../chaos.md](../chaos.md#spark) says what is done. `its Java goes on`: the
query fails there, and begins again from its checkpoint.

| killed | times |
|---|---:|
"""
_RUNS: Final = """
| date | what | kills | seconds | drivers | records | rows | equal |
|---|---|---:|---:|---:|---:|---|---|
"""


def page(runs: list[dict[str, Any]]) -> str:
    kills: Counter[str] = Counter()
    for run in runs:
        kills.update({f"{who}, {run['what']}": times for who, times in run["kills"].items()})
    killed = [f"| {who} | {times} |\n" for who, times in sorted(kills.items())]
    return "".join([_HEAD, *killed, _RUNS, *map(_run_row, runs)])


def _run_row(run: dict[str, Any]) -> str:
    cells = [
        run["date"],
        run["what"],
        sum(run["kills"].values()),
        run["seconds"],
        run["starts"],
        f"{run['records']:,}",
        ", ".join(f"{name} {count:,}" for name, count in run["rows"].items()),
        "yes" if run["exact"] else "no",
    ]
    return f"| {' | '.join(map(str, cells))} |\n"
