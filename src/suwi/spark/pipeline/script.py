"""A pipeline as Python: what `suwi pipeline show` prints, and what `run` runs.

`script` writes the text, `Variation` says how a run differs from the file: once, from the
beginning, a range of time. Secrets are expressions in it, never values.
Invariant: there is no other way from a file to a query, so what is shown is what happens.
"""

import pprint
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from suwi.spark.pipeline.spec import (
    VIEW,
    Decode,
    DeltaSpec,
    ParquetSpec,
    Pipeline,
    RegistrySpec,
    Source,
    TopicSpec,
)
from suwi.spark.pipeline.text import Text, literal

DEAD_LETTERS = "dead-letters"
_DEFAULT_START = "earliest"
_SHORT = 70


@dataclass(frozen=True, slots=True)
class Between:
    """A range of time, in milliseconds since 1970: a batch instead of a stream."""

    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class Variation:
    once: bool = False
    from_beginning: bool = False
    between: Between | None = None


def script(pipeline: Pipeline, variation: Variation | None = None) -> str:
    """The text of a Python module with `build(spark)`, `start(spark)` and a main part."""
    return _Script(pipeline, variation or Variation()).text()


class _Script:
    def __init__(self, pipeline: Pipeline, variation: Variation) -> None:
        self._pipeline = pipeline
        self._variation = variation

    def text(self) -> str:
        body = [*self._build(), "", "", *self._start(), "", "", *self._main()]
        return "\n".join([*self._head(body), "", "", *body, ""])

    def _head(self, body: list[str]) -> list[str]:
        used = "\n".join(body)
        names = "dead_letter decode read_topics register to_delta to_topic"
        ours = [name for name in names.split() if f"{name}(" in used]
        lines = [
            f'"""The pipeline {self._pipeline.name}, as `suwi pipeline show` writes it."""',
            "",
        ]
        if "os.environ" in used:
            lines += ["import os", ""]
        lines += ["from pyspark.sql import DataFrame, SparkSession"]
        lines += ["from pyspark.sql.streaming.query import StreamingQuery", ""]
        lines += [f"from suwi.spark import {', '.join(ours)}"]
        if "=Registry(" in used:
            lines += ["from suwi.spark.decoders.registry import Registry"]
        lines += ["from suwi.spark.java import use_java"]
        if "secret_file(" in used:
            lines += ["from suwi.spark.pipeline.text import secret_file"]
        return lines

    # -- build: from topics to the rows that are wanted, and those that are bad ------------------

    def _build(self) -> list[str]:
        pipeline = self._pipeline
        lines = ["def build(spark: SparkSession) -> tuple[DataFrame, DataFrame]:"]
        lines += _call("rows = read_topics", ["spark", *self._read(pipeline.source)])
        lines += _call("good, bad = decode", ["rows", *_decode(pipeline.decode)])
        if pipeline.watermark is not None:
            column, delay = pipeline.watermark.column.python(), pipeline.watermark.delay.python()
            lines += [f"    good = good.withWatermark({column}, {delay})"]
        if pipeline.deduplicate:
            # A batch has no watermark: there it is all rows that are compared.
            method = "dropDuplicates" if self._is_batch else "dropDuplicatesWithinWatermark"
            lines += [f"    good = good.{method}({_list(pipeline.deduplicate)})"]
        if pipeline.sql is not None:
            lines += [f'    good.createOrReplaceTempView("{VIEW}")']
            lines += [f"    good = spark.sql({pipeline.sql.python()})"]
        elif pipeline.python is not None:
            module, name = pipeline.python.module, pipeline.python.name
            lines += [f"    from {module} import {name}  # now: UDFs are declared in a session", ""]
            lines += [f"    good = {name}(good)"]
        return [*lines, "    return good, bad"]

    def _read(self, source: Source) -> Iterator[str]:
        yield source.servers.python()
        if source.topics:
            yield source.topics[0].python() if len(source.topics) == 1 else _list(source.topics)
        if source.pattern is not None:
            yield f"pattern={source.pattern.python()}"
        between = self._variation.between
        options = {name: text.python() for name, text in source.options.items()}
        if between is not None:
            for name in [*options]:
                if name.lower().startswith(("starting", "ending", "maxoffsets", "minoffsets")):
                    del options[name]
            yield "streaming=False"
            options["startingTimestamp"] = literal(str(between.start_ms))
            options["endingTimestamp"] = literal(str(between.end_ms))
            # A partition that has nothing so new has nothing to read.
            options["startingOffsetsByTimestampStrategy"] = literal("latest")
        elif self._variation.from_beginning:
            for name in [*options]:
                if name.lower().startswith("starting"):
                    del options[name]
            yield 'starting="earliest"'
        elif not any(name.lower().startswith("starting") for name in options):
            yield f"starting={_python(source.start) or literal(_DEFAULT_START)}"
        if options:
            yield f"options={_dict(options, 8)}"

    # -- start: into the sinks -------------------------------------------------------------------

    def _start(self) -> list[str]:
        lines = ["def start(spark: SparkSession) -> list[StreamingQuery | None]:"]
        lines += ["    good, bad = build(spark)"]
        lines += ["    return ["]
        for call, arguments in self._sinks():
            if not arguments:
                lines += [f"        {call},"]
                continue
            lines += [f"        {call}("]
            lines += [f"            {argument}," for argument in arguments]
            lines += ["        ),"]
        return [*lines, "    ]"]

    def _sinks(self) -> Iterator[tuple[str, list[str]]]:
        pipeline = self._pipeline
        match pipeline.sink:
            case DeltaSpec():
                yield "to_delta", ["good", *self._delta(pipeline.sink)]
            case TopicSpec():
                yield "to_topic", ["good", *self._topic(pipeline.sink, pipeline.name, "")]
            case ParquetSpec():
                yield self._parquet(pipeline.sink), []
        if pipeline.dead_letters is not None:
            name = f"{pipeline.name}-{DEAD_LETTERS}"
            arguments = [*self._topic(pipeline.dead_letters, name, f"/{DEAD_LETTERS}")]
            yield "dead_letter", ["bad", *arguments]

    def _delta(self, sink: DeltaSpec) -> Iterator[str]:
        yield sink.path.python()
        if sink.mode != "append" and not (self._is_batch and sink.mode == "update"):
            yield f"mode={literal(sink.mode)}"
        if sink.partition_by:
            yield f"partition_by={_list(sink.partition_by)}"
        if sink.merge_schema:
            yield "merge_schema=True"
        if sink.keys:
            yield f"keys={_list(sink.keys)}"
        for name, text in sink.more.items():
            yield f"{name}={text.python()}"
        if sink.storage_options:
            yield f"storage_options={_texts(sink.storage_options, 12)}"
        if self._variation.between is not None:
            # The same range again writes nothing.
            between = self._variation.between
            app = f"{self._pipeline.name}:{between.start_ms}-{between.end_ms}"
            yield f"txn=({literal(app)}, 1)"
            return
        if sink.compact_every_s is not None:
            yield f"compact_every_s={sink.compact_every_s}"
        yield from self._query(self._pipeline.name, "")

    def _topic(self, sink: TopicSpec, name: str, below: str) -> Iterator[str]:
        yield sink.servers.python()
        if sink.topic is not None:
            yield sink.topic.python()
        if sink.mode != "append" and not self._is_batch:
            yield f"mode={literal(sink.mode)}"
        if sink.options:
            yield f"options={_texts(sink.options, 12)}"
        yield from self._query(name, below)

    def _parquet(self, sink: ParquetSpec) -> str:
        by = f".partitionBy({_list(sink.partition_by)})" if sink.partition_by else ""
        path = sink.path.python()
        if self._is_batch:
            return f'good.write.mode("append"){by}.parquet({path})'
        trigger = self._trigger()
        pace = f".trigger(**{trigger})" if trigger else ""
        options = f'.option("checkpointLocation", {self._pipeline.checkpoint.python()})'
        named = f".queryName({literal(self._pipeline.name)})"
        return f'good.writeStream.format("parquet"){by}{options}{pace}{named}.start({path})'

    def _query(self, name: str, below: str) -> Iterator[str]:
        """What a streaming query has, and a batch has not."""
        if self._is_batch:
            return
        yield f"checkpoint={self._pipeline.checkpoint.plus(below).python()}"
        trigger = self._trigger()
        if trigger:
            yield f"trigger={trigger}"
        yield f"name={literal(name)}"

    def _trigger(self) -> str:
        if self._variation.once:
            return '{"availableNow": True}'
        if self._pipeline.trigger is not None:
            return f'{{"processingTime": {literal(self._pipeline.trigger)}}}'
        return ""

    @property
    def _is_batch(self) -> bool:
        return self._variation.between is not None

    # -- main ------------------------------------------------------------------------------------

    def _main(self) -> list[str]:
        session = f"SparkSession.builder.appName({literal(self._pipeline.name)})"
        for name, text in self._pipeline.spark.items():
            session += f".config({literal(name)}, {text.python()})"
        lines = ['if __name__ == "__main__":', "    use_java()"]
        lines += [f"    spark = {session}.getOrCreate()"]
        lines += ["    register(spark)"]
        if self._is_batch:
            return [*lines, "    start(spark)"]
        lines += ["    for query in start(spark):", "        if query is not None:"]
        return [*lines, "            query.awaitTermination()"]


def _decode(decode: Decode) -> Iterator[str]:
    schema = decode.schema
    if decode.kind in ("string", "raw") or schema is None:
        yield f"{decode.kind}=True"
    elif isinstance(schema, Text):
        yield f"{decode.kind}={schema.python()}"
    else:
        yield f"{decode.kind}={pprint.pformat(schema, width=80, sort_dicts=False)}"
    if decode.descriptor is not None:
        yield f"descriptor={decode.descriptor.python()}"
    if decode.registry is not None:
        yield f"registry={_registry(decode.registry)}"
    if decode.subject is not None:
        yield f"subject={decode.subject.python()}"
    if decode.confluent_header is not None:
        yield f"confluent_header={decode.confluent_header}"
    if decode.nulls != "bad":
        yield f"nulls={literal(decode.nulls)}"


def _registry(registry: RegistrySpec) -> str:
    more = [f"{name}={text.python()}" for name, text in registry.more.items()]
    return (
        f"Registry({', '.join([registry.url.python(), *more])})"
        if more
        else (registry.url.python())
    )


def _python(text: Text | None) -> str | None:
    return None if text is None else text.python()


def _list(texts: tuple[Text, ...]) -> str:
    return f"[{', '.join(text.python() for text in texts)}]"


def _texts(texts: Mapping[str, Text], indent: int) -> str:
    return _dict({name: text.python() for name, text in texts.items()}, indent)


def _dict(expressions: Mapping[str, str], indent: int) -> str:
    """On one line where that is short; `indent` is where the line begins that it stands in."""
    entries = [f"{literal(name)}: {expression}" for name, expression in expressions.items()]
    line = "{" + ", ".join(entries) + "}"
    if len(line) <= _SHORT:
        return line
    inner = "".join(f"{' ' * (indent + 4)}{entry},\n" for entry in entries)
    return "{\n" + inner + " " * indent + "}"


def _call(target: str, arguments: list[str]) -> list[str]:
    return [f"    {target}(", *(f"        {one}," for one in arguments), "    )"]
