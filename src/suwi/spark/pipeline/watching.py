"""A running query, watched: what its batches did, how far it is behind, how old the last one is.

`Watch.look` takes Spark's reports since the last look; `line` is what a person sees.
Invariant: a batch is counted once, however often one looks.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from suwi.env import Clock
from suwi.spark.pipeline.lag import end_of_batch

_THOUSAND = 1000


class Watch:
    def __init__(self, name: str, clock: Clock) -> None:
        self.name = name
        self.rows = 0
        self.batches = 0
        self.batch = -1
        """The number of the last batch that is done."""
        self.batch_ms = 0
        self.rows_per_s = 0.0
        self.done_ms: int | None = None
        """When the last batch was done, or found to be empty."""
        self.end: dict[str, Any] | None = None
        """Where it ended."""
        self.lag: Mapping[str, int] | None = None
        """Records that are left to read, by partition."""
        self._clock = clock
        self._seen = ""

    @property
    def lag_total(self) -> int | None:
        return None if self.lag is None else sum(self.lag.values())

    @property
    def age_s(self) -> float | None:
        """How long ago the last batch was done."""
        if self.done_ms is None:
            return None
        return max(0, self._clock.now_ms() - self.done_ms) / _THOUSAND

    def restarted(self) -> None:
        """The query runs anew, and its reports begin again."""
        self._seen = ""

    def look(self, reports: Iterable[Mapping[str, Any]]) -> bool:
        """Take in reports, oldest first; whether there were new ones."""
        is_new = False
        for report in reports:
            if report["timestamp"] > self._seen:
                self._seen = report["timestamp"]
                self._take(report)
                is_new = True
        return is_new

    def _take(self, report: Mapping[str, Any]) -> None:
        self.done_ms = self._clock.now_ms()
        self.end = end_of_batch(report) or self.end
        if "addBatch" not in report["durationMs"]:
            self.rows_per_s = 0.0  # It found nothing to do.
            return
        self.batch = report["batchId"]
        self.batches += 1
        self.rows += report["numInputRows"]
        self.batch_ms = report["durationMs"]["triggerExecution"]
        self.rows_per_s = report["numInputRows"] * _THOUSAND / max(1, self.batch_ms)

    def line(self) -> str:
        lag = "?" if self.lag_total is None else f"{self.lag_total:,}"
        if self.batches == 0:
            state = "waiting for records" if self.done_ms is not None else "starting"
            return f"{self.name}: {state}, lag {lag}"
        return (
            f"{self.name}: batch {self.batch}, {self.rows:,} rows, {self.rows_per_s:,.0f} rows/s, "
            f"lag {lag}, last batch {self.batch_ms / _THOUSAND:.1f} s"
        )
