"""Progress of a query: what its batches did, its lag, and its offsets for a consumer group.

`Watch.look` takes Spark's reports since the last look, and `line` is what a person sees.
`Lag.reached` takes the offsets that a finished batch ended at and commits them, `behind` asks the
brokers how much is left. The source cannot do it: Spark tells it of a batch one batch later, and
of the last one never.
Invariants: a batch is counted once, however often one looks. Nothing here stops a query: brokers
without groups, or that are away, are noted once.
"""

import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from suwi.client.group_offsets import commit_offsets
from suwi.client.offsets import LATEST, list_offsets
from suwi.env import Clock
from suwi.model.errors import BrokerError, UnknownTopicOrPartition, UnsupportedVersion
from suwi.spark.offsets import NOT_TOPICS, Offsets, from_json
from suwi.spark.options import read_connection
from suwi.spark.rules import OBSERVED
from suwi.spark.session import Session

log = logging.getLogger(__name__)

_PATIENCE_MS = "5000"


class Lag:
    """The lag of one query. Not thread-safe."""

    def __init__(
        self, options: Mapping[str, str], group: str | None, *, committed_only: bool = False
    ) -> None:
        """`options` are those of the source; raises `BadOption`."""
        connection = read_connection({"kafka.default.api.timeout.ms": _PATIENCE_MS, **options})
        self._session = Session(connection)
        self.group = group
        self._committed_only = committed_only
        self._is_told = False
        self.offsets: Offsets = {}
        """Where the last batch ended."""
        self.committed: Offsets = {}
        """What was committed for the group."""

    def reached(self, end: Mapping[str, Any]) -> None:
        """A batch is done, and ended here."""
        self.offsets = from_json(end)
        if self.group is None or self.offsets == self.committed:
            return
        changed = {
            partition: offset
            for partition, offset in self.offsets.items()
            if self.committed.get(partition) != offset
        }
        try:
            self._session.run(commit_offsets(self._session.cluster, self.group, changed))
            self.committed = dict(self.offsets)
            self._is_told = False
        except UnsupportedVersion:
            log.info("no consumer groups here: progress is not committed")
            self.group = None
        except Exception as error:
            self._tell("progress could not be committed", error)

    def behind(self) -> dict[str, int] | None:
        """Records that are left to read, by topic and partition; None where it is not known."""
        if not self.offsets:
            return None
        try:
            ends = self._session.run(
                list_offsets(
                    self._session.cluster,
                    dict.fromkeys(self.offsets, LATEST),
                    committed_only=self._committed_only,
                )
            )
        except UnknownTopicOrPartition:
            return None  # A topic was deleted; the source says so in its own way.
        except Exception as error:
            self._tell("how far the topics reach could not be asked", error)
            return None
        return {
            str(partition): max(0, end.offset - self.offsets[partition])
            for partition, end in ends.items()
        }

    def close(self) -> None:
        self._session.close()

    def _tell(self, what: str, error: Exception) -> None:
        is_ours = not isinstance(error, BrokerError | OSError)
        if not self._is_told:
            self._is_told = True
            log.warning(what, extra={"group": self.group, "why": str(error)}, exc_info=is_ours)


def report_of(progress: Any) -> dict[str, Any]:
    """Spark's report of a batch, in whatever form this PySpark has it."""
    found: dict[str, Any] = json.loads(progress.json)
    return found


def end_of_batch(progress: Mapping[str, Any]) -> dict[str, Any] | None:
    """Where a batch of a query ended in the topics that it reads, as Spark's report of it says;
    None for other sources."""
    found: dict[str, Any] = {}
    for source in progress.get("sources") or []:
        end = source.get("endOffset")
        if not end:
            return None
        read = json.loads(end) if isinstance(end, str) else end
        if not isinstance(read, dict):
            return None
        if "version" in read:
            continue  # That of a table.
        if found.keys() & read.keys() - NOT_TOPICS:
            return None  # Which of them would be committed?
        found |= read
    return found or None


_THOUSAND = 1000


class Watch:
    def __init__(self, name: str, clock: Clock, about: str = "") -> None:
        self.name = name
        self.about = about
        """Source and sink, for people."""
        self.rows = 0
        self.late_rows = 0
        """Rows that came after the watermark had passed them, and were dropped."""
        self.broken: Counter[str] = Counter()
        """How many rows broke each rule."""
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
        self.failure = ""
        """Why the query had to be started again; empty once a batch is done."""
        self._clock = clock
        self._resumes_ms: int | None = None
        self._seen = ""
        self._begun_ms = clock.now_ms()
        self._batches_before = 0

    @property
    def has_advanced(self) -> bool:
        """Whether a batch was done since the query was last started."""
        return self.batches > self._batches_before

    @property
    def lag_total(self) -> int | None:
        return None if self.lag is None else sum(self.lag.values())

    @property
    def age_s(self) -> float | None:
        """How long ago the last batch was done."""
        if self.done_ms is None:
            return None
        return max(0, self._clock.now_ms() - self.done_ms) / _THOUSAND

    def failed(self, reason: str, pause_s: float) -> None:
        """The query is started again after a pause."""
        self.failure = reason
        self._resumes_ms = self._clock.now_ms() + round(pause_s * _THOUSAND)

    def restarted(self) -> None:
        """The query was started again, and its reports begin anew."""
        self._resumes_ms = None
        self._seen = ""
        self._begun_ms = self._clock.now_ms()
        self._batches_before = self.batches

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
        self.failure = ""
        self.batch = report["batchId"]
        self.batches += 1
        rows = report["numInputRows"]
        self.rows += rows
        operators = report.get("stateOperators") or []
        self.late_rows += sum(each.get("numRowsDroppedByWatermark", 0) for each in operators)
        self.broken.update((report.get("observedMetrics") or {}).get(OBSERVED) or {})
        self.batch_ms = report["durationMs"]["triggerExecution"]
        self.rows_per_s = rows * _THOUSAND / max(1, self.batch_ms)

    def line(self) -> str:
        """The progress line."""
        title = f"{self.name}: {self.about}, " if self.about else f"{self.name}: "
        if self._resumes_ms is not None:
            left_s = max(0, self._resumes_ms - self._clock.now_ms() + _THOUSAND - 1) // _THOUSAND
            return f"{title}waiting {left_s} s before the next start, after: {self.failure}"
        lag = "" if self.lag_total is None else f"lag {self.lag_total:,}, "
        failed = f", last failure: {self.failure}" if self.failure else ""
        begun_s = (self._clock.now_ms() - self._begun_ms) // _THOUSAND
        if self.batches == 0:
            if self.done_ms is not None and not self.failure:
                return f"{title}{lag}waiting for records"
            return f"{title}{lag}first batch under way for {begun_s} s{failed}"
        late = f"{self.late_rows:,} dropped as late, " if self.late_rows else ""
        late += "".join(f"{n:,} break {rule}, " for rule, n in self.broken.items() if n)
        return (
            f"{title}batch {self.batch}, {self.rows:,} rows, {self.rows_per_s:,.0f} rows/s, "
            f"{lag}{late}last batch {self.batch_ms / _THOUSAND:.1f} s{failed}"
        )
