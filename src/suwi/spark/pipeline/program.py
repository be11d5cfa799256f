"""Executes the steps of a pipeline, for `run`, `backfill` and `check`."""

import importlib
import logging
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from suwi.spark.pipeline.nodes import said
from suwi.spark.pipeline.spec import Pipeline, RegistrySpec
from suwi.spark.pipeline.steps import Call, InputSteps, Steps, Variation, steps_of
from suwi.spark.pipeline.text import Text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

_NO_SESSION = "SESSION_OR_CONTEXT_NOT_EXISTS"


class BadFunction(Exception):
    """The pipeline's function cannot be imported."""


class NotAStream(ValueError):
    """The result of a pipeline does not depend on its records."""


class Program(NamedTuple):
    build: "Callable[[SparkSession], tuple[DataFrame, DataFrame | None]]"
    """Raises `NotAStream`, and what Spark raises."""
    start: "Callable[[SparkSession], list[StreamingQuery]]"
    """The queries: all or, after an error, none. Of a batch, which is then done, there is none."""


def load_program(pipeline: Pipeline, variation: Variation | None = None) -> Program:
    """Needs a running session, because modules may declare UDFs. Raises `BadFunction`."""
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
            is_used = pipeline.is_joint and pipeline.dead_letters is not None and bad is not None
            queries.append(_make(steps.sink, good, **({"bad": bad} if is_used else {})))
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
            # Spark may have been told to end, and has stopped it.
            log.debug("a query could not be stopped", exc_info=True)


def _build(
    pipeline: Pipeline, steps: Steps, spark: "SparkSession"
) -> "tuple[DataFrame, DataFrame | None]":
    inputs, bad = {}, None
    for name, one in steps.inputs.items():
        try:
            inputs[name], wrong = _build_input(one, spark)
        except Exception as error:
            error.add_note(name)  # `check --deep` names the line.
            raise
        if wrong is not None:
            bad = wrong if bad is None else bad.unionByName(wrong, allowMissingColumns=True)
    good = inputs[next(iter(inputs))]
    for name, table in steps.tables.items():
        _make(table, spark).createOrReplaceTempView(name)
    if pipeline.sql is not None:
        for name, rows in inputs.items():
            rows.createOrReplaceTempView(name)
        good = spark.sql(resolve(pipeline.sql))
    elif pipeline.python is not None:
        module = importlib.import_module(pipeline.python.module)
        function = getattr(module, pipeline.python.name)
        good = function(good) if len(inputs) == 1 else function(**inputs)
    if steps.expect is not None:
        good = _make(steps.expect, good)
    return good, bad


def _build_input(one: InputSteps, spark: "SparkSession") -> "tuple[DataFrame, DataFrame | None]":
    good, bad = _make(one.read, spark), None
    if one.decode is not None:
        good = _make(one.decode, good)
    if one.gives_bad:
        good, bad = good
    for call in one.transform:
        good = getattr(good, call.function)(*map(resolve, call.arguments))
    return good, bad


def _make(call: Call, *first: Any, **more: Any) -> Any:
    import suwi.spark

    function = getattr(suwi.spark, call.function)
    arguments = map(resolve, call.arguments)
    named = {name: resolve(value) for name, value in call.named.items()}
    return function(*first, *arguments, **more, **named)


def resolve(value: Any) -> Any:
    """A value with its references resolved. Raises `Unresolved`."""
    match value:
        case Text():
            return value.value
        case Call():
            return _make(value)
        case RegistrySpec(url):
            from suwi.decoders.registry import Registry

            more = said(value, "url")
            return Registry(resolve(url), **resolve(more)) if more else resolve(url)
        case tuple():
            items = tuple(resolve(item) for item in value)
            return items if any(isinstance(item, int) for item in items) else list(items)
        case dict():
            return {name: resolve(item) for name, item in value.items()}
    return value


def check_function(pipeline: Pipeline, *, has_session: bool = True) -> None:
    """Without a session, modules that need one are not checked. Raises `BadFunction`."""
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
