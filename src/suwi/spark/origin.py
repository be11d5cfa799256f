"""Which streaming query, and which of its micro-batches, a task works for."""

from typing import TYPE_CHECKING, Final, NamedTuple

from suwi.spark.options import BadOption

if TYPE_CHECKING:
    from pyspark import TaskContext

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
RUN_ID: Final = "spark.jobGroup.id"
"""A streaming query runs its jobs under the id of its run."""


class Origin(NamedTuple):
    """Where a batch comes from."""

    app_id: str
    version: int
    run_id: str | None
    """Identifies one run of the driver; it changes with each restart."""


def origin_of_task(advice: str = "") -> Origin:
    """Raises `BadOption`, with advice, outside of streaming queries.

    The checkpoint's id, not the query's name or the run's: with a new checkpoint batches count
    from 0 again, and under an old name they would be taken for replays and dropped.
    """
    context = _context()
    query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
    if query is None or batch is None:
        raise BadOption(f"this is not part of a streaming query{advice}")
    return Origin(query, int(batch), context.getLocalProperty(RUN_ID))


def version_property(uri: str) -> str:
    """The local property with the version of a table that the jobs of a batch read."""
    return f"suwi.version.{uri}"


def version_of_batch(uri: str) -> int:
    """In a task. Raises `BadOption`."""
    version = _context().getLocalProperty(version_property(uri))
    if version is None:
        raise BadOption(f"no version of {uri} is chosen: name it in to_outputs(…, tables=…)")
    return int(version)


def log_suppressed(sink: str, origin: Origin) -> None:
    from pyspark.logger import PySparkLogger

    # Spark's own logger: in its worker processes no other is set up, and it shows the fields.
    log = PySparkLogger.getLogger("suwi.spark")
    log.warning(
        "batch suppressed: it was written before",
        sink=sink,
        query=origin.app_id,
        batch=origin.version,
    )


def task_index() -> int:
    return int(_context().partitionId())


def _context() -> "TaskContext":
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "only inside of a task"
    return context
