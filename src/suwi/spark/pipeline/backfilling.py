"""`backfill`: a range of time through the pipeline, as a batch.

Invariant: a Delta table gets a range once, whatever was killed: the write is named by it.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from suwi.spark.pipeline import exit_codes
from suwi.spark.pipeline.failures import Kind, failure_of
from suwi.spark.pipeline.loading import check_function, load_program
from suwi.spark.pipeline.script import Between, Variation
from suwi.spark.pipeline.spec import DeltaSpec, Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_PAUSE_S_MIN = 1.0
_PAUSE_S_MAX = 60.0


class NotForBatches(Exception):
    """A part of a table's result would replace all of it."""


class Backfill:
    def __init__(self, pipeline: Pipeline, between: Between) -> None:
        """Raises `NotForBatches`, `BadFunction`."""
        if isinstance(pipeline.sink, DeltaSpec) and pipeline.sink.mode == "complete":
            raise NotForBatches("with mode complete a part of the records cannot be filled in")
        check_function(pipeline, has_session=False)
        self._pipeline = pipeline
        self._variation = Variation(between=between)

    async def run(self, spark: "SparkSession", retries: int, say: Callable[[str], None]) -> int:
        """The exit code. `backfill` is not interrupted between attempts but by Ctrl-C.

        Raises `BadFunction`.
        """
        program = load_program(self._pipeline, self._variation)
        pause_s = _PAUSE_S_MIN
        for attempt in range(retries + 1):
            try:
                program.start(spark)
                say("backfilled")
                return exit_codes.DONE
            except Exception as error:
                log.debug("a backfill failed", exc_info=True)
                failure = failure_of(error)
            if failure.kind is Kind.DATA_LOST:
                say(f"data lost: {failure.text}")
                return exit_codes.DATA_LOST
            if failure.kind is Kind.LASTING or attempt == retries:
                say(f"failed: {failure.text}")
                return exit_codes.FAILED
            say(f"{failure.text}; trying again in {pause_s:g} s")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)
        raise AssertionError
