"""From a pipeline file to a `Pipeline`, or to everything that is wrong with it.

`read_pipeline` is the entrance. It looks at the file alone: no Spark, no network, and the
environment and secret files only to see that what is named is there.
"""

import os.path
import re
from collections.abc import Mapping
from typing import Any

from suwi.env import Env, local_env
from suwi.spark.decoders.time_bounds import is_interval
from suwi.spark.pipeline.checks import Checker
from suwi.spark.pipeline.nodes import (
    BadPipeline,
    Fields,
    Problems,
    Scalar,
    Table,
    load,
    plain_table,
)
from suwi.spark.pipeline.spec import (
    VIEW,
    Decode,
    DeltaSpec,
    Function,
    ParquetSpec,
    Pipeline,
    RegistrySpec,
    Sink,
    Source,
    TableSource,
    TopicSource,
    TopicSpec,
    Watermark,
)
from suwi.spark.pipeline.text import Text, parse_text

KINDS = ("json", "string", "raw", "avro", "protobuf")
_SINKS = ("delta", "topic", "parquet")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")
_FUNCTION = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)")
_SINK_KEYS = """
    mode partition_by merge_schema keys order_by delete_when target_file_size compression
    compact_every_s storage_options servers options
"""
_SOMEWHERE = "127.0.0.1:9092"
_MODES = {"delta": ("append", "update", "complete"), "topic": ("append", "update")}
_NOTHING = Text((), 0)
_NO_DEAD_LETTERS = (
    "'dead_letters' is missing: the topic for records that cannot be decoded, or drop"
)


def read_pipeline(
    path: str, environ: Mapping[str, str] | None = None, env: Env | None = None
) -> Pipeline:
    """Raises `BadPipeline` and OSError."""
    env = env or local_env()
    problems = Problems()
    try:
        text = env.disk.read_bytes(path).decode()
    except UnicodeDecodeError:
        problems.add(1, "not text in UTF-8")
        raise BadPipeline(path, problems.found) from None
    root = load(text, problems)
    if root is None:
        raise BadPipeline(path, problems.found)
    checker = Checker(problems, os.environ if environ is None else environ, env)
    folder = os.path.dirname(os.path.abspath(path))
    pipeline = _Reader(Fields(root, problems), problems, checker, folder).pipeline()
    if problems.found or pipeline is None:
        raise BadPipeline(path, problems.found)
    return pipeline


class _Reader:
    def __init__(self, top: Fields, problems: Problems, checker: Checker, folder: str) -> None:
        self._top = top
        self._problems = problems
        self._checker = checker
        self._folder = folder

    def pipeline(self) -> Pipeline | None:
        """None where a part is missing without which the rest makes no sense."""
        top = self._top
        name = self._name()
        source = self._source()
        is_table = isinstance(source, TableSource)
        decode = None if is_table else self._decode()
        if is_table:
            for one in ("decode", "dead_letters"):
                top.node(one)
                if top.has(one):
                    top.wrong(one, "the rows of a table are columns already: leave it out")
        watermark = self._watermark()
        deduplicate = top.texts("deduplicate")
        if deduplicate and not top.has("watermark"):
            top.wrong("deduplicate", "needs a watermark, or it would remember for ever")
        tables = self._tables()
        sql, function = top.text("sql"), self._function()
        if top.has("sql") and top.has("python"):
            top.wrong("python", "either sql or python, not both")
        sink = self._sink(source)
        dead_letters = None if is_table else self._dead_letters(source, decode)
        checkpoint = top.text("checkpoint", required=True)
        trigger = self._trigger()
        group = self._group(name, source)
        spark = top.mapping("spark")
        top.close()
        parts = (source, decode, watermark, deduplicate, sink, dead_letters, checkpoint, group)
        self._check(source, decode, sql, sink, dead_letters, spark)
        self._checker.references((*parts, tables, sql, spark))
        if source is None or (decode is None and not is_table) or sink is None:
            return None
        return Pipeline(
            name,
            source,
            decode,
            sink,
            checkpoint or _NOTHING,
            watermark=watermark,
            deduplicate=deduplicate,
            tables=tables,
            sql=sql,
            python=function,
            dead_letters=dead_letters,
            trigger=trigger,
            group=group,
            spark=spark,
            folder=self._folder,
        )

    def _check(
        self,
        source: Source | None,
        decode: Decode | None,
        sql: Text | None,
        sink: Sink | None,
        dead_letters: TopicSpec | None,
        spark: dict[str, Text],
    ) -> None:
        """Each part by itself: a mistake in one does not hide those of the others."""
        if source is not None:
            self._checker.source(source)
        if decode is not None:
            self._checker.decode(decode)
        if sql is not None:
            self._checker.sql(sql)
        self._checker.sink("sink", sink)
        self._checker.sink("dead_letters", dead_letters)
        self._checker.spark(spark)

    def _name(self) -> str:
        found = self._top.text("name", required=True)
        if found is None:
            return "pipeline"
        name = self._plain(self._top, "name", found)
        if not _NAME.fullmatch(name):
            self._top.wrong("name", f"{name!r}: letters, digits, '.', '_' and '-' only")
        return name

    def _source(self) -> Source | None:
        fields = self._section("source")
        if fields is None:
            return None
        if fields.has("delta"):
            return self._table(fields)
        servers = fields.text("servers", required=True)
        topics, pattern = fields.texts("topics"), fields.text("pattern")
        options = fields.mapping("options")
        chosen = [name for name in ("topics", "pattern") if fields.has(name)]
        chosen += [name for name in options if name.lower() == "assign"]
        if len(chosen) != 1:
            which = (
                " and ".join(chosen) + " exclude each other" if chosen else "no topics are named"
            )
            self._problems.add(fields.line, f"source: {which}: give topics, pattern or delta")
        start = fields.text("from")
        fields.close()
        if servers is None:
            servers = Text((_SOMEWHERE,), fields.line)  # Said above; the rest is still looked at.
        return TopicSource(servers, topics, pattern, start, options, fields.line)

    def _table(self, fields: Fields) -> TableSource | None:
        path, start = fields.text("delta"), fields.text("from")
        options, storage = fields.mapping("options"), fields.mapping("storage_options")
        columns, where = fields.texts("columns"), fields.text("where")
        if columns:
            parts = [part for one in columns for part in (",", *one.parts)]
            options["columns"] = Text(tuple(parts[1:]), columns[0].line)
        if where is not None:
            options["where"] = where
        fields.close()
        return None if path is None else TableSource(path, start, options, storage, fields.line)

    def _decode(self) -> Decode | None:
        top = self._top
        if not top.has("decode"):
            top.node("decode")
            self._problems.add(1, f"'decode' is missing: {', '.join(KINDS)}")
            return None
        node = top.node("decode")
        if isinstance(node, Scalar):
            if node.raw in ("string", "raw"):
                return Decode(node.raw, line=node.line)
            hint = ": give its schema" if node.raw in KINDS else f": {', '.join(KINDS)}"
            top.wrong("decode", f"{node.raw!r}{hint}")
            return None
        fields = top.section("decode") if isinstance(node, Table) else None
        if fields is None:
            top.wrong("decode", f"say what the values are: {', '.join(KINDS)}")
            return None
        return self._decode_fields(fields)

    def _decode_fields(self, fields: Fields) -> Decode | None:
        chosen = [kind for kind in KINDS if fields.has(kind)]
        nodes = {kind: fields.node(kind) for kind in KINDS}
        descriptor, subject = fields.text("descriptor"), fields.text("subject")
        registry = self._registry(fields)
        header = fields.flag("confluent_header") if fields.has("confluent_header") else None
        if header is None:
            fields.node("confluent_header")
        nulls = self._word(fields, "nulls", ("bad", "keep", "drop"))
        lenient, future = fields.flag("lenient"), fields.text("max_future")
        if future is not None and not is_interval(future.shown):
            fields.wrong("max_future", f"{future.shown!r}: an interval, like '1 day'")
        fields.close()
        if len(chosen) != 1:
            which = (
                " and ".join(chosen) + " exclude each other" if chosen else "say what values are"
            )
            self._problems.add(fields.line, f"decode: {which}: one of {', '.join(KINDS)}")
            return None
        (kind,) = chosen
        schema = self._schema(fields, kind, nodes[kind])
        if schema is None and kind in ("avro", "protobuf") and (registry is None or not subject):
            fields.wrong(kind, "true takes the schema from a registry: give registry and subject")
        if kind == "protobuf" and schema is not None and descriptor is None and not subject:
            fields.wrong(kind, "give a descriptor, or a registry and subject that define it")
        if lenient and kind != "json":
            fields.wrong("lenient", "is for json")
        return Decode(
            kind,
            schema,
            descriptor,
            registry,
            subject,
            header,
            nulls or "bad",
            lenient,
            None if future is None else future.shown,
            fields.line,
        )

    def _schema(self, fields: Fields, kind: str, node: Any) -> Text | dict[str, Any] | None:
        if isinstance(node, Table) and kind == "avro":
            return plain_table(node)
        if not isinstance(node, Scalar):
            if node is not None:
                fields.wrong(kind, "a single value is expected")
            return None
        if kind in ("string", "raw"):
            if node.raw != "true":
                fields.wrong(kind, "true, or leave it out")
            return None
        if node.kind == "bool":
            if kind == "json" or node.raw != "true":
                fields.wrong(kind, "a schema is expected")
            return None
        try:
            return parse_text(node.raw, node.line)
        except ValueError as error:
            fields.wrong(kind, str(error))
            return None

    def _registry(self, fields: Fields) -> RegistrySpec | None:
        node = fields.node("registry")
        if isinstance(node, Scalar):
            url = fields.text("registry")
            return None if url is None else RegistrySpec(url)
        inside = fields.section("registry")
        if inside is None:
            return None
        url = inside.text("url", required=True)
        more = {name: inside.text(name) for name in ("user", "password", "token", "ca_file")}
        inside.close()
        given = {name: text for name, text in more.items() if text is not None}
        return None if url is None else RegistrySpec(url, given)

    def _watermark(self) -> Watermark | None:
        fields = self._top.section("watermark")
        if fields is None:
            return None
        column = fields.text("column", required=True)
        delay = fields.text("delay", required=True)
        if delay is not None and delay.is_plain and not is_interval(delay.shown):
            fields.wrong("delay", f"{delay.shown!r}: like '10 minutes'")
        fields.close()
        return None if column is None or delay is None else Watermark(column, delay)

    def _tables(self) -> dict[str, Text]:
        tables = self._top.mapping("tables")
        for name in tables:
            if not name.isidentifier() or name == VIEW:
                self._top.wrong("tables", f"{name!r}: a name for the SQL, and not {VIEW}")
        if tables and not self._top.has("sql"):
            self._top.wrong("tables", "are for the sql")
        return tables

    def _function(self) -> Function | None:
        text = self._top.text("python")
        if text is None:
            return None
        found = _FUNCTION.fullmatch(self._plain(self._top, "python", text))
        if found is None:
            self._top.wrong("python", f"{text.shown!r}: as module:function")
            return None
        return Function(found[1], found[2], text.line)

    def _sink(self, source: Source | None) -> Sink | None:
        fields = self._section("sink")
        if fields is None:
            return None
        chosen = [name for name in _SINKS if fields.has(name)]
        if len(chosen) != 1:
            for name in (*_SINKS, *_SINK_KEYS.split()):
                fields.node(name)
            which = " and ".join(chosen) + " exclude each other" if chosen else "say where to"
            self._problems.add(fields.line, f"sink: {which}: one of {', '.join(_SINKS)}")
            fields.close()
            return None
        match chosen[0]:
            case "delta":
                sink: Sink | None = self._delta(fields)
            case "topic":
                sink = self._topic(fields, source)
            case _:
                path = fields.text("parquet")
                by = fields.texts("partition_by")
                sink = None if path is None else ParquetSpec(path, by, fields.line)
        fields.close()
        return sink

    def _delta(self, fields: Fields) -> DeltaSpec | None:
        path = fields.text("delta")
        mode = self._word(fields, "mode", _MODES["delta"])
        by, merge = fields.texts("partition_by"), fields.flag("merge_schema")
        keys = fields.texts("keys")
        if mode == "update" and not keys:
            fields.wrong("mode", "update needs keys: rows that changed must be found in the table")
        names = ("order_by", "delete_when", "target_file_size", "compression")
        more = {name: fields.text(name) for name in names}
        every_s = self._seconds(fields, "compact_every_s")
        storage = fields.mapping("storage_options")
        if path is None:
            return None
        return DeltaSpec(
            path,
            mode or "append",
            by,
            merge,
            keys,
            {name: text for name, text in more.items() if text is not None},
            every_s,
            storage,
            fields.line,
        )

    def _topic(self, fields: Fields, source: Source | None) -> TopicSpec | None:
        topic = fields.text("topic")
        mode = self._word(fields, "mode", _MODES["topic"])
        servers, options = self._cluster(fields, source)
        if topic is not None and topic.shown == "*":
            topic = None
        return TopicSpec(topic, servers, mode or "append", options, fields.line)

    def _dead_letters(self, source: Source | None, decode: Decode | None) -> TopicSpec | None:
        top, is_raw = self._top, decode is not None and decode.kind == "raw"
        if not top.has("dead_letters"):
            top.node("dead_letters")
            if decode is not None and not is_raw:
                # Not by default: nothing shall be lost without a word.
                self._problems.add(decode.line, _NO_DEAD_LETTERS)
            return None
        if is_raw:
            top.wrong("dead_letters", "with raw every record is good")
        node = top.node("dead_letters")
        if isinstance(node, Scalar):
            if node.raw != "drop":
                top.wrong("dead_letters", f"{node.raw!r}: `topic: name`, or drop")
            return None
        fields = top.section("dead_letters")
        if fields is None:
            return None
        topic = fields.text("topic", required=True)
        servers, options = self._cluster(fields, source)
        fields.close()
        return None if topic is None else TopicSpec(topic, servers, "append", options, fields.line)

    def _cluster(self, fields: Fields, source: Source | None) -> tuple[Text, dict[str, Text]]:
        """Where to write to: the source's cluster, with its log-in, unless another is named."""
        servers, options = fields.text("servers"), fields.mapping("options")
        if servers is None and isinstance(source, TableSource):
            self._problems.add(fields.line, "'servers' is missing: the source is a table")
        if servers is None and isinstance(source, TopicSource):
            shared = ("kafka.security.", "kafka.sasl.", "kafka.ssl.")
            inherited = {
                name: text
                for name, text in source.options.items()
                if name.lower().startswith(shared)
            }
            return source.servers, {**inherited, **options}
        return servers or Text((_SOMEWHERE,), fields.line), options

    def _trigger(self) -> str | None:
        text = self._top.text("trigger")
        if text is None:
            return None
        interval = self._plain(self._top, "trigger", text)
        if not is_interval(interval):
            self._top.wrong("trigger", f"{interval!r}: an interval, like '10 seconds'")
        return interval

    def _group(self, name: str, source: Source | None) -> Text | None:
        """What the file says; else the source's `kafka.group.id`; else the pipeline's name."""
        node = self._top.node("group")
        if node is None:
            if not isinstance(source, TopicSource):
                return None
            given = {key.lower(): text for key, text in source.options.items()}
            return given.get("kafka.group.id", Text((name,), 0))
        if isinstance(node, Scalar) and node.kind == "bool":
            if node.raw != "false":
                self._top.wrong("group", "a name, or false to commit no progress")
            return None
        return self._top.text("group")

    # -- small things ----------------------------------------------------------------------------

    def _section(self, name: str) -> Fields | None:
        if not self._top.has(name):
            self._top.node(name)
            self._problems.add(1, f"{name!r} is missing")
            return None
        return self._top.section(name)

    def _word(self, fields: Fields, name: str, allowed: tuple[str, ...]) -> str | None:
        text = fields.text(name)
        if text is None:
            return None
        if text.shown not in allowed:
            fields.wrong(name, f"{text.shown!r}: {', '.join(allowed)}")
            return None
        return text.shown

    def _seconds(self, fields: Fields, name: str) -> int | None:
        text = fields.text(name)
        if text is None:
            return None
        if not text.shown.isdecimal() or int(text.shown) == 0:
            fields.wrong(name, f"{text.shown!r}: a number of seconds")
            return None
        return int(text.shown)

    def _plain(self, fields: Fields, name: str, text: Text) -> str:
        if not text.is_plain:
            fields.wrong(name, "cannot come from the environment or a file")
        return text.shown
