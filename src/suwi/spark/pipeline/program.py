"""A pipeline's steps, made: the functions that `run`, `backfill` and `check --deep` call."""

import importlib
import logging
import os
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from suwi.env import local_env
from suwi.spark.pipeline.spec import VIEW, Pipeline, RegistrySpec
from suwi.spark.pipeline.steps import Call, Steps, Variation, steps_of
from suwi.spark.pipeline.text import Text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

_NO_SESSION = "SESSION_OR_CONTEXT_NOT_EXISTS"


class BadFunction(Exception):
    """The function that a pipeline names cannot be had."""


class NotAStream(ValueError):
    """What a pipeline makes of its records does not come from them."""


class Program(NamedTuple):
    build: "Callable[[SparkSession], tuple[DataFrame, DataFrame | None]]"
    """Raises `NotAStream`, and what Spark raises."""
    start: "Callable[[SparkSession], list[StreamingQuery]]"
    """The queries: all or, after an error, none. Of a batch, which is then done, there is none."""


def load_program(pipeline: Pipeline, variation: Variation | None = None) -> Program:
    """Where a session runs already: modules that declare UDFs want one. Raises `BadFunction`."""
    check_function(pipeline)
    steps = steps_of(pipeline, variation)
    is_batch = variation is not None and variation.is_batch

    def build(spark: "SparkSession") -> "tuple[DataFrame, DataFrame | None]":
        good, bad = _build(pipeline, steps, spark)
        if not is_batch and not good.isStreaming:
            said = "the SQL" if pipeline.sql is not None else "the function's result"
            raise NotAStream(
                f"{said} does not select from the pipeline's records: every start would write the "
                "same rows again"
            )
        return good, bad

    def start(spark: "SparkSession") -> "list[StreamingQuery]":
        good, bad = build(spark)
        queries: list[StreamingQuery | None] = []
        try:
            queries.append(_make(steps.sink, good))
            if steps.dead_letter is not None:
                queries.append(_make(steps.dead_letter, bad))
        except BaseException:
            stop_all(filter(None, queries))
            raise
        return list(filter(None, queries))

    return Program(build, start)


def stop_all(queries: "Iterable[StreamingQuery]") -> None:
    for query in queries:
        try:
            query.stop()
        except Exception:
            log.warning("a query could not be stopped", exc_info=True)


def _build(
    pipeline: Pipeline, steps: Steps, spark: "SparkSession"
) -> "tuple[DataFrame, DataFrame | None]":
    good, bad = _make(steps.read, spark), None
    if steps.decode is not None:
        good, bad = _make(steps.decode, good)
    for call in steps.transform:
        good = getattr(good, call.function)(*map(resolve, call.arguments))
    for name, table in steps.tables.items():
        _make(table, spark).createOrReplaceTempView(name)
    if pipeline.sql is not None:
        good.createOrReplaceTempView(VIEW)
        good = spark.sql(resolve(pipeline.sql))
    elif pipeline.python is not None:
        module = importlib.import_module(pipeline.python.module)
        good = getattr(module, pipeline.python.name)(good)
    return good, bad


def _make(call: Call, first: Any) -> Any:
    import suwi.spark

    function = getattr(suwi.spark, call.function)
    arguments = map(resolve, call.arguments)
    return function(first, *arguments, **{name: resolve(v) for name, v in call.named.items()})


def resolve(value: Any) -> Any:
    """A value with what its references stand for. Raises `Unresolved`."""
    match value:
        case Text():
            return value.resolve(os.environ, local_env().disk)
        case RegistrySpec(url, more):
            from suwi.spark.decoders.registry import Registry

            return Registry(resolve(url), **resolve(more)) if more else resolve(url)
        case tuple():
            items = tuple(resolve(item) for item in value)
            return items if any(isinstance(item, int) for item in items) else list(items)
        case dict():
            return {name: resolve(item) for name, item in value.items()}
    return value


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
