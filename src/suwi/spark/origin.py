"""Which streaming query, and which of its micro-batches, a task works for."""

from typing import TYPE_CHECKING, Final, NamedTuple

from suwi.spark.options import BadOption

if TYPE_CHECKING:
    from pyspark import TaskContext

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
_RUN_ID: Final = "spark.jobGroup.id"
"""A streaming query runs its jobs under the id of its run."""


class Origin(NamedTuple):
    """Where a batch comes from."""

    app_id: str
    version: int
    run_id: str | None
    """The life of the driver; a restart has another."""


def origin_of_task() -> Origin:
    """The checkpoint's id, not the query's name or the run's: with a new checkpoint batches count
    from 0 again, and under an old name they would be taken for replays and dropped.
    """
    context = _context()
    query, batch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
    if query is None or batch is None:
        raise BadOption("this is not part of a streaming query")
    return Origin(query, int(batch), context.getLocalProperty(_RUN_ID))


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
