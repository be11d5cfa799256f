"""The Python of a pipeline, loaded: the functions that `run`, `backfill` and `check` call."""

import linecache
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from suwi.spark.pipeline.script import Variation, script
from suwi.spark.pipeline.spec import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class Program(NamedTuple):
    build: "Callable[[SparkSession], tuple[DataFrame, DataFrame]]"
    start: "Callable[[SparkSession], list[StreamingQuery | None]]"


def load_program(pipeline: Pipeline, variation: Variation | None = None) -> Program:
    """Raises ImportError and AttributeError, for a function that is not there."""
    text = script(pipeline, variation)
    name = f"<pipeline {pipeline.name}>"
    # So that a traceback shows the line.
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    found: dict[str, Any] = {"__name__": "pipeline"}
    exec(compile(text, name, "exec"), found)
    return Program(found["build"], found["start"])
