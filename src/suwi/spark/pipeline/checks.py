"""Checks of the parts of a file as they are read, and parts of it as options of a query.

`Checker` looks at references that resolve, options that exist, types and SQL that Spark can know.
The table of options that a query is started with judges them here, too, and a problem is told with
the line of the option. What only brokers know is in `brokers.py`, what Spark knows in
`deep_check.py`.
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final

from suwi.client.security import read_client_security
from suwi.env import Env
from suwi.model.config_kinds import BadConfig
from suwi.model.errors import InvalidTopic
from suwi.model.topic_names import check_topic_name
from suwi.spark.option_table import CATALOG, KAFKA, STORAGE, Use
from suwi.spark.options import BadOption, examine, read_connection
from suwi.spark.pipeline.nodes import Problems, meant, said
from suwi.spark.pipeline.spec import (
    VIEW,
    Decode,
    DeltaSpec,
    IcebergSpec,
    Input,
    Sink,
    Source,
    TableSource,
    TopicSource,
    TopicSpec,
)
from suwi.spark.pipeline.text import Text, Unresolved

# Values for required options whose references cannot be resolved.
_STAND_INS: Final = {
    "kafka.bootstrap.servers": "127.0.0.1:9092",
    "subscribe": "topic",
    "subscribePattern": "topic",
    "path": "/table",
    "table": "some.table",
    "warehouse": "/warehouse",
    "keys": "key",
}
_QUERY: Final = re.compile(
    r"(?:\s|--[^\n]*\n|/\*.*?\*/|\()*(SELECT|WITH|FROM|VALUES|TABLE)\b", re.IGNORECASE | re.DOTALL
)
_FROM: Final = re.compile(r"\bfrom\s+(\w+)")
_DECODED: Final = ["_key", "_topic", "_partition", "_offset", "_timestamp", "_headers"]
_JOIN: Final = re.compile(r"\bjoin\s+(\w+)")


class Checker:
    def __init__(self, problems: Problems, environ: Mapping[str, str], env: Env) -> None:
        self._problems = problems
        self._environ = environ
        self._env = env
        self._told: set[Text] = set()
        self._faults: set[tuple[int, str]] = set()

    def options(self, where: str, part: Source | Sink | None) -> None:
        """Of a source or a sink, as a query takes them."""
        if part is not None and type(part) in _USES:
            self._options(where, options_of(part), part.line, _USES[type(part)])
        if isinstance(part, TopicSource | TableSource | TopicSpec):
            named = set(map(str.lower, options_of(replace(part, options={}))))
            for name, text in part.options.items():
                if name.lower() in named:
                    key = _KEYS.get(name.lower(), name.lower())
                    problem = f"{name!r} is said twice: leave it to the key {key}"
                    self._problems.add(text.line, f"{where}.options: {problem}")
        if isinstance(part, TopicSource):
            self._topics(where, part.topics, "; for several by their names there is `pattern`")
        elif isinstance(part, TopicSpec) and part.topic is not None:
            self._topics(where, (part.topic,), "")

    def _topics(self, where: str, topics: Iterable[Text], hint: str) -> None:
        for topic in topics:
            name = self._resolved(topic)
            try:
                check_topic_name("topic" if name is None else name)
            except InvalidTopic as error:
                self._problems.add(topic.line, f"{where}: {error}{hint}")

    def input(
        self, prefix: str, source: Source | None, decode: Decode | None, steps: Mapping[str, Any]
    ) -> None:
        """Its schema, and the columns of its steps."""
        columns: list[str] = []
        if decode is not None and decode.kind == "json" and isinstance(decode.schema, Text):
            schema = self._resolved(decode.schema)
            problems, columns = ([], []) if schema is None else wrong_types(schema)
            for problem in problems:
                self._problems.add(decode.schema.line, f"{prefix}decode.json: {problem}")
        elif decode is not None and decode.kind in ("string", "raw"):
            columns = ["value"]
        elif isinstance(source, TableSource):
            columns = [text.shown for text in source.columns]
        if not columns:
            return  # Spark knows them.
        if decode is not None:
            columns += _DECODED
        known = {name.lower() for name in columns}
        watermark = steps.get("watermark")
        used = [("watermark", watermark.column)] if watermark is not None else []
        for key, text in [*used, *(("deduplicate", one) for one in steps["deduplicate"])]:
            name = self._resolved(text)
            if name and "`" not in name and name.split(".")[0].lower() not in known:
                hint = meant(name, columns)
                self._problems.add(text.line, f"{prefix}{key}: there is no column {name!r}: {hint}")

    def sql(self, sql: Text | None, inputs: Mapping[str, Input | None]) -> None:
        text = None if sql is None else self._resolved(sql)
        if sql is None or text is None:
            return
        if not _QUERY.match(text):
            first = text.split(maxsplit=1)[0] if text.split() else ""
            views = " or ".join(inputs)
            self._problems.add(sql.line, f"sql: a SELECT from {views} is expected, not {first!r}")
            return
        for name in inputs:
            if not re.search(rf"\b{re.escape(name)}\b", text, re.IGNORECASE):
                self._problems.add(sql.line, f"sql: does not use {name}: SELECT … FROM {name}")
        # Streams that stand directly beside a JOIN; what Spark makes of others it says itself.
        from_, joined = (set(one.findall(text.lower())) & inputs.keys() for one in (_FROM, _JOIN))
        for name in from_ | joined if joined and len(from_ | joined) > 1 else ():
            one = inputs[name]
            if one is not None and one.watermark is None:
                self._problems.add(
                    one.source.line,
                    f"inputs.{name}: a join of streams needs a watermark of each, or it would "
                    "remember for ever: watermark: {column: at, delay: 10 minutes}",
                )

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


def where_is(name: str) -> str:
    """How the file names an input."""
    return "source" if name == VIEW else f"inputs.{name}"


def resolved(texts: Mapping[str, Text]) -> dict[str, str]:
    """Raises `Unresolved`."""
    return {name: text.value for name, text in texts.items()}


_KEYS: Final = {
    "kafka.bootstrap.servers": "servers",
    "subscribe": "topics",
    "startingoffsets": "from",
    "startingversion": "from",
}
_PREFIXES: Final = {"storage_options": STORAGE, "catalog": CATALOG}
_USES: Final = {
    TopicSource: Use.STREAM,
    TableSource: Use.TABLE_STREAM,
    TopicSpec: Use.WRITE,
    DeltaSpec: Use.TABLE_WRITE,
    IcebergSpec: Use.ICEBERG_WRITE,
}


def options_of(part: Source | Sink) -> dict[str, Text]:
    """What the file says of a source or a sink, as options of its format."""
    match part:
        case TopicSource(servers, topics, pattern, start, options):
            named = {
                "kafka.bootstrap.servers": servers,
                "subscribe": Text.joined(topics) if topics else None,
                "subscribePattern": pattern,
                "startingOffsets": start,
                **options,
            }
            given = {name: text for name, text in named.items() if text is not None}
            if {"subscribe", "subscribepattern", "assign"}.isdisjoint(map(str.lower, given)):
                given["subscribe"] = Text(("topic",), part.line)  # Said by whoever read the file.
            return given
        case TableSource(path, start):
            begin = {} if start is None else {"startingVersion": start}
            return {"path": path, **begin, **part.all_options, **_prefixed(part)}
        case TopicSpec(topic, servers):
            to = {} if topic is None else {"topic": topic}
            return {"kafka.bootstrap.servers": servers, **to, **part.options}
    given = {}
    for name, value in said(part, "mode", "compact_every_s", *_PREFIXES).items():
        first, *more = name.split("_")
        text = Text(("true",), part.line) if value is True else value
        key = "".join([first, *map(str.title, more)])
        given[key] = Text.joined(text) if isinstance(text, tuple) else text
    return given | _prefixed(part)


def _prefixed(part: Source | Sink) -> dict[str, Text]:
    return {
        f"{prefix}{name}": text
        for key, prefix in _PREFIXES.items()
        for name, text in getattr(part, key, {}).items()
    }


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


def wrong_types(schema: str) -> tuple[list[str], list[str]]:
    """Types in `name TYPE, …` that Spark does not have, missing commas, names that occur twice; and
    the names, none if the schema is not understood.

    What else is wrong Spark itself says.
    """
    if schema.count("<") != schema.count(">") or schema.count("(") != schema.count(")"):
        return ["brackets do not match: every < needs a >, every ( a )"], []
    types = _Types(_TOKEN.findall(schema))
    try:
        names = types.fields()
    except IndexError:
        return types.wrong, []  # It ends too early, and is not understood.
    return types.wrong, [] if types.wrong else names


class _Types:
    """Walks through a schema as Spark writes one."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self.wrong: list[str] = []

    def fields(self) -> list[str]:
        """The names, up to the end or to the `>` of a struct."""
        names: list[str] = []
        while self._tokens and self._tokens[0] != ">":
            name = self._tokens.pop(0)
            if name.lower() in map(str.lower, names):
                self.wrong.append(f"{name} is there twice")
            names.append(name.strip("`"))
            if self._tokens[:1] == [":"]:
                self._tokens.pop(0)
            if self._tokens[:1] in ([], [","], [">"]):
                self.wrong.append(f"{name} has no type, like {name} STRING")
                self._tokens[:1] = self._tokens[:1] if self._tokens[:1] == [">"] else []
                continue
            self._type()
            for more in ("not", "null", "comment", "'"):
                if self._tokens and self._tokens[0].lower().startswith(more):
                    self._tokens.pop(0)
            if self._tokens and self._tokens[0] not in (",", ">"):
                self.wrong.append(f"there is no comma after {name}, before {self._tokens[0]}")
            elif self._tokens and self._tokens[0] == ",":
                self._tokens.pop(0)
        return names

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
