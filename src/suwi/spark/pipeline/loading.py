"""The Python of a pipeline, loaded: the functions that `run`, `backfill` and `check` call."""

import importlib
import linecache
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from suwi.spark.pipeline.script import Variation, script
from suwi.spark.pipeline.spec import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


_NO_SESSION = "SESSION_OR_CONTEXT_NOT_EXISTS"


class BadFunction(Exception):
    """The function that a pipeline names cannot be had."""


class Program(NamedTuple):
    build: "Callable[[SparkSession], tuple[DataFrame, DataFrame]]"
    start: "Callable[[SparkSession], list[StreamingQuery | None]]"


def load_program(pipeline: Pipeline, variation: Variation | None = None) -> Program:
    """Where a session runs already: modules that declare UDFs want one. Raises `BadFunction`."""
    check_function(pipeline)
    text = script(pipeline, variation)
    name = f"<pipeline {pipeline.name}>"
    # So that a traceback shows the line.
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    found: dict[str, Any] = {"__name__": "pipeline"}
    exec(compile(text, name, "exec"), found)
    return Program(found["build"], found["start"])


def check_function(pipeline: Pipeline, *, has_session: bool = True) -> None:
    """Without a session it cannot be told of every module. Raises `BadFunction`."""
    if pipeline.folder not in sys.path:
        sys.path.insert(0, pipeline.folder)
    function = pipeline.python
    if function is None:
        return
    where = f"{function.module}:{function.name}"
    try:
        found = getattr(importlib.import_module(function.module), function.name, None)
    except Exception as error:  # It is somebody's own code, and may do anything.
        if not has_session and _NO_SESSION in str(error):
            return
        raise BadFunction(f"{where}: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise BadFunction(f"{where}: there is no such function in the module")
