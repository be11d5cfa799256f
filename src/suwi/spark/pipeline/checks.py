"""Whether a pipeline can be used: what the file alone tells, and what only brokers and Spark can.

`Checker` judges the parts of a file as they are read: references that resolve, options that exist,
types and SQL that Spark can know. The table of options that a query is started with judges them
here, too, and a problem is told with the line of the option. `check_deeply` asks the brokers for
the topics, Spark for settings, schema, SQL and function, and the sink for its columns.
"""

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final

from suwi.client.errors import reason
from suwi.client.security import read_client_security
from suwi.env import Env, local_env
from suwi.model.config_kinds import BadConfig
from suwi.model.errors import BrokerError
from suwi.spark.delta.errors import DeltaSinkError
from suwi.spark.option_kinds import Use
from suwi.spark.option_table import KAFKA
from suwi.spark.options import (
    BadOption,
    Connection,
    examine,
    read_connection,
    read_source_options,
    read_table_options,
)
from suwi.spark.pipeline.failures import failure_of
from suwi.spark.pipeline.nodes import Problem, Problems
from suwi.spark.pipeline.program import BadFunction, load_program
from suwi.spark.pipeline.spec import (
    Decode,
    DeltaSpec,
    Pipeline,
    Sink,
    Source,
    TableSource,
    TopicSource,
    TopicSpec,
)
from suwi.spark.pipeline.text import Text, Unresolved
from suwi.spark.session import Session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_DELTA_NAMES: Final = {
    "order_by": "orderBy",
    "delete_when": "deleteWhen",
    "target_file_size": "targetFileSize",
    "compression": "compression",
}
# Stand-ins for what cannot be resolved, where something must be there.
_STAND_INS: Final = {
    "kafka.bootstrap.servers": "127.0.0.1:9092",
    "subscribe": "topic",
    "subscribePattern": "topic",
    "path": "/table",
}
_QUERY: Final = re.compile(
    r"(?:\s|--[^\n]*\n|/\*.*?\*/|\()*(SELECT|WITH|FROM|VALUES|TABLE)\b", re.IGNORECASE | re.DOTALL
)
_LINE_OF_SQL: Final = re.compile(r"\(line (\d+), pos \d+\)|; line (\d+) pos \d+")


class Checker:
    def __init__(self, problems: Problems, environ: Mapping[str, str], env: Env) -> None:
        self._problems = problems
        self._environ = environ
        self._env = env
        self._told: set[Text] = set()
        self._faults: set[tuple[int, str]] = set()

    def source(self, source: Source) -> None:
        if isinstance(source, TableSource):
            self._options("source", table_options(source), source.line, Use.TABLE_STREAM)
        else:
            self._options("source", source_options(source), source.line, Use.STREAM)

    def sink(self, where: str, sink: Any) -> None:
        if isinstance(sink, TopicSpec):
            self._options(where, topic_options(sink), sink.line, Use.WRITE)
        elif isinstance(sink, DeltaSpec):
            self._options(where, _delta_options(sink), sink.line, Use.TABLE_WRITE)

    def decode(self, decode: Decode) -> None:
        if decode.kind == "json" and isinstance(decode.schema, Text):
            schema = self._resolved(decode.schema)
            for problem in [] if schema is None else wrong_types(schema):
                self._problems.add(decode.schema.line, f"decode.json: {problem}")

    def sql(self, sql: Text) -> None:
        text = self._resolved(sql)
        if text is not None and not _QUERY.match(text):
            first = text.split(maxsplit=1)[0] if text.split() else ""
            self._problems.add(sql.line, f"sql: a SELECT from records is expected, not {first!r}")

    def spark(self, settings: Mapping[str, Text]) -> None:
        for name, text in settings.items():
            if not name.startswith("spark."):
                self._problems.add(text.line, f"spark: {name!r}: settings begin with 'spark.'")

    def references(self, part: Any) -> None:
        """Every text of it can be resolved."""
        for text in _texts(part):
            self._resolved(text)

    def _options(self, where: str, texts: Mapping[str, Text], line: int, use: Use) -> None:
        given: dict[str, str] = {}
        for name, text in texts.items():
            value = self._resolved(text)
            if value is not None or name in _STAND_INS:
                given[name] = _STAND_INS[name] if value is None else value
        lines = {name.lower(): text.line for name, text in texts.items()}
        faults = examine(given, use)
        if use is Use.STREAM and not faults:
            faults = self._files_of_tls(given)
        for fault in faults:
            at = lines.get((fault.option or "").lower(), line)
            if (at, str(fault)) not in self._faults:  # A topic sink may use the source's servers.
                self._faults.add((at, str(fault)))
                self._problems.add(at, f"{where}: {fault}")

    def _files_of_tls(self, given: dict[str, str]) -> list[BadOption]:
        """The driver reads those of the source; a sink's may lie on the executors only."""
        try:
            security = read_connection(given).security
            read_client_security(security, self._env.disk, self._env.random)
        except BadConfig as error:
            text = str(error)  # It begins with a key, or with the path of a file.
            for name, value in sorted(given.items(), key=lambda item: -len(item[0])):
                key = name.removeprefix(KAFKA)
                if key in text or (key.endswith(".location") and value in text):
                    about = f"{KAFKA}{text}" if key in text else f"{name}: {text}"
                    return [BadOption(about, name)]
            return [BadOption(text)]
        return []

    def _resolved(self, text: Text) -> str | None:
        try:
            return text.resolve(self._environ, self._env.disk)
        except Unresolved as error:
            if text not in self._told:
                self._told.add(text)
                self._problems.add(text.line, str(error))
            return None


def source_options(source: TopicSource) -> dict[str, Text]:
    options = {"kafka.bootstrap.servers": source.servers}
    if source.topics:
        parts = [part for topic in source.topics for part in (",", *topic.parts)]
        options["subscribe"] = Text(tuple(parts[1:]), source.topics[0].line)
    if source.pattern is not None:
        options["subscribePattern"] = source.pattern
    if source.start is not None:
        options["startingOffsets"] = source.start
    options |= source.options
    if not any(name.lower() in ("subscribe", "subscribepattern", "assign") for name in options):
        options["subscribe"] = Text(("topic",), source.line)  # Said by whoever read the file.
    return options


def table_options(source: TableSource) -> dict[str, Text]:
    start = {} if source.start is None else {"startingVersion": source.start}
    return {"path": source.path, **start, **source.options, **_storage(source.storage_options)}


def topic_options(sink: TopicSpec) -> dict[str, Text]:
    named = {} if sink.topic is None else {"topic": sink.topic}
    return {"kafka.bootstrap.servers": sink.servers, **named, **sink.options}


def _delta_options(sink: DeltaSpec) -> dict[str, Text]:
    options = {"path": sink.path}
    options |= {_DELTA_NAMES[name]: text for name, text in sink.more.items()}
    if sink.keys:
        options["keys"] = Text(("key",), sink.line)
    return options | _storage(sink.storage_options)


def _storage(options: Mapping[str, Text]) -> dict[str, Text]:
    return {f"storage.{name}": text for name, text in options.items()}


def _texts(value: Any) -> Iterator[Text]:
    """Every text of a part."""
    if isinstance(value, Text):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from _texts(getattr(value, field.name))
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, tuple):
        for item in value:
            yield from _texts(item)


# -- types -----------------------------------------------------------------------------------------

_TYPES: Final = frozenset(
    """
    bigint long int integer smallint short tinyint byte double float real boolean binary string date
    timestamp timestamp_ntz timestamp_ltz decimal dec numeric char varchar variant void interval
    array map struct
    """.split()
)
_TOKEN: Final = re.compile(r"\s*(`[^`]*`|'[^']*'|\w+|[<>(),:])")


def wrong_types(schema: str) -> list[str]:
    """Types in `name TYPE, …` that Spark does not have, and missing commas.

    What else is wrong Spark itself says.
    """
    if schema.count("<") != schema.count(">") or schema.count("(") != schema.count(")"):
        return ["brackets do not match"]
    types = _Types(_TOKEN.findall(schema))
    try:
        types.fields()
    except IndexError:
        pass  # It ends too early, and is not understood.
    return types.wrong


class _Types:
    """Walks through a schema as Spark writes one."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self.wrong: list[str] = []

    def fields(self) -> None:
        """Up to the end, or to the `>` of a struct."""
        while self._tokens and self._tokens[0] != ">":
            name = self._tokens.pop(0)
            if self._tokens[0] == ":":
                self._tokens.pop(0)
            self._type()
            for more in ("not", "null", "comment", "'"):
                if self._tokens and self._tokens[0].lower().startswith(more):
                    self._tokens.pop(0)
            if self._tokens and self._tokens[0] not in (",", ">"):
                self.wrong.append(f"there is no comma after {name}, before {self._tokens[0]}")
            elif self._tokens and self._tokens[0] == ",":
                self._tokens.pop(0)

    def _type(self) -> None:
        name = self._tokens.pop(0)
        if name.lower() not in _TYPES:
            close = difflib.get_close_matches(name.lower(), _TYPES, n=1)
            hint = f": did you mean {close[0].upper()}?" if close else ""
            self.wrong.append(f"there is no type {name}{hint}")
        if self._tokens[:1] == ["("]:
            while self._tokens.pop(0) != ")":
                pass
        if self._tokens[:1] == ["<"]:
            self._tokens.pop(0)
            if name.lower() == "struct":
                self.fields()
            else:
                self._type()
                if self._tokens[0] == ",":
                    self._tokens.pop(0)
                    self._type()
            self._tokens.pop(0)


# -- what only brokers and Spark know --------------------------------------------------------------


def check_deeply(pipeline: Pipeline, spark: "SparkSession") -> list[Problem]:
    problems = Problems()
    if isinstance(pipeline.source, TopicSource):
        _check_topics(pipeline.source, problems)
    for where, sink in (("sink", pipeline.sink), ("dead_letters", pipeline.dead_letters)):
        if isinstance(sink, TopicSpec) and sink.topic is not None:
            _check_written(where, sink, sink.topic, problems)
    check_settings(pipeline, spark, problems)
    _check_with_spark(pipeline, spark, problems)
    return sorted(problems.found)


def check_settings(pipeline: Pipeline, spark: "SparkSession", problems: Problems) -> None:
    """Spark takes any setting, also one that is misspelt."""
    from suwi.spark.spark_session import unknown_settings

    for name, meant in unknown_settings(spark, pipeline.spark).items():
        hint = f": did you mean {meant!r}?" if meant else ""
        problems.add(pipeline.spark[name].line, f"spark: Spark has no setting {name!r}{hint}")


def _resolve(texts: dict[str, Text]) -> dict[str, str]:
    disk = local_env().disk
    return {name: text.resolve(os.environ, disk) for name, text in texts.items()}


def _check_topics(source: TopicSource, problems: Problems) -> None:
    options = read_source_options(_resolve(source_options(source)), streaming=True)
    there = _topics_there("source", options.connection, source.servers.line, problems)
    if there is None:
        return
    for topic in source.topics:
        name = topic.resolve(os.environ, local_env().disk)
        if name not in there:
            problems.add(topic.line, f"source.topics: there is no topic {name!r}")
    if source.pattern is not None:
        pattern = re.compile(source.pattern.resolve(os.environ, local_env().disk))
        if not any(pattern.search(name) for name in there):
            problems.add(source.pattern.line, "source.pattern: no topic matches it")


def _check_written(where: str, sink: TopicSpec, topic: Text, problems: Problems) -> None:
    connection = read_connection(_resolve(topic_options(sink)))
    there = _topics_there(where, connection, sink.servers.line, problems)
    name = topic.resolve(os.environ, local_env().disk)
    if there is not None and name not in there:
        problems.add(topic.line, f"{where}.topic: there is no topic {name!r}")


def _topics_there(
    where: str, connection: Connection, line: int, problems: Problems
) -> set[str] | None:
    """None, and a problem, where the brokers cannot be asked."""
    try:
        session = Session(connection)
    except BadOption as error:  # The files of TLS.
        problems.add(line, f"{where}: {error}")
        return None
    try:
        return {topic.name for topic in session.run(session.cluster.topics())}
    except (BrokerError, OSError) as error:
        problems.add(line, f"{where}.servers: {reason(error)}")
        return None
    finally:
        session.close()


def _check_with_spark(pipeline: Pipeline, spark: "SparkSession", problems: Problems) -> None:
    """Let Spark analyse everything up to the sink, and the sink its columns; nothing is read."""
    try:
        good, _ = load_program(pipeline).build(spark)
    except Exception as error:
        line, text = _place(pipeline, error)
        problems.add(line, text)
        return
    try:
        _check_sink(pipeline.sink, good.schema)
    except (BadOption, DeltaSinkError) as error:
        problems.add(pipeline.sink.line, f"sink: {error}")


def _check_sink(sink: Sink, schema: "StructType") -> None:
    """As the query does when it starts. Raises `BadOption`, `DeltaSinkError`."""
    match sink:
        case TopicSpec():
            from suwi.spark import topic_writer

            topic_writer.stream_writer(_resolve(topic_options(sink)), schema, False)
        case DeltaSpec():
            from suwi.spark.delta.data_source import StreamWriter

            columns = {
                "keys": _resolve_all(sink.keys),
                "partitionBy": _resolve_all(sink.partition_by),
            }
            merge = {"mergeSchema": str(sink.merge_schema).lower()}
            given = {**_resolve(_delta_options(sink)), **columns, **merge}
            StreamWriter(read_table_options({k: v for k, v in given.items() if v}), schema, False)
        case _:
            for text in sink.partition_by:
                name = text.resolve(os.environ, local_env().disk)
                if name not in schema.names:
                    raise BadOption(f"there is no column {name!r} to partition by")


def _resolve_all(texts: tuple[Text, ...]) -> str:
    return ",".join(text.resolve(os.environ, local_env().disk) for text in texts)


def _place(pipeline: Pipeline, error: Exception) -> tuple[int, str]:
    from pyspark.errors import AnalysisException

    text = failure_of(error).text
    if isinstance(error, BadFunction) and pipeline.python is not None:
        return pipeline.python.line, f"python: {error}"
    if isinstance(error, AnalysisException) and pipeline.sql is not None:
        return pipeline.sql.line + _line_of_sql(error) - 1, f"sql: {text}"
    if pipeline.python is not None and not isinstance(error, ValueError):
        return pipeline.python.line, f"python: {type(error).__name__}: {text}"
    if pipeline.decode is None:
        return pipeline.source.line, f"source: {text}"
    return pipeline.decode.line, f"decode: {text}"


def _line_of_sql(error: Any) -> int:
    found = _LINE_OF_SQL.search(str(error))
    return int(found[1] or found[2]) if found else 1
