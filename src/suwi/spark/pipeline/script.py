"""A pipeline as Python: what `suwi pipeline show` prints.

`script` writes the text; it does what `run` does, because both follow `steps_of`. Secrets are
expressions in it, never values.
"""

import pprint
from collections.abc import Iterator, Mapping
from typing import Any

from suwi.spark.pipeline.spec import VIEW, Pipeline, RegistrySpec
from suwi.spark.pipeline.steps import Call, Variation, steps_of
from suwi.spark.pipeline.text import Text, literal

_SHORT = 70
_NAMES = (
    "dead_letter decode open_session read_delta read_topics register to_delta to_parquet to_topic"
)


def script(pipeline: Pipeline, variation: Variation | None = None) -> str:
    """The text of a Python module with `build(spark)`, `start(spark)` and a main part."""
    varied = variation or Variation()
    parts = (_build(pipeline, varied), _start(pipeline, varied), _main(pipeline, varied))
    body = "\n\n\n".join("\n".join(lines) for lines in parts)
    return "\n".join([*_head(pipeline, body), "", "", body, ""])


def _head(pipeline: Pipeline, used: str) -> Iterator[str]:
    yield f'"""The pipeline {pipeline.name}, as `suwi pipeline show` writes it."""'
    yield ""
    if "os.environ" in used:
        yield from ("import os", "")
    yield "from pyspark.sql import DataFrame, SparkSession"
    yield "from pyspark.sql.streaming.query import StreamingQuery"
    yield ""
    yield f"from suwi.spark import {', '.join(n for n in _NAMES.split() if f'{n}(' in used)}"
    if "=Registry(" in used:
        yield "from suwi.spark.decoders.registry import Registry"
    if "secret_file(" in used:
        yield "from suwi.spark.pipeline.text import secret_file"


def _build(pipeline: Pipeline, variation: Variation) -> Iterator[str]:
    """From the source to the rows that are wanted, and those that are bad."""
    steps = steps_of(pipeline, variation)
    bad = "DataFrame | None" if steps.decode is None else "DataFrame"
    yield f"def build(spark: SparkSession) -> tuple[DataFrame, {bad}]:"
    if steps.decode is None:
        yield from _call("good = ", steps.read, "spark", 4)
    else:
        yield from _call("rows = ", steps.read, "spark", 4)
        yield from _call("good, bad = ", steps.decode, "rows", 4)
    for call in steps.transform:
        arguments = ", ".join(expression(value, 4) for value in call.arguments)
        yield f"    good = good.{call.function}({arguments})"
    for name, call in steps.tables.items():
        yield from _call(f"{name} = ", call, "spark", 4)
        yield f"    {name}.createOrReplaceTempView({literal(name)})"
    if pipeline.sql is not None:
        yield f'    good.createOrReplaceTempView("{VIEW}")'
        yield f"    good = spark.sql({pipeline.sql.python()})"
    elif pipeline.python is not None:
        module, name = pipeline.python.module, pipeline.python.name
        yield f"    from {module} import {name}  # now: UDFs are declared in a session"
        yield ""
        yield f"    good = {name}(good)"
    yield f"    return good, {'None' if steps.decode is None else 'bad'}"


def _start(pipeline: Pipeline, variation: Variation) -> Iterator[str]:
    """Into the sinks."""
    steps = steps_of(pipeline, variation)
    bad = "_" if steps.decode is None else "bad"
    yield "def start(spark: SparkSession) -> list[StreamingQuery | None]:"
    yield f"    good, {bad} = build(spark)"
    yield "    return ["
    for rows, call in (("good", steps.sink), ("bad", steps.dead_letter)):
        if call is not None:
            lines = [*_call("", call, rows, 8)]
            yield from [*lines[:-1], f"{lines[-1]},"]
    yield "    ]"


def _main(pipeline: Pipeline, variation: Variation) -> Iterator[str]:
    yield 'if __name__ == "__main__":'
    settings = expression(pipeline.spark, 4) if pipeline.spark else ""
    name = literal(pipeline.name)
    yield f"    spark = open_session({name}{', ' + settings if settings else ''})"
    yield "    register(spark)"
    if variation.is_batch:
        yield "    start(spark)"
        return
    yield "    for query in start(spark):"
    yield "        if query is not None:"
    yield "            query.awaitTermination()"


def _call(target: str, call: Call, rows: str, indent: int) -> Iterator[str]:
    pad = " " * indent
    yield f"{pad}{target}{call.function}("
    yield f"{pad}    {rows},"
    for value in call.arguments:
        yield f"{pad}    {expression(value, indent + 4)},"
    for name, value in call.named.items():
        yield f"{pad}    {name}={expression(value, indent + 4)},"
    yield f"{pad})"


def expression(value: Any, indent: int) -> str:
    """A value as Python; `indent` is where the line begins that it stands in."""
    match value:
        case Text():
            return value.python()
        case str():
            return literal(value)
        case RegistrySpec(url, more):
            given = [f"{name}={text.python()}" for name, text in more.items()]
            return f"Registry({', '.join([url.python(), *given])})" if more else url.python()
        case tuple() if not any(isinstance(item, int) for item in value):
            return f"[{', '.join(expression(item, indent) for item in value)}]"
        case tuple():
            return f"({', '.join(expression(item, indent) for item in value)})"
        case dict() if all(isinstance(item, Text | str | bool) for item in value.values()):
            return _dict(value, indent)
        case dict():
            return pprint.pformat(value, width=80, sort_dicts=False)
    return repr(value)


def _dict(values: Mapping[str, Any], indent: int) -> str:
    """On one line where that is short."""
    entries = [f"{literal(name)}: {expression(item, indent)}" for name, item in values.items()]
    line = "{" + ", ".join(entries) + "}"
    if len(line) <= _SHORT:
        return line
    inner = "".join(f"{' ' * (indent + 4)}{entry},\n" for entry in entries)
    return "{\n" + inner + " " * indent + "}"
