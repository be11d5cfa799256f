"""The run of `chaos/run.py` with several outputs of one read: `python -m chaos --sink outputs`.

Chance decides whether a row goes to the Delta table, the Iceberg table, the topic or the dead
letters: what a batch has sent to one of them in one attempt goes to another in the next. In the end
all of them together equal the topic. Drivers are killed at named points: the job waits at the one
that the file `hold` names (`chaos/job.py`), and is killed there.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from chaos.checker import Row
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
_SHARE: Final = 12
"""Everyone is killed at least so often: this part of all kills."""
_HOLD_S: Final = 180.0
_TAKES_OVER_S: Final = 0.3
"""About as long does a second driver that has started take to its first batch."""


class OutputsRun(TopicRun):
    def __init__(self, plan: Plan, home: Path, say: Callable[[str], None]) -> None:
        super().__init__(plan, home, say)
        self._hold = home / "hold"
        self._warehouse = home / "warehouse"
        self.report.needed = tuple(_STRIKES)

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
        self._hold.write_text(strike)
        if self._drivers[-1].wait_for(f"at {strike}", _HOLD_S):
            self._kill_driver(f"driver after {strike}")
        self._hold.unlink()

    def _second_driver(self) -> None:
        """The second is refused while the first has the checkpoint, and takes it over else."""
        first, second = self._drivers[-1], self._start_driver()
        for driver in self._random.sample((first, second), 2):
            self._pause(0, _TAKES_OVER_S)
            if driver.is_running:
                driver.kill()
                self._hit("second driver" if driver is second else "first driver of two")

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
        self._say("rows: " + ", ".join(f"{name} {len(rows)}" for name, rows in found.items()))
        return [row for rows in found.values() for row in rows]
