"""`commit_progress(query, …)`: commits the offsets of a query for a consumer group, for lag tools.

Usable alone in any PySpark job. A group's offsets are committed each time that a batch is done, and
once for what was done before: by a query that ended already, or was started again and is idle.
Invariant: it never stops the query: brokers that have no groups, or are away, are logged.
"""

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from suwi.spark.options import BadOption

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from suwi.spark.pipeline.progress import Lag


def commit_progress(
    query: "StreamingQuery",
    servers: str,
    group: str | None = None,
    *,
    options: Mapping[str, str] | None = None,
) -> None:
    """Commit from now on, until the query ends. It must read topics only.

    What it did before is committed now, if Spark has reported it; a query that was started again
    and finds nothing new is looked at when Spark calls it idle, after about ten seconds.

    group: whose offsets they are; without it the `kafka.group.id` of `options`.
    options: the `kafka.` options of its source, for the log-in.
    """
    given = {name.lower(): value for name, value in (options or {}).items()}
    group = group or given.get("kafka.group.id")
    if not group:
        raise BadOption("no group is named, neither as `group` nor by option 'kafka.group.id'")
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryListener

    from suwi.spark.pipeline.progress import Lag

    session = SparkSession.getActiveSession()
    assert session is not None
    committer = _Committer(query, Lag({**given, "kafka.bootstrap.servers": servers}, group))
    # Not the query's id, which all runs share: the end of an earlier run may be reported only now.
    run_id = str(query.runId)

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:  # noqa: N802
            pass

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802
            if str(event.progress.runId) == run_id:
                committer.take(event.progress)

        def onQueryIdle(self, event: Any) -> None:  # noqa: N802
            if str(event.runId) == run_id:
                committer.look()

        def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
            if str(event.runId) == run_id:
                committer.end()

    session.streams.addListener(Listener())
    if query.isActive:
        committer.look()
    else:
        committer.end()


class _Committer:
    """Commits the ends of a query's batches. Spark's listeners are called in another thread."""

    def __init__(self, query: "StreamingQuery", lag: "Lag") -> None:
        self._query = query
        self._lag = lag
        self._lock = threading.Lock()
        self._is_over = False

    def look(self) -> None:
        """Take the last report. Spark makes one for an idle query, too, but tells no listener."""
        with self._lock:
            self._take(self._query.lastProgress)

    def take(self, progress: Any) -> None:
        with self._lock:
            self._take(progress)

    def end(self) -> None:
        """Commit the last report and close. A second call does nothing."""
        with self._lock:
            try:
                self._take(self._query.lastProgress)
            finally:
                self._is_over = True
                self._lag.close()

    def _take(self, progress: Any) -> None:
        from suwi.spark.pipeline.progress import end_of_batch, report_of

        if self._is_over or progress is None:
            return
        end = end_of_batch(report_of(progress))
        if end is not None:
            self._lag.reached(end)
