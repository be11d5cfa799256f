"""What a pipeline file says, understood: values, no behaviour."""

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from suwi.spark.pipeline.text import Text

VIEW = "records"
"""What the SQL statement selects from."""


@dataclass(frozen=True, slots=True)
class TopicSource:
    servers: Text
    topics: tuple[Text, ...] = ()
    pattern: Text | None = None
    """Instead of topics."""
    start: Text | None = None
    options: dict[str, Text] = field(default_factory=dict)
    line: int = 0


@dataclass(frozen=True, slots=True)
class TableSource:
    path: Text
    start: Text | None = None
    """A version, or `latest`; without it a snapshot comes first."""
    options: dict[str, Text] = field(default_factory=dict)
    storage_options: dict[str, Text] = field(default_factory=dict)
    line: int = 0


Source: TypeAlias = TopicSource | TableSource


@dataclass(frozen=True, slots=True)
class RegistrySpec:
    url: Text
    more: dict[str, Text] = field(default_factory=dict)
    """user, password, token, ca_file"""


@dataclass(frozen=True, slots=True)
class Decode:
    kind: str
    """json, string, raw, avro or protobuf"""
    schema: Text | dict[str, Any] | None = None
    """None where the kind needs none, or where it comes from the registry."""
    descriptor: Text | None = None
    registry: RegistrySpec | None = None
    subject: Text | None = None
    confluent_header: bool | None = None
    nulls: str = "bad"
    lenient: bool = False
    max_future: str | None = None
    line: int = 0


@dataclass(frozen=True, slots=True)
class Watermark:
    column: Text
    delay: Text


@dataclass(frozen=True, slots=True)
class Function:
    module: str
    name: str
    line: int


@dataclass(frozen=True, slots=True)
class DeltaSpec:
    path: Text
    mode: str
    partition_by: tuple[Text, ...] = ()
    merge_schema: bool = False
    keys: tuple[Text, ...] = ()
    more: dict[str, Text] = field(default_factory=dict)
    """order_by, delete_when, target_file_size, compression"""
    compact_every_s: int | None = None
    storage_options: dict[str, Text] = field(default_factory=dict)
    line: int = 0


@dataclass(frozen=True, slots=True)
class TopicSpec:
    topic: Text | None
    """None: the column `topic` says."""
    servers: Text
    mode: str
    options: dict[str, Text] = field(default_factory=dict)
    line: int = 0


@dataclass(frozen=True, slots=True)
class ParquetSpec:
    path: Text
    partition_by: tuple[Text, ...] = ()
    line: int = 0


Sink: TypeAlias = DeltaSpec | TopicSpec | ParquetSpec


def sink_text(sink: Sink) -> str:
    """Where to, for people: references, not what they stand for."""
    if isinstance(sink, TopicSpec):
        return f"topic {sink.topic.shown}" if sink.topic else "topics of column topic"
    return sink.path.shown


@dataclass(frozen=True, slots=True)
class Pipeline:
    name: str
    source: Source
    decode: Decode | None
    """None: the source is a table."""
    sink: Sink
    checkpoint: Text
    watermark: Watermark | None = None
    deduplicate: tuple[Text, ...] = ()
    tables: dict[str, Text] = field(default_factory=dict)
    """Delta tables for the SQL, by the name that it has for them."""
    sql: Text | None = None
    python: Function | None = None
    dead_letters: TopicSpec | None = None
    trigger: str | None = None
    """None: the next batch starts when one is done. Else an interval."""
    group: Text | None = None
    """Under which progress is committed; None: it is not."""
    spark: dict[str, Text] = field(default_factory=dict)
    folder: str = "."
    """Where the file is: where Python modules are looked for."""


def source_text(pipeline: Pipeline) -> str:
    """Where from, for people."""
    source = pipeline.source
    if isinstance(source, TableSource):
        return source.path.shown
    if source.pattern is not None:
        return f"topics {source.pattern.shown}"
    names = ", ".join(topic.shown for topic in source.topics)
    return f"topic{'s' * (len(source.topics) > 1)} {names}" if names else "assigned partitions"
