"""`commit_progress(query, …)`: a query's place as a consumer group's, so that lag tools see it.

Usable alone in any PySpark job. A group's offsets are committed each time that a batch is done.
Invariant: it never stops the query: brokers that have no groups, or are away, are logged.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from suwi.spark.options import BadOption

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


def commit_progress(
    query: "StreamingQuery",
    servers: str,
    group: str | None = None,
    *,
    options: Mapping[str, str] | None = None,
) -> None:
    """From now on, until the query ends. It must read topics, and nothing besides.

    group: whose offsets they are; without it the `kafka.group.id` of `options`.
    options: the `kafka.` options of its source, for the log-in.
    """
    given = {name.lower(): value for name, value in (options or {}).items()}
    group = group or given.get("kafka.group.id")
    if not group:
        raise BadOption("no group is named, neither as `group` nor by option 'kafka.group.id'")
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryListener

    from suwi.spark.pipeline.lag import Lag, end_of_batch, report_of

    lag = Lag({**given, "kafka.bootstrap.servers": servers}, group)
    session = SparkSession.getActiveSession()
    assert session is not None
    query_id = str(query.id)

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:  # noqa: N802
            pass

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802
            if str(event.progress.id) == query_id:
                end = end_of_batch(report_of(event.progress))
                if end is not None:
                    lag.reached(end)

        def onQueryIdle(self, event: Any) -> None:  # noqa: N802
            pass

        def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
            if str(event.id) == query_id:
                lag.close()

    session.streams.addListener(Listener())
