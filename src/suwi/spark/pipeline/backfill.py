"""`backfill`: a range of time processed once more, as a batch, beside a stream that may run.

The range is offsets: of each partition from the first record that is as late as its start, up to
what the stream has done, which does the rest itself. A Delta table whose rows say where they come
from, by `_topic`, `_partition` and `_offset`, gets the new rows in the place of those of the range,
in one commit; one with keys and an order replaces rows by their keys. What cannot be replaced is in
`doubts`, for the user to decide.
Invariants: rows outside of the range stay, and so does the stream's place: the commit carries an
application id of its own. Killed or repeated, a range that is replaced is in the table once.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from suwi.env import SystemClock
from suwi.model.ids import Offset
from suwi.spark.delta.errors import TableMissing
from suwi.spark.delta.table import open_table, table_schema
from suwi.spark.offsets import to_json
from suwi.spark.options import read_table_options
from suwi.spark.pipeline import failures as exit_codes
from suwi.spark.pipeline.brokers import Extent, ask_between, compacted_topics
from suwi.spark.pipeline.checkpoint import Checkpoint, NotLocal
from suwi.spark.pipeline.failures import failure_of
from suwi.spark.pipeline.program import check_function, load_program, resolve
from suwi.spark.pipeline.running import Attempts, RunSettings
from suwi.spark.pipeline.spec import (
    DeltaSpec,
    IcebergSpec,
    Pipeline,
    Sink,
    TopicSource,
    TopicSpec,
    sink_text,
)
from suwi.spark.pipeline.steps import Between, Variation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_ORIGIN: Final = {"_topic": "string", "_partition": "integer", "_offset": "long"}
_TWICE: Final = "rows of the range would be there twice"


class NotForBatches(Exception):
    """A part of the records cannot be processed by itself."""


class Backfill:
    def __init__(self, pipeline: Pipeline, start_ms: int, end_ms: int) -> None:
        """Asks brokers and tables. Raises `NotForBatches`, `BadFunction`, a `BrokerError`,
        OSError."""
        source = pipeline.source
        if not isinstance(source, TopicSource) or len(pipeline.inputs) > 1:
            raise NotForBatches(
                "a range of time is for topics of one input: backfill a pipeline that has it"
            )
        sinks = pipeline.sinks.values()
        if any(isinstance(one, DeltaSpec) and one.mode == "complete" for one in sinks):
            raise NotForBatches("with mode complete a part of the records cannot be filled in")
        check_function(pipeline, has_session=False)
        self._pipeline = pipeline
        self._name = f"{pipeline.name}:{start_ms}-{end_ms}"
        asked = ask_between(source, start_ms, end_ms)
        self.extents, self._has_run, self._unknown = asked, True, ""
        checkpoint = Checkpoint(pipeline.checkpoint.value)
        try:
            self._has_run = checkpoint.exists()
            if self._has_run:
                done = checkpoint.done()
                self.extents = [_up_to(one, done.get(one.partition)) for one in asked]
        except NotLocal as error:
            self._unknown = f"{error}: what the stream has not read yet would be there twice"
        self.later = _offsets(asked) - _offsets(self.extents)
        """How many offsets of the range the stream still does itself."""
        self.offsets = _offsets(self.extents)
        self.replaced = [name for name, one in pipeline.outputs.items() if _says_origin(one.sink)]
        """The outputs whose rows of the range are known by their origin."""
        self.doubts = list(self._doubts(source)) if self._has_run else []

    def _doubts(self, source: TopicSource) -> Iterator[str]:
        """Why a table or topic may have other rows than if the stream had written them."""
        if self._unknown:
            yield self._unknown
        for name, output in self._pipeline.outputs.items():
            reason = None if name in self.replaced else _reason(output.sink)
            if reason is not None:
                yield f"{sink_text(output.sink)}: {reason}"
        if self._pipeline.dead_letters is not None:
            yield f"{sink_text(self._pipeline.dead_letters)}: dead letters would be there twice"
        modes = {self._pipeline.mode, *(getattr(one, "mode", "") for one in self._sinks())}
        if "update" in modes or any(one.watermark for one in self._pipeline.inputs.values()):
            yield (
                "rows depend on records outside of the range, because of the watermark or mode "
                "update: of the range alone they may be others"
            )
        compacted = self.replaced and compacted_topics(
            source, {one.partition.topic for one in self.extents}
        )
        if compacted:
            yield (
                f"topic {compacted[0]} is compacted: rows of records that it no longer has would "
                "be removed"
            )

    def _sinks(self) -> list[Sink]:
        return [one.sink for one in self._pipeline.outputs.values()]

    def _variation(self) -> Variation:
        where = " OR ".join(map(_condition, filter(_length, self.extents)))
        is_known = all(
            name in self.replaced or (isinstance(one.sink, DeltaSpec) and one.sink.keys)
            for name, one in self._pipeline.outputs.items()
        )
        # What is only appended gets the range once; what is replaced, as often as it is asked for.
        number = SystemClock().now_ms() if is_known else 1
        return Variation(
            between=Between(
                json.dumps(to_json({one.partition: Offset(one.start) for one in self.extents})),
                json.dumps(to_json({one.partition: Offset(one.end) for one in self.extents})),
                (self._name, number),
                dict.fromkeys(self.replaced, where),
            )
        )

    def run(self, spark: "SparkSession", retries: int, say: Callable[[str], None]) -> int:
        """The exit code. No event loop runs meanwhile: topics are written with one of their own.

        Raises `BadFunction`.
        """
        program = load_program(self._pipeline, self._variation())
        attempts = Attempts(RunSettings(retries), say)
        while True:
            try:
                program.start(spark)
                say("backfilled")
                return exit_codes.DONE
            except Exception as error:
                log.debug("a backfill failed", exc_info=True)
                failure = failure_of(error)
            pause_s = attempts.pause_s_after(failure)
            if pause_s is None:
                say(attempts.final)
                return exit_codes.of(failure)
            asyncio.run(asyncio.sleep(pause_s))


def _length(extent: Extent) -> int:
    return extent.end - extent.start


def _offsets(extents: list[Extent]) -> int:
    return sum(map(_length, extents))


def _up_to(extent: Extent, done: Offset | None) -> Extent:
    """What the stream has done of it: nothing of a partition that it does not know yet."""
    end = extent.start if done is None else max(extent.start, min(extent.end, done))
    return extent._replace(end=end)


def _condition(extent: Extent) -> str:
    """As delta-rs reads it. The names of topics have no quotes in them."""
    (topic, partition), _, start, end = extent
    return (
        f"(_topic = '{topic}' AND _partition = {partition} "
        f"AND _offset >= {start} AND _offset < {end})"
    )


def _says_origin(sink: Sink) -> bool:
    """Whether the rows that the table has say which record they come from."""
    if not isinstance(sink, DeltaSpec) or sink.keys:
        return False
    storage = {f"storage.{name}": text for name, text in resolve(sink.storage_options).items()}
    try:
        table = open_table(read_table_options({"path": sink.path.value, **storage}))
    except TableMissing:
        return False
    kinds = {field["name"]: field["type"] for field in table_schema(table)["fields"]}
    return all(kinds.get(name) == kind for name, kind in _ORIGIN.items())


def _reason(sink: Sink) -> str | None:
    """Why its rows cannot be replaced."""
    match sink:
        case TopicSpec():
            return f"{_TWICE}: a topic is only appended to"
        case IcebergSpec():
            return f"{_TWICE}: Iceberg tables are only appended to"
        case DeltaSpec() if not sink.keys:
            columns = ", ".join(_ORIGIN)
            return f"{_TWICE}: it has neither keys nor the columns {columns}, which identify them"
        case DeltaSpec() if sink.delete_when is not None:
            return "rows that were deleted after the range would be there again (delete_when)"
        case DeltaSpec():
            older = "rows of the range would replace newer ones: there is no order_by"
            return older if sink.order_by is None else None
    return f"{_TWICE}: files are only added"
