"""What a pipeline does, as calls of the functions of `suwi.spark`, in their order.

`steps_of` makes them from a file's content; `script` writes them as Python, `program` makes them.
`Variation` says how a run differs from the file: once, from the beginning, a range of time.
Invariant: there is no other way from a file to a query, so what is shown is what happens.
"""

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from suwi.spark.pipeline.spec import (
    Decode,
    DeltaSpec,
    Pipeline,
    RegistrySpec,
    TableSource,
    TopicSource,
    TopicSpec,
)
from suwi.spark.pipeline.text import Text

DEAD_LETTERS = "dead-letters"
_DEFAULT_START = "earliest"

Value: TypeAlias = Text | RegistrySpec | str | int | bool | tuple[Any, ...] | dict[str, Any]
"""Texts may hold references; dicts and tuples may hold texts."""


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

    @property
    def is_batch(self) -> bool:
        return self.between is not None


@dataclass(frozen=True, slots=True)
class Call:
    function: str
    """Of `suwi.spark`, or a method of a DataFrame; its first argument is not among these."""
    arguments: tuple[Value, ...] = ()
    named: dict[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Steps:
    read: Call
    decode: Call | None
    transform: tuple[Call, ...]
    """Methods of the DataFrame."""
    tables: dict[str, Call]
    """What else the SQL may select from, by name."""
    sink: Call
    dead_letter: Call | None


def steps_of(pipeline: Pipeline, variation: Variation | None = None) -> Steps:
    varied = variation or Variation()
    dead = pipeline.dead_letters
    name = f"{pipeline.name}-{DEAD_LETTERS}"
    return Steps(
        _read(pipeline, varied),
        None if pipeline.decode is None else _decode(pipeline.decode),
        tuple(_transform(pipeline, varied)),
        {
            name: Call("read_delta", (path,), {"streaming": False})
            for name, path in pipeline.tables.items()
        },
        _sink(pipeline, varied),
        None
        if dead is None
        else Call(
            "dead_letter",
            _topic_arguments(dead),
            {
                "pipeline": pipeline.name,
                **_topic_options(dead, varied),
                **_query(pipeline, varied, name, f"/{DEAD_LETTERS}"),
            },
        ),
    )


def _read(pipeline: Pipeline, variation: Variation) -> Call:
    source = pipeline.source
    if isinstance(source, TableSource):
        named: dict[str, Value] = {}
        if source.start is not None and not variation.from_beginning:
            named["starting"] = source.start
        more = _given("options", source.options) | _given("storage_options", source.storage_options)
        return Call("read_delta", (source.path,), named | more)
    arguments: tuple[Value, ...] = (source.servers,)
    if source.topics:
        arguments += (source.topics[0] if len(source.topics) == 1 else source.topics,)
    pattern = {} if source.pattern is None else {"pattern": source.pattern}
    return Call("read_topics", arguments, {**pattern, **_from(source, variation)})


def _from(source: TopicSource, variation: Variation) -> dict[str, Value]:
    """Where to begin, and the options."""
    options: dict[str, Value] = dict(source.options)
    between = variation.between
    if between is not None:
        options = _without(options, ("starting", "ending", "maxoffsets", "minoffsets"))
        options["startingTimestamp"] = str(between.start_ms)
        options["endingTimestamp"] = str(between.end_ms)
        # A partition that has nothing so new has nothing to read.
        options["startingOffsetsByTimestampStrategy"] = "latest"
        return {"streaming": False, "options": options}
    if variation.from_beginning:
        return {"starting": _DEFAULT_START, **_given("options", _without(options, ("starting",)))}
    start: dict[str, Value] = {}
    if options == _without(options, ("starting",)):
        start["starting"] = source.start or _DEFAULT_START
    return {**start, **_given("options", options)}


def _decode(decode: Decode) -> Call:
    named: dict[str, Value] = {decode.kind: True if decode.schema is None else decode.schema}
    if decode.descriptor is not None:
        named["descriptor"] = decode.descriptor
    if decode.registry is not None:
        named["registry"] = decode.registry
    if decode.subject is not None:
        named["subject"] = decode.subject
    if decode.confluent_header is not None:
        named["confluent_header"] = decode.confluent_header
    if decode.nulls != "bad":
        named["nulls"] = decode.nulls
    if decode.lenient:
        named["lenient"] = True
    if decode.max_future is not None:
        named["max_future"] = decode.max_future
    return Call("decode", (), named)


def _transform(pipeline: Pipeline, variation: Variation) -> list[Call]:
    calls = []
    if pipeline.watermark is not None:
        calls.append(Call("withWatermark", (pipeline.watermark.column, pipeline.watermark.delay)))
    if pipeline.deduplicate:
        # A batch has no watermark: there it is all rows that are compared.
        is_batch = variation.is_batch
        method = "dropDuplicates" if is_batch else "dropDuplicatesWithinWatermark"
        calls.append(Call(method, (pipeline.deduplicate,)))
    return calls


def _sink(pipeline: Pipeline, variation: Variation) -> Call:
    sink = pipeline.sink
    query = _query(pipeline, variation, pipeline.name, "")
    if isinstance(sink, TopicSpec):
        mode = {} if sink.mode == "append" or variation.is_batch else {"mode": sink.mode}
        named = {**mode, **_topic_options(sink, variation), **query}
        return Call("to_topic", _topic_arguments(sink), named)
    by = _given("partition_by", sink.partition_by)
    if not isinstance(sink, DeltaSpec):
        return Call("to_parquet", (sink.path,), {**by, **query})
    named = {}
    if sink.mode != "append" and not (variation.is_batch and sink.mode == "update"):
        named["mode"] = sink.mode
    named |= by
    if sink.merge_schema:
        named["merge_schema"] = True
    named |= {**_given("keys", sink.keys), **sink.more}
    named |= _given("storage_options", sink.storage_options)
    between = variation.between
    if between is not None:
        # The same range again writes nothing.
        named["txn"] = (f"{pipeline.name}:{between.start_ms}-{between.end_ms}", 1)
    elif sink.compact_every_s is not None:
        named["compact_every_s"] = sink.compact_every_s
    return Call("to_delta", (sink.path,), {**named, **query})


def _topic_arguments(sink: TopicSpec) -> tuple[Value, ...]:
    return (sink.servers,) if sink.topic is None else (sink.servers, sink.topic)


def _topic_options(sink: TopicSpec, variation: Variation) -> dict[str, Value]:
    options: dict[str, Value] = dict(sink.options)
    if variation.is_batch:  # Only a stream's batches have numbers by which a replay is known.
        options = _without(options, ("transactionalidprefix",))
    return _given("options", options)


def _query(pipeline: Pipeline, variation: Variation, name: str, below: str) -> dict[str, Value]:
    """What a streaming query has, and a batch has not."""
    if variation.is_batch:
        return {}
    named: dict[str, Value] = {"checkpoint": pipeline.checkpoint.plus(below)}
    if variation.once:
        named["trigger"] = {"availableNow": True}
    elif pipeline.trigger is not None:
        named["trigger"] = {"processingTime": pipeline.trigger}
    return {**named, "name": name}


def _given(name: str, value: Any) -> dict[str, Value]:
    """Nothing where there is nothing."""
    return {name: value} if value else {}


def _without(options: dict[str, Value], beginnings: tuple[str, ...]) -> dict[str, Value]:
    return {
        name: value for name, value in options.items() if not name.lower().startswith(beginnings)
    }
