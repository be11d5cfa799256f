"""What a pipeline does, as calls of the functions of `suwi.spark`, in their order.

`steps_of` makes them from a file's content; `script` writes them as Python, `program` makes them.
`Variation` says how a run differs from the file: once, from the beginning, a range, a sample.
Invariant: there is no other way from a file to a query, so what is shown is what happens.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeAlias

from suwi.spark.pipeline.nodes import said
from suwi.spark.pipeline.spec import (
    DeltaSpec,
    IcebergSpec,
    Input,
    OutputSpec,
    Pipeline,
    RegistrySpec,
    Sink,
    Source,
    TableSource,
    TopicSource,
    TopicSpec,
)
from suwi.spark.pipeline.text import Text

DEAD_LETTERS = "dead-letters"
_DEFAULT_START = "earliest"
_OF_STREAMS = ("startingversion", "maxfiles", "skipchange", "readchange")

Value: TypeAlias = (
    "Text | RegistrySpec | Call | str | int | bool | tuple[Any, ...] | dict[str, Any]"
)
"""Texts may hold references; dicts and tuples may hold texts and calls."""


@dataclass(frozen=True, slots=True)
class Between:
    """A range of offsets: a batch instead of a stream."""

    starting: str
    """As JSON."""
    ending: str
    txn: tuple[str, int]
    """Tables get it once."""
    replaced: Mapping[str, str] = field(default_factory=dict)
    """Conditions of the rows that outputs have of the range, by the output's name."""


@dataclass(frozen=True, slots=True)
class Last:
    """The last records of topics, or some rows of a table: a batch that writes nothing."""

    records: int
    starting: Mapping[str, str] = field(default_factory=dict)
    """The offsets as JSON, of topics, by the name of the input."""


@dataclass(frozen=True, slots=True)
class Variation:
    once: bool = False
    from_beginning: bool = False
    between: Between | None = None
    last: Last | None = None

    @property
    def is_batch(self) -> bool:
        return self.between is not None or self.last is not None


@dataclass(frozen=True, slots=True)
class Call:
    function: str
    """Of `suwi.spark`, or a method of a DataFrame; its first argument is not among these."""
    arguments: tuple[Value, ...] = ()
    named: dict[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class InputSteps:
    read: Call
    decode: Call | None
    transform: tuple[Call, ...]
    """Methods of the DataFrame."""

    @property
    def gives_bad(self) -> bool:
        """Whether there is a second DataFrame, of records that could not be decoded."""
        return self.decode is not None and self.decode.function == "decode"


@dataclass(frozen=True, slots=True)
class Steps:
    inputs: dict[str, InputSteps]
    """By the name that the SQL has for them."""
    tables: dict[str, Call]
    """What else the SQL may select from, by name."""
    expect: Call | None
    sink: Call
    """Of several outputs, all of them and dead letters."""
    dead_letter: Call | None


def steps_of(pipeline: Pipeline, variation: Variation | None = None) -> Steps:
    varied = variation or Variation()
    is_anew = pipeline.is_joint and not varied.is_batch
    table: dict[str, Value] = {"streaming": False}
    if is_anew:
        table["each_batch"] = True
    return Steps(
        {name: _input(pipeline, name, varied) for name in pipeline.inputs},
        {name: Call("read_delta", (path,), table) for name, path in pipeline.tables.items()},
        _given_call("expect", {name: rule.condition for name, rule in pipeline.expect.items()}),
        _outputs(pipeline, varied) if pipeline.is_joint else _sink(pipeline, varied),
        _dead_letter(pipeline, varied),
    )


def _input(pipeline: Pipeline, name: str, variation: Variation) -> InputSteps:
    one = pipeline.inputs[name]
    read = _read(name, one.source, variation)
    return InputSteps(read, _decode(pipeline, one, variation), tuple(_transform(one, variation)))


def _dead_letter(pipeline: Pipeline, variation: Variation) -> Call | None:
    dead = pipeline.dead_letters
    if dead is None or not pipeline.dead_letter_query:
        return None
    _, arguments, named = _target(dead, variation)
    query = _query(pipeline, variation, f"{pipeline.name}-{DEAD_LETTERS}", f"/{DEAD_LETTERS}")
    return Call("dead_letter", arguments, {"pipeline": pipeline.name, **named, **query})


def _outputs(pipeline: Pipeline, variation: Variation) -> Call:
    outputs = {
        name: _output(one, variation, _replaced(name, variation))
        for name, one in pipeline.outputs.items()
    }
    dead = pipeline.dead_letters
    named: dict[str, Value] = {} if variation.is_batch else _given("tables", pipeline.tables)
    if pipeline.mode != "append" and not variation.is_batch:
        named["mode"] = pipeline.mode
    if dead is not None:
        named["dead_letters"] = _output(OutputSpec(dead), variation)
    actions = {name: rule.action for name, rule in pipeline.expect.items()}
    named |= {"pipeline": pipeline.name, **_given("rules", actions), **_txn(variation)}
    return Call(
        "to_outputs", (outputs,), {**named, **_query(pipeline, variation, pipeline.name, "")}
    )


def _output(
    output: OutputSpec, variation: Variation, more: Mapping[str, Value] = MappingProxyType({})
) -> Call:
    kind, arguments, named = _target(output.sink, variation)
    return Call(f"{kind}_output", arguments, {**said(output), **named, **more})


def _replaced(output: str, variation: Variation) -> dict[str, Value]:
    conditions = {} if variation.between is None else variation.between.replaced
    return _given("replace_where", conditions.get(output))


def _target(sink: Sink, variation: Variation) -> tuple[str, tuple[Value, ...], dict[str, Value]]:
    """The kind of a sink, and the arguments of functions that write to it."""
    match sink:
        case TopicSpec(topic, servers):
            options: dict[str, Value] = dict(sink.options)
            if variation.is_batch:
                # Only a stream's batches have numbers by which a replay is known.
                options = _without(options, ("transactionalidprefix",))
            arguments = (servers,) if topic is None else (servers, topic)
            return "topic", arguments, _given("options", options)
        case DeltaSpec(path):
            return "delta", (path,), said(sink, "path", "mode", "compact_every_s")
        case IcebergSpec(table):
            return "iceberg", (table,), said(sink, "table", "mode")
    return "parquet", (sink.path,), _given("partition_by", sink.partition_by)


def _read(name: str, source: Source, variation: Variation) -> Call:
    if isinstance(source, TableSource):
        named: dict[str, Value] = {}
        options: dict[str, Value] = dict(source.all_options)
        if variation.is_batch:
            options = _without(options, _OF_STREAMS)
            named["streaming"] = False
        elif source.start is not None and not variation.from_beginning:
            named["starting"] = source.start
        more = _given("options", options) | _given("storage_options", source.storage_options)
        return Call("read_delta", (source.path,), named | more)
    arguments: tuple[Value, ...] = (source.servers,)
    if source.topics:
        arguments += (source.topics[0] if len(source.topics) == 1 else source.topics,)
    pattern = {} if source.pattern is None else {"pattern": source.pattern}
    return Call("read_topics", arguments, {**pattern, **_from(name, source, variation)})


def _from(name: str, source: TopicSource, variation: Variation) -> dict[str, Value]:
    """Where to begin, and the options."""
    options: dict[str, Value] = dict(source.options)
    between, last = variation.between, variation.last
    if variation.is_batch:
        options = _without(options, ("starting", "ending", "maxoffsets", "minoffsets"))
    if last is not None:
        return {"streaming": False, "starting": last.starting[name], **_given("options", options)}
    if between is not None:
        # Rows of records that were passed over would be removed, and not written again.
        options = _without(options, ("failondataloss",)) | {"endingOffsets": between.ending}
        return {"streaming": False, "starting": between.starting, "options": options}
    if variation.from_beginning:
        return {"starting": _DEFAULT_START, **_given("options", _without(options, ("starting",)))}
    start: dict[str, Value] = {}
    if options == _without(options, ("starting",)):
        start["starting"] = source.start or _DEFAULT_START
    return {**start, **_given("options", options)}


def _decode(pipeline: Pipeline, one: Input, variation: Variation) -> Call | None:
    decode = one.decode
    if decode is None:
        return None
    kind: Value = True if decode.schema is None else decode.schema
    named: dict[str, Value] = {decode.kind: kind, **said(decode)}
    if not pipeline.is_joint or pipeline.dead_letters is None or variation.last is not None:
        return Call("decode", (), named)
    is_plain = pipeline.sql is None and pipeline.python is None and one.watermark is None
    if is_plain or not one.may_be_bad:
        # Nothing stands between, so that one pass finds good and bad records.
        return Call("decode_together", (), {**named, "pipeline": pipeline.name})
    return Call("decode", (), named if variation.is_batch else {**named, "read_once": True})


def _transform(one: Input, variation: Variation) -> list[Call]:
    calls = []
    if variation.last is not None and isinstance(one.source, TableSource):
        calls.append(Call("limit", (variation.last.records,)))
    if one.watermark is not None:
        calls.append(Call("withWatermark", (one.watermark.column, one.watermark.delay)))
    if one.deduplicate:
        # A batch has no watermark: all rows are compared.
        is_batch = variation.is_batch
        method = "dropDuplicates" if is_batch else "dropDuplicatesWithinWatermark"
        calls.append(Call(method, (one.deduplicate,)))
    return calls


def _given_call(function: str, argument: dict[str, Any]) -> Call | None:
    return Call(function, (argument,)) if argument else None


def _rules(pipeline: Pipeline) -> dict[str, Value]:
    actions = {name: rule.action for name, rule in pipeline.expect.items()}
    dead = pipeline.dead_letters
    if dead is None or dead.topic is None or "dead_letters" not in actions.values():
        return _given("rules", actions)
    options = {**dead.options, "kafka.bootstrap.servers": dead.servers, "topic": dead.topic}
    return {"rules": actions, "dead_letters": options}


def _sink(pipeline: Pipeline, variation: Variation) -> Call:
    ((name, output),) = pipeline.outputs.items()
    sink = output.sink
    kind, arguments, named = _target(sink, variation)
    mode = getattr(sink, "mode", "append")
    if mode != "append" and not (variation.is_batch and mode == "update"):
        named = {"mode": mode, **named}
    replaced = _replaced(name, variation)
    if replaced:
        named = {"mode": "overwrite", **named, **replaced}
    if isinstance(sink, DeltaSpec | IcebergSpec):
        named |= _txn(variation)
    if isinstance(sink, DeltaSpec) and sink.compact_every_s is not None and not variation.between:
        named["compact_every_s"] = sink.compact_every_s
    query = {**_rules(pipeline), **_query(pipeline, variation, pipeline.name, "")}
    return Call(f"to_{kind}", arguments, {**named, **query})


def _txn(variation: Variation) -> dict[str, Value]:
    return {} if variation.between is None else {"txn": variation.between.txn}


def _query(pipeline: Pipeline, variation: Variation, name: str, below: str) -> dict[str, Value]:
    """Arguments that only a streaming query has."""
    if variation.is_batch:
        return {}
    named: dict[str, Value] = {"checkpoint": pipeline.checkpoint.plus(below)}
    if variation.once:
        named["trigger"] = {"availableNow": True}
    elif pipeline.trigger is not None:
        named["trigger"] = {"processingTime": pipeline.trigger}
    return {**named, "name": name}


def _given(name: str, value: Any) -> dict[str, Value]:
    """The argument, unless it is empty."""
    return {name: value} if value else {}


def _without(options: dict[str, Value], beginnings: tuple[str, ...]) -> dict[str, Value]:
    return {
        name: value for name, value in options.items() if not name.lower().startswith(beginnings)
    }
