"""What a pipeline file says, understood: values, each with the key of the file that says it."""

import re
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from yaml import MappingNode

from suwi.spark.decoders.places import is_interval
from suwi.spark.pipeline.nodes import Fields, Read, key, part, plain, word
from suwi.spark.pipeline.text import Text
from suwi.spark.rules import ACTIONS

VIEW = "records"
"""What the SQL statement selects from."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")
LETTERS = "letters, digits, '.', '_' and '-' only"
_FUNCTION = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)")

# -- kinds of values -------------------------------------------------------------------------------

_name = plain(lambda given: None if NAME.fullmatch(given) else LETTERS)


def _interval(example: str) -> Read:
    return plain(lambda given: None if is_interval(given) else f"an interval, like {example!r}")


def _delay(fields: Fields, name: str) -> Text | None:
    text = fields.text(name)
    if text is not None and text.is_plain and not is_interval(text.shown):
        fields.wrong(name, f"{text.shown!r}: like '10 minutes'")
    return text


def _seconds(fields: Fields, name: str) -> int | None:
    problem = "a number of seconds"
    given = plain(lambda text: None if text.isdecimal() and int(text) else problem)(fields, name)
    return int(given) if given is not None and given.isdecimal() else None


def _function(fields: Fields, name: str) -> "Function | None":
    problem = "as module:function"
    given = plain(lambda text: None if _FUNCTION.fullmatch(text) else problem)(fields, name)
    found = None if given is None else _FUNCTION.fullmatch(given)
    return None if found is None else Function(found[1], found[2], fields.line_at(name))


# -- sources ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TopicSource:
    servers: Text = key(Fields.text)
    topics: tuple[Text, ...] = key(Fields.texts, ())
    pattern: Text | None = key(Fields.text, None)
    """Instead of topics."""
    start: Text | None = key(Fields.text, None, name="from")
    options: dict[str, Text] = key(Fields.mapping, dict)
    line: int = 0


@dataclass(frozen=True, slots=True)
class TableSource:
    path: Text = key(Fields.text, name="delta")
    start: Text | None = key(Fields.text, None, name="from")
    """A version, or `latest`; without it a snapshot comes first."""
    columns: tuple[Text, ...] = key(Fields.texts, ())
    where: Text | None = key(Fields.text, None)
    options: dict[str, Text] = key(Fields.mapping, dict)
    storage_options: dict[str, Text] = key(Fields.mapping, dict)
    line: int = 0

    @property
    def all_options(self) -> dict[str, Text]:
        columns = {"columns": Text.joined(self.columns)} if self.columns else {}
        where = {} if self.where is None else {"where": self.where}
        return {**self.options, **columns, **where}


Source: TypeAlias = TopicSource | TableSource


@dataclass(frozen=True, slots=True)
class RegistrySpec:
    url: Text = key(Fields.text)
    user: Text | None = key(Fields.text, None)
    password: Text | None = key(Fields.text, None)
    token: Text | None = key(Fields.text, None)
    ca_file: Text | None = key(Fields.text, None)

    @classmethod
    def of(cls, fields: Fields, name: str) -> "RegistrySpec | None":
        """An address alone, or with what it needs."""
        if isinstance(fields.node(name), MappingNode):
            found: RegistrySpec | None = part(cls)(fields, name)
            return found
        url = fields.text(name)
        return None if url is None else cls(url)


@dataclass(frozen=True, slots=True)
class Decode:
    kind: str
    """json, string, raw, avro or protobuf"""
    schema: Text | dict[str, Any] | None = None
    """None where the kind needs none, or where it comes from the registry."""
    descriptor: Text | None = key(Fields.text, None)
    registry: RegistrySpec | None = key(RegistrySpec.of, None)
    subject: Text | None = key(Fields.text, None)
    confluent_header: bool | None = key(Fields.flag, None)
    nulls: str = key(word("bad", "keep", "drop"), "bad")
    lenient: bool = key(Fields.flag, False)
    max_future: str | None = key(_interval("1 day"), None)
    line: int = 0


@dataclass(frozen=True, slots=True)
class Watermark:
    column: Text = key(Fields.text)
    delay: Text = key(_delay)


@dataclass(frozen=True, slots=True)
class Input:
    source: Source
    decode: Decode | None
    """None: the source is a table."""
    watermark: Watermark | None = key(part(Watermark), None)
    deduplicate: tuple[Text, ...] = key(Fields.texts, ())

    @property
    def may_be_bad(self) -> bool:
        """Whether there may be records that cannot be decoded."""
        return self.decode is not None and self.decode.kind != "raw"


# -- steps and sinks -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rule:
    condition: Text = key(Fields.text)
    action: str = key(word(*ACTIONS), "warn", name="otherwise")


@dataclass(frozen=True, slots=True)
class Function:
    module: str
    name: str
    line: int


@dataclass(frozen=True, slots=True)
class DeltaSpec:
    path: Text = key(Fields.text, name="delta")
    mode: str = key(word("append", "update", "complete"), "append")
    partition_by: tuple[Text, ...] = key(Fields.texts, ())
    merge_schema: bool = key(Fields.flag, False)
    keys: tuple[Text, ...] = key(Fields.texts, ())
    order_by: Text | None = key(Fields.text, None)
    delete_when: Text | None = key(Fields.text, None)
    target_file_size: Text | None = key(Fields.text, None)
    compression: Text | None = key(Fields.text, None)
    compact_every_s: int | None = key(_seconds, None)
    storage_options: dict[str, Text] = key(Fields.mapping, dict)
    line: int = 0


@dataclass(frozen=True, slots=True)
class IcebergSpec:
    table: Text = key(Fields.text, name="iceberg")
    warehouse: Text | None = key(Fields.text, None)
    catalog: dict[str, Text] = key(Fields.mapping, dict)
    mode: str = key(word("append"), "append")
    partition_by: tuple[Text, ...] = key(Fields.texts, ())
    merge_schema: bool = key(Fields.flag, False)
    target_file_size: Text | None = key(Fields.text, None)
    compression: Text | None = key(Fields.text, None)
    line: int = 0


@dataclass(frozen=True, slots=True)
class TopicSpec:
    topic: Text | None = key(Fields.text, None)
    """None: the column `topic` says."""
    servers: Text = key(Fields.text, Text((), 0))
    """The source's, unless others are named."""
    mode: str = key(word("append", "update"), "append")
    options: dict[str, Text] = key(Fields.mapping, dict)
    line: int = 0


@dataclass(frozen=True, slots=True)
class ParquetSpec:
    path: Text = key(Fields.text, name="parquet")
    partition_by: tuple[Text, ...] = key(Fields.texts, ())
    line: int = 0


Sink: TypeAlias = DeltaSpec | IcebergSpec | TopicSpec | ParquetSpec
SINKS: dict[str, type[Sink]] = {
    "delta": DeltaSpec,
    "iceberg": IcebergSpec,
    "topic": TopicSpec,
    "parquet": ParquetSpec,
}


@dataclass(frozen=True, slots=True)
class OutputSpec:
    sink: Sink
    when: Text | None = key(Fields.text, None)
    """Which rows it gets; None: all."""
    select: Text | None = key(Fields.text, None)
    """Which columns; None: all."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    name: str = key(_name)
    checkpoint: Text = key(Fields.text)
    inputs: dict[str, Input] = field(default_factory=dict)
    """By the name that the SQL has for it: `records`, if the file has `source`."""
    outputs: dict[str, OutputSpec] = field(default_factory=dict)
    """By name: `sink`, if the file has that."""
    is_joint: bool = False
    """Whether the file has `outputs`: one query writes all of them, dead letters too."""
    mode: str = key(word("append", "update"), "append")
    """Of all `outputs`."""
    tables: dict[str, Text] = key(Fields.mapping, dict)
    """Delta tables for the SQL, by the name that it has for them."""
    sql: Text | None = key(Fields.text, None)
    python: Function | None = key(_function, None)
    expect: dict[str, Rule] = field(default_factory=dict)
    """Rules for the rows that are written, by name."""
    dead_letters: TopicSpec | None = None
    trigger: str | None = key(_interval("10 seconds"), None)
    """None: the next batch starts when one is done. Else an interval."""
    create_topics: bool = key(Fields.flag, False)
    """Whether a run creates topics that it writes to."""
    group: Text | None = None
    """The group for which progress is committed; None: it is not committed."""
    status: bool | None = key(Fields.flag, None)
    """Whether the run's status is published; None: on clusters of Suwi."""
    spark: dict[str, Text] = key(Fields.mapping, dict)
    folder: str = "."
    """The directory of the file, in which Python modules are looked up."""

    @property
    def source(self) -> Source:
        """The first, which most pipelines have alone."""
        return next(iter(self.inputs.values())).source

    @property
    def sinks(self) -> dict[str, Sink]:
        """All that is written to, by how the file names it."""
        prefix = "outputs." if self.is_joint else ""
        found = {f"{prefix}{name}": output.sink for name, output in self.outputs.items()}
        return found if self.dead_letters is None else {**found, "dead_letters": self.dead_letters}

    @property
    def dead_letter_query(self) -> bool:
        """Whether records that cannot be decoded are found by a query of their own."""
        may_be_bad = any(one.may_be_bad for one in self.inputs.values())
        return self.dead_letters is not None and may_be_bad and not self.is_joint


# -- for people ------------------------------------------------------------------------------------


def sink_text(sink: Sink) -> str:
    if isinstance(sink, TopicSpec):
        return f"topic {sink.topic.named}" if sink.topic else "topics of column topic"
    return sink.table.named if isinstance(sink, IcebergSpec) else sink.path.named


def sources_text(pipeline: Pipeline) -> str:
    return ", ".join(source_text(one.source) for one in pipeline.inputs.values())


def sinks_text(pipeline: Pipeline) -> str:
    return ", ".join(sink_text(sink) for sink in pipeline.sinks.values())


def source_text(source: Source) -> str:
    if isinstance(source, TableSource):
        return source.path.named
    if source.pattern is not None:
        return f"topics {source.pattern.named}"
    names = ", ".join(topic.named for topic in source.topics)
    return f"topic{'s' * (len(source.topics) > 1)} {names}" if names else "assigned partitions"
