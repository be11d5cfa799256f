"""The Python of a pipeline, loaded: the functions that `run`, `backfill` and `check` call."""

import importlib
import linecache
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from suwi.spark.pipeline.script import Variation, script
from suwi.spark.pipeline.spec import Function, Pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class BadFunction(Exception):
    """The function that a pipeline names cannot be had."""


class Program(NamedTuple):
    build: "Callable[[SparkSession], tuple[DataFrame, DataFrame]]"
    start: "Callable[[SparkSession], list[StreamingQuery | None]]"


def load_program(pipeline: Pipeline, variation: Variation | None = None) -> Program:
    """Raises `BadFunction`."""
    if pipeline.folder not in sys.path:
        sys.path.insert(0, pipeline.folder)
    if pipeline.python is not None:
        _check_function(pipeline.python)
    text = script(pipeline, variation)
    name = f"<pipeline {pipeline.name}>"
    # So that a traceback shows the line.
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    found: dict[str, Any] = {"__name__": "pipeline"}
    exec(compile(text, name, "exec"), found)
    return Program(found["build"], found["start"])


def _check_function(function: Function) -> None:
    where = f"{function.module}:{function.name}"
    try:
        found = getattr(importlib.import_module(function.module), function.name, None)
    except Exception as error:  # It is somebody's own code, and may do anything.
        raise BadFunction(f"{where}: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise BadFunction(f"{where}: there is no such function in the module")
