"""What Spark knows of a pipeline before it runs: `check --deep` and `check --sample`.

`check_deeply` asks for settings, schema, SQL, function and rules, and the sinks for their columns;
`take_sample` runs the steps on the last records. Neither writes anything.
"""

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from suwi.spark.delta.errors import DeltaSinkError
from suwi.spark.options import BadOption, read_iceberg_options, read_table_options
from suwi.spark.output_batches import recorded_plan
from suwi.spark.pipeline.brokers import ask_last, check_topics
from suwi.spark.pipeline.checks import options_of, resolved, where_is
from suwi.spark.pipeline.failures import failure_of
from suwi.spark.pipeline.nodes import Problem, Problems, meant
from suwi.spark.pipeline.program import BadFunction, load_program
from suwi.spark.pipeline.spec import (
    DeltaSpec,
    IcebergSpec,
    Input,
    OutputSpec,
    Pipeline,
    Sink,
    TopicSource,
    TopicSpec,
)
from suwi.spark.pipeline.steps import Last, Variation
from suwi.spark.query_plan import difference, plan_of
from suwi.spark.rules import BAD, BROKEN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_LINE_OF_SQL: Final = re.compile(r"\(line (\d+), pos \d+\)|; line (\d+) pos \d+")


def check_deeply(pipeline: Pipeline, spark: "SparkSession") -> list[Problem]:
    problems = Problems()
    topics = check_topics(pipeline)
    problems.found += topics.missing + topics.not_asked
    check_settings(pipeline, spark, problems)
    _check_with_spark(pipeline, spark, problems)
    return sorted(problems.found)


def check_settings(pipeline: Pipeline, spark: "SparkSession", problems: Problems) -> None:
    """Spark takes any setting, also one that is misspelt."""
    from suwi.spark.spark_session import unknown_settings

    for name, known in unknown_settings(spark, pipeline.spark).items():
        hint = f": did you mean {known!r}?" if known else ""
        problems.add(pipeline.spark[name].line, f"spark: Spark has no setting {name!r}{hint}")


def _check_with_spark(pipeline: Pipeline, spark: "SparkSession", problems: Problems) -> None:
    """Let Spark analyse everything up to the sinks, and these their columns; nothing is read."""
    from pyspark.errors import AnalysisException

    try:
        good, _ = load_program(replace(pipeline, expect={})).build(spark)
    except Exception as error:
        line, text = place_of(pipeline, error)
        problems.add(line, text)
        return
    for name, rule in pipeline.expect.items():
        try:
            good.filter(rule.condition.value)
        except AnalysisException as error:
            line = rule.condition.line + _line_of_sql(error) - 1
            problems.add(line, f"expect.{name}: {failure_of(error).text}")
    if pipeline.is_joint:
        try:
            reason = difference(recorded_plan(pipeline.checkpoint.value), plan_of(good))
        except BadOption:
            reason = None  # `check_checkpoint` says so.
        if reason is not None:
            problems.add(pipeline.checkpoint.line, f"checkpoint: {reason}")
    for name, output in pipeline.outputs.items():
        where = f"outputs.{name}" if pipeline.is_joint else name
        try:
            schema = rows_of(output, good.drop(BAD)).schema
            if missing := _missing_columns(output.sink, schema.names):
                problems.found += [Problem(line, f"{where}.{text}") for line, text in missing]
                continue
            _check_sink(output.sink, schema, is_alone=not pipeline.is_joint)
        except AnalysisException as error:
            line = _line_in(output, good) + _line_of_sql(error) - 1
            problems.add(line, f"{where}: {failure_of(error).text}")
        except (BadOption, DeltaSinkError) as error:
            problems.add(output.sink.line, f"{where}: {failure_of(error).text}")


def _line_in(output: OutputSpec, rows: "DataFrame") -> int:
    """Where `when`, or else `select`, begins, which Spark refuses."""
    from pyspark.errors import AnalysisException

    try:
        rows_of(replace(output, select=None), rows)
    except AnalysisException:
        wrong = output.when
    else:
        wrong = output.select
    return output.sink.line if wrong is None else wrong.line


def rows_of(output: OutputSpec, rows: "DataFrame") -> "DataFrame":
    """What an output gets."""
    if output.when is not None:
        rows = rows.filter(output.when.value)
    if output.select is not None:
        rows = rows.selectExpr(f"inline(array(struct({output.select.value}\n)))")
    return rows


def _missing_columns(sink: Sink, names: list[str]) -> list[tuple[int, str]]:
    """The lines of columns that an output names and its rows lack, and what is wrong."""
    order_by = getattr(sink, "order_by", None)
    named = [
        *(("keys", text) for text in getattr(sink, "keys", ())),
        *(("partition_by", text) for text in getattr(sink, "partition_by", ())),
        *((("order_by", order_by),) if order_by is not None else ()),
    ]
    return [
        (text.line, f"{key}: there is no column {name!r}: {meant(name, names)}")
        for key, text in named
        if (name := text.value) not in names and "(" not in name  # as in day(at) of Iceberg
    ]


def _check_sink(sink: Sink, schema: "StructType", *, is_alone: bool) -> None:
    """As the query does when it starts; Parquet files take any columns. Raises `BadOption`,
    `DeltaSinkError`."""
    match sink:
        case TopicSpec():
            from suwi.spark import topic_writer

            options = resolved(options_of(sink))
            if is_alone:
                topic_writer.stream_writer(options, schema, False)
            else:
                topic_writer.output_options(options, schema)
        case DeltaSpec():
            from suwi.spark.delta.data_source import DeltaFormat

            table = DeltaFormat(read_table_options(resolved(options_of(sink))))
            table.judge(schema, sink.mode == "complete")
        case IcebergSpec():
            from suwi.spark.iceberg.data_source import IcebergFormat

            IcebergFormat(read_iceberg_options(resolved(options_of(sink)))).judge(schema, False)


def place_of(pipeline: Pipeline, error: Exception) -> tuple[int, str]:
    """The line of the part that Spark refuses, and why."""
    from pyspark.errors import AnalysisException

    text = failure_of(error).text
    if isinstance(error, BadFunction) and pipeline.python is not None:
        return pipeline.python.line, f"python: {error}"
    for name in getattr(error, "__notes__", ()):
        if name in pipeline.inputs:
            return _place_of_input(name, pipeline.inputs[name], text)
    for name, path in pipeline.tables.items():
        if isinstance(error, AnalysisException) and text.endswith(f" at {path.value}"):
            return path.line, f"tables.{name}: {text}"
    if isinstance(error, AnalysisException) and pipeline.sql is not None:
        return pipeline.sql.line + _line_of_sql(error) - 1, f"sql: {text}"
    if pipeline.python is not None and not isinstance(error, ValueError):
        return pipeline.python.line, f"python: {type(error).__name__}: {text}"
    name, one = next(iter(pipeline.inputs.items()))
    return _place_of_input(name, one, text)


def _place_of_input(name: str, one: Input, text: str) -> tuple[int, str]:
    where = where_is(name)
    prefix = "" if where == "source" else f"{where}."
    used = [("watermark", one.watermark.column)] if one.watermark is not None else []
    for key, column in [*used, *(("deduplicate", column) for column in one.deduplicate)]:
        if f"`{column.value}`" in text:
            return column.line, f"{prefix}{key}: {text}"
    if one.decode is None:
        return one.source.line, f"{where}: {text}"
    return one.decode.line, f"{prefix}decode: {text}"


def _line_of_sql(error: Any) -> int:
    found = _LINE_OF_SQL.search(str(error))
    return int(found[1] or found[2]) if found else 1


# -- a sample --------------------------------------------------------------------------------------


class Sample(NamedTuple):
    rows: dict[str, list[dict[str, Any]]]
    """What would be written to each output."""
    bad: dict[str, int]
    """How many records could not be decoded, by the reason."""
    broken: list[tuple[str, dict[str, Any]]]
    """Rules, and rows that break them."""


def take_sample(pipeline: Pipeline, spark: "SparkSession", records: int) -> Sample:
    """As a batch: windows are complete, and duplicates are found in the sample only.

    Raises `BadFunction`, `BrokerError`, OSError, and what Spark raises.
    """
    sources = {name: one.source for name, one in pipeline.inputs.items()}
    starting = {
        name: ask_last(source, records)
        for name, source in sources.items()
        if isinstance(source, TopicSource)
    }
    program = load_program(pipeline, Variation(last=Last(records, starting)))
    good, bad = program.build(spark)
    broken = []
    for row in (row.asDict(recursive=True) for row in good.collect()) if pipeline.expect else ():
        broken += [(name, row) for name in row.pop(BROKEN)]
    taking = [name for name, rule in pipeline.expect.items() if rule.action != "warn"]
    if taking:
        from pyspark.sql import functions as F  # noqa: N812

        marks = F.array(*map(F.lit, taking))
        good = good.filter(~F.arrays_overlap(BROKEN, marks))
    kept = good.drop(BROKEN)
    rows = {
        name: [row.asDict(recursive=True) for row in rows_of(output, kept).collect()]
        for name, output in pipeline.outputs.items()
    }
    reasons = [] if bad is None else bad.groupBy("reason").count().collect()
    return Sample(rows, dict(sorted(reasons, key=lambda one: -one[1])), broken)
