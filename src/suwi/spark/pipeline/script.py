"""A pipeline as Python: what `suwi pipeline show` prints.

`script` writes the text; it does what `run` does, because both follow `steps_of`. Secrets are
expressions in it, never values.
"""

import pprint
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from suwi.spark.pipeline.nodes import said
from suwi.spark.pipeline.spec import Pipeline, RegistrySpec
from suwi.spark.pipeline.steps import Call, InputSteps, Steps, Variation, steps_of
from suwi.spark.pipeline.text import Text, literal

_SHORT = 70
_LINE = 100
_NAMES = """
    dead_letter decode decode_together delta_output expect iceberg_output open_session read_delta
    read_topics register to_delta to_iceberg to_outputs to_parquet to_topic topic_output
"""


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
    names = [name for name in _NAMES.split() if f"{name}(" in used]
    line = f"from suwi.spark import {', '.join(names)}"
    listed = "".join(f"    {name},\n" for name in names)
    yield line if len(line) <= _LINE else f"from suwi.spark import (\n{listed})"
    if "=Registry(" in used:
        yield "from suwi.decoders.registry import Registry"
    if "secret_file(" in used:
        yield "from suwi.spark.pipeline.text import secret_file"


def _build(pipeline: Pipeline, variation: Variation) -> Iterator[str]:
    """From the source to the rows that are wanted, and those that are bad."""
    steps = steps_of(pipeline, variation)
    bad = "DataFrame" if _has_bad(steps) else "DataFrame | None"
    yield f"def build(spark: SparkSession) -> tuple[DataFrame, {bad}]:"
    is_alone = len(steps.inputs) == 1
    for name, one in steps.inputs.items():
        yield from _input("good" if is_alone else name, one)
    for name, call in steps.tables.items():
        yield from _call(f"{name} = ", call, "spark", 4)
        yield f"    {name}.createOrReplaceTempView({literal(name)})"
    if pipeline.sql is not None:
        for name in steps.inputs:
            rows = "good" if is_alone else name
            yield f"    {rows}.createOrReplaceTempView({literal(name)})"
        yield f"    good = spark.sql({pipeline.sql.python()})"
    elif pipeline.python is not None:
        module, name = pipeline.python.module, pipeline.python.name
        given = "good" if is_alone else ", ".join(f"{one}={one}" for one in steps.inputs)
        yield f"    from {module} import {name}  # now: UDFs are declared in a session"
        yield ""
        yield f"    good = {name}({given})"
    if steps.expect is not None:
        yield from _call("good = ", steps.expect, "good", 4)
    decoded = [name for name, one in steps.inputs.items() if one.gives_bad]
    if decoded and not is_alone:
        first, *others = decoded
        unions = "".join(f".unionByName({one}_bad, allowMissingColumns=True)" for one in others)
        yield f"    bad = {first}_bad{unions}"
    yield f"    return good, {'bad' if decoded else 'None'}"


def _has_bad(steps: Steps) -> bool:
    return any(one.gives_bad for one in steps.inputs.values())


def _input(good: str, steps: InputSteps) -> Iterator[str]:
    prefix = "" if good == "good" else f"{good}_"
    if steps.decode is None:
        yield from _call(f"{good} = ", steps.read, "spark", 4)
    else:
        yield from _call(f"{prefix}rows = ", steps.read, "spark", 4)
        both = f"{good}, {prefix}bad" if steps.gives_bad else good
        yield from _call(f"{both} = ", steps.decode, f"{prefix}rows", 4)
    for call in steps.transform:
        arguments = ", ".join(expression(value, 4) for value in call.arguments)
        yield f"    {good} = {good}.{call.function}({arguments})"


def _start(pipeline: Pipeline, variation: Variation) -> Iterator[str]:
    """Into the sinks."""
    steps = steps_of(pipeline, variation)
    is_used = _has_bad(steps) and (pipeline.dead_letters is not None or not pipeline.is_joint)
    bad = "bad" if is_used else "_"
    yield "def start(spark: SparkSession) -> list[StreamingQuery | None]:"
    yield f"    good, {bad} = build(spark)"
    yield "    return ["
    bad_too = ("bad=bad",) if is_used and pipeline.is_joint else ()
    for rows, call, more in (("good", steps.sink, bad_too), ("bad", steps.dead_letter, ())):
        if call is not None:
            lines = [*_call("", call, rows, 8, more)]
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


def _call(
    target: str, call: Call, rows: str, indent: int, more: Iterable[str] = ()
) -> Iterator[str]:
    pad = " " * indent
    yield f"{pad}{target}{call.function}("
    if rows:
        yield f"{pad}    {rows},"
    for value in call.arguments:
        yield f"{pad}    {expression(value, indent + 4)},"
    yield from (f"{pad}    {one}," for one in more)
    for name, value in call.named.items():
        yield f"{pad}    {name}={expression(value, indent + 4)},"
    yield f"{pad})"


def expression(value: Any, indent: int) -> str:
    """A value as Python; `indent` is the indentation of its line."""
    match value:
        case Text():
            return value.python()
        case str():
            return literal(value)
        case Call():
            return "\n".join(_call("", value, "", indent)).lstrip()
        case RegistrySpec(url):
            given = [f"{name}={text.python()}" for name, text in said(value, "url").items()]
            return f"Registry({', '.join([url.python(), *given])})" if given else url.python()
        case tuple() if not any(isinstance(item, int) for item in value):
            return f"[{', '.join(expression(item, indent) for item in value)}]"
        case tuple():
            return f"({', '.join(expression(item, indent) for item in value)})"
        case dict() if all(isinstance(item, Text | Call | str | bool) for item in value.values()):
            return _dict(value, indent)
        case dict():
            return pprint.pformat(value, width=80, sort_dicts=False)
    return repr(value)


def _dict(values: Mapping[str, Any], indent: int) -> str:
    """On one line if it is short."""
    entries = [f"{literal(name)}: {expression(item, indent + 4)}" for name, item in values.items()]
    line = "{" + ", ".join(entries) + "}"
    if len(line) <= _SHORT and "\n" not in line:
        return line
    inner = "".join(f"{' ' * (indent + 4)}{entry},\n" for entry in entries)
    return "{\n" + inner + " " * indent + "}"
