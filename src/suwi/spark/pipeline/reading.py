"""From a pipeline file to a `Pipeline`, or to everything that is wrong with it.

`read_pipeline` is the entrance. It looks at the file alone: no Spark, no network, and the
environment and secret files only to see that what is named is there. What each key may say stands
in `spec.py`; here is what keys say together.
"""

import os.path
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import yaml
from yaml import MappingNode, Node, ScalarNode

from suwi.env import Env, local_env
from suwi.spark.output_batches import DEAD_LETTERS
from suwi.spark.pipeline.checks import Checker
from suwi.spark.pipeline.nodes import (
    BadPipeline,
    Fields,
    Problems,
    is_kind,
    key_names,
    line_of,
    load,
    part,
)
from suwi.spark.pipeline.spec import (
    LETTERS,
    NAME,
    SINKS,
    VIEW,
    Decode,
    DeltaSpec,
    IcebergSpec,
    Input,
    OutputSpec,
    ParquetSpec,
    Pipeline,
    Rule,
    Sink,
    Source,
    TableSource,
    TopicSource,
    TopicSpec,
    sink_text,
)
from suwi.spark.pipeline.text import Text, parse_text

KINDS = ("json", "string", "raw", "avro", "protobuf")
_SOMEWHERE = "127.0.0.1:9092"
_LOG_IN = ("kafka.security.", "kafka.sasl.", "kafka.ssl.")
_NO_DECODE = "the rows of a table are columns already: leave it out"
_NO_DEAD_LETTERS = (
    "'dead_letters' is missing: the topic for records that cannot be decoded, or drop"
)
_SENT_AGAIN = "with mode complete every batch would send its rows again: drop or fail"


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
    if problems.found:
        raise BadPipeline(path, problems.found)
    return pipeline


class _Reader:
    def __init__(self, top: Fields, problems: Problems, checker: Checker, folder: str) -> None:
        self._top = top
        self._problems = problems
        self._checker = checker
        self._folder = folder
        self._is_joint = top.has("outputs")

    def pipeline(self) -> Pipeline:
        """Parts of it are missing if something is wrong."""
        top, checker = self._top, self._checker
        said = top.values(Pipeline)
        inputs = self._inputs()
        sources = [one.source for one in inputs.values() if one is not None]
        # Topics are written to the cluster of the first topic that is read.
        sources.sort(key=lambda one: isinstance(one, TableSource))
        source = sources[0] if sources else None
        outputs = self._outputs(source, said.get("mode", "append"))
        rules = self._expect()
        dead_letters = self._dead_letters(inputs, source, rules)
        group = self._group(said.get("name", "pipeline"), source)
        top.close()
        # Each part separately, so that a mistake in one does not hide another.
        checker.sql(said.get("sql"), inputs)
        for name, output in outputs.items():
            if output is not None:
                checker.options(f"outputs.{name}" if self._is_joint else "sink", output.sink)
        checker.options("dead_letters", dead_letters)
        checker.spark(said.get("spark", {}))
        checker.references((said, outputs, dead_letters, group, rules))
        pipeline = Pipeline(
            **{"name": "", "checkpoint": Text((), 0), **said},
            inputs={name: one for name, one in inputs.items() if one is not None},
            outputs={name: one for name, one in outputs.items() if one is not None},
            is_joint=self._is_joint,
            expect=rules,
            dead_letters=dead_letters,
            group=group,
            folder=self._folder,
        )
        self._check_together(pipeline)
        return pipeline

    def _check_together(self, pipeline: Pipeline) -> None:
        top = self._top
        if len(pipeline.inputs) > 1 and not top.has("sql") and not top.has("python"):
            top.wrong("inputs", "give sql or python: what becomes of several inputs")
        if top.has("sql") and top.has("python"):
            top.wrong("python", "either sql or python, not both")
        for name, path in pipeline.tables.items():
            if not name.isidentifier() or name in pipeline.inputs:
                taken = " or ".join(pipeline.inputs)
                self._problems.add(
                    path.line, f"tables: {name!r}: a name for the SQL, and not {taken}"
                )
        if pipeline.tables and not top.has("sql"):
            top.wrong("tables", "are for the sql")
        sinks = list(pipeline.sinks.values())
        if pipeline.expect and any(isinstance(sink, ParquetSpec) for sink in sinks):
            top.wrong("expect", "is for sinks of delta, iceberg and topic")
        if pipeline.create_topics and not any(isinstance(sink, TopicSpec) for sink in sinks):
            top.wrong("create_topics", "is for a sink or dead_letters with a topic")
        resends = any(isinstance(sink, DeltaSpec) and sink.mode == "complete" for sink in sinks)
        for name, rule in pipeline.expect.items():
            if rule.action == "dead_letters" and (pipeline.dead_letters is None or resends):
                why = _SENT_AGAIN if resends else "there is no topic for dead_letters"
                self._problems.add(rule.condition.line, f"expect.{name}: {why}")
        self._check_places(pipeline)

    def _check_places(self, pipeline: Pipeline) -> None:
        """What is written is neither read nor the checkpoint, and is written by one output."""
        itself = "also read: the pipeline would feed itself"
        taken: dict[object, str] = {_place(pipeline.checkpoint): "the checkpoint"}
        prefixes: dict[tuple[str, str], str] = {}
        for one in pipeline.inputs.values():
            if isinstance(one.source, TableSource):
                taken[_place(one.source.path)] = itself
            else:
                cluster = one.source.servers.shown
                taken |= {(cluster, topic.shown): itself for topic in one.source.topics}
        for where, sink in pipeline.sinks.items():
            place: object = None
            match sink:
                case DeltaSpec() | ParquetSpec():
                    place = _place(sink.path)
                case IcebergSpec(table, warehouse, catalog):
                    texts = (table, warehouse or table, *catalog.values())
                    place = tuple(one.shown for one in texts)
                case TopicSpec(topic, servers, _, options):
                    self._check_prefix(where, servers, options, prefixes)
                    place = None if topic is None else (servers.shown, topic.shown)
            if place in taken:
                self._problems.add(sink.line, f"{where}: {sink_text(sink)!r} is {taken[place]}")
            elif place is not None and where.startswith("outputs"):
                taken[place] = f"also that of {where}: rows for both conditions need one output"

    def _check_prefix(
        self,
        where: str,
        servers: Text,
        options: Mapping[str, Text],
        taken: dict[tuple[str, str], str],
    ) -> None:
        for name, text in options.items():
            if name.lower() == "transactionalidprefix":
                first = taken.setdefault((servers.shown, text.shown), where)
                if first != where:
                    problem = f"{text.shown!r} is that of {first}: each topic needs its own"
                    self._problems.add(text.line, f"{where}: transactionalIdPrefix {problem}")

    # -- inputs ----------------------------------------------------------------------------------

    def _inputs(self) -> dict[str, Input | None]:
        """By name; None: it cannot be used."""
        top = self._top
        if not top.has("inputs"):
            top.node("inputs")
            return {VIEW: self._input(self._section("source"), top, "source")}
        if not self._is_joint:
            top.wrong("inputs", "go with outputs")
        for name in ("source", "decode", "watermark", "deduplicate"):
            top.node(name)
            if top.has(name):
                both = "either source or inputs, not both"
                top.wrong(name, both if name == "source" else "each of the inputs has its own")
        found: dict[str, Input | None] = {}
        for name, fields in self._named("inputs", str.isidentifier, "a name for the SQL"):
            found[name] = self._input(fields, fields, f"inputs.{name}") if fields else None
        return found

    def _input(self, fields: Fields | None, around: Fields, where: str) -> Input | None:
        """`around` has what is said about the records: the file, or the input itself."""
        source = None if fields is None else self._source(fields, where)
        decode = None
        if fields is not None and fields.has("delta"):
            if around.node("decode") is not None:
                around.wrong("decode", _NO_DECODE)
        else:
            decode = self._decode(around, source)
        steps = around.values(Input)
        if steps["deduplicate"] and not around.has("watermark"):
            around.wrong("deduplicate", "needs a watermark, or it would remember for ever")
        if fields is not None:
            fields.close()
        self._checker.options(where, source)
        prefix = "" if around is self._top else f"{where}."
        self._checker.input(prefix, source, decode, steps)
        self._checker.references((source, decode, steps))
        if source is None or (decode is None and isinstance(source, TopicSource)):
            return None
        return Input(source, decode, **steps)

    def _source(self, fields: Fields, where: str) -> Source | None:
        if fields.has("delta"):
            return fields.read(TableSource, line=fields.line)
        said = fields.values(TopicSource)
        chosen = [name for name in ("topics", "pattern") if fields.has(name)]
        chosen += [name for name in said["options"] if name.lower() == "assign"]
        if len(chosen) != 1:
            which = _not_one(chosen, "no topics are named")
            self._problems.add(fields.line, f"{where}: {which}: give topics, pattern or delta")
            if said["topics"]:
                said.pop("pattern", None)  # That is said.
        said.setdefault("servers", Text((_SOMEWHERE,), fields.line))  # The rest is looked at.
        return TopicSource(**said, line=fields.line)

    def _decode(self, top: Fields, source: Source | None) -> Decode | None:
        listed = ", ".join(KINDS)
        node = top.node("decode")
        if node is None:
            if not top.has("decode"):
                line = 1 if top is self._top else top.line
                self._problems.add(line, f"'decode' is missing: {listed}")
        elif isinstance(node, MappingNode):
            fields = top.section("decode")
            assert fields is not None
            return self._decode_fields(fields, source)
        elif not isinstance(node, ScalarNode):
            top.wrong("decode", f"say what the values are: {listed}")
        elif node.value in ("string", "raw"):
            return Decode(str(node.value), line=line_of(node))
        else:
            hint = "give its schema" if node.value in KINDS else listed
            top.wrong("decode", f"{node.value!r}: {hint}")
        return None

    def _decode_fields(self, fields: Fields, source: Source | None) -> Decode | None:
        chosen = [kind for kind in KINDS if fields.has(kind)]
        nodes = {kind: fields.node(kind) for kind in KINDS}
        said = fields.values(Decode)
        fields.close()
        if len(chosen) != 1:
            which = _not_one(chosen, "say what values are")
            self._problems.add(fields.line, f"decode: {which}: one of {', '.join(KINDS)}")
            return None
        (kind,) = chosen
        schema = self._schema(fields, kind, nodes[kind])
        has_descriptor, has_registry = "descriptor" in said, "registry" in said
        is_from_registry = schema is None or (kind == "protobuf" and not has_descriptor)
        topics = source.topics if isinstance(source, TopicSource) else ()
        if has_registry and is_from_registry and len(topics) == 1:
            # Producers name it so, unless they are configured otherwise.
            said.setdefault("subject", topics[0].plus("-value"))
        has_subject = "subject" in said
        if schema is None and kind in ("avro", "protobuf") and not (has_registry and has_subject):
            fields.wrong(kind, "true takes the schema from a registry: give registry and subject")
        if kind == "protobuf" and schema is not None and not has_descriptor and not has_subject:
            fields.wrong(kind, "give a descriptor, or a registry and subject that define it")
        if said.get("lenient") and kind != "json":
            fields.wrong("lenient", "is for json")
        return Decode(kind, schema, **said, line=fields.line)

    def _schema(self, fields: Fields, kind: str, node: Node | None) -> Any:
        """Text, or an Avro schema as Python has it; None: there is none, or it is wrong."""
        if isinstance(node, MappingNode) and kind == "avro":
            return yaml.SafeLoader("").construct_document(node)
        if node is None:
            return None
        if not isinstance(node, ScalarNode):
            fields.wrong(kind, "a single value is expected")
        elif kind in ("string", "raw"):
            if node.value != "true":
                fields.wrong(kind, "true, or leave it out")
        elif is_kind(node, "bool"):
            if kind == "json" or node.value != "true":
                fields.wrong(kind, "a schema is expected")
        else:
            try:
                return parse_text(str(node.value), line_of(node))
            except ValueError as error:
                fields.wrong(kind, str(error))
        return None

    # -- outputs ---------------------------------------------------------------------------------

    def _outputs(self, source: Source | None, mode: str) -> dict[str, OutputSpec | None]:
        """By name; None: it cannot be used."""
        top = self._top
        if not self._is_joint:
            top.node("outputs")
            if top.has("mode"):
                top.wrong("mode", "is for outputs; of a sink it is sink.mode")
            fields = self._section("sink")
            sink = None if fields is None else self._sink(fields, source, "sink")
            return {"sink": None if sink is None else OutputSpec(sink)}
        if top.node("sink") is not None:
            top.wrong("sink", "either sink or outputs, not both")
        found: dict[str, OutputSpec | None] = {}
        hint = f"a name of letters, digits, '.', '_', '-', not {DEAD_LETTERS}"
        for name, fields in self._named(
            "outputs", lambda name: NAME.fullmatch(name) and name != DEAD_LETTERS, hint
        ):
            found[name] = self._output(fields, source, name, mode) if fields else None
        return found

    def _output(
        self, fields: Fields, source: Source | None, name: str, mode: str
    ) -> OutputSpec | None:
        which = fields.values(OutputSpec)
        for one, hint in (
            ("parquet", "cannot be committed together with others: use delta"),
            ("mode", "stands beside outputs"),
            ("compact_every_s", "is for a sink"),
        ):
            if fields.has(one):
                fields.wrong(one, hint)
        sink = self._sink(fields, source, f"outputs.{name}")
        if isinstance(sink, IcebergSpec) and mode == "update":
            fields.wrong("iceberg", "mode update needs delta: Iceberg tables are only appended to")
        if isinstance(sink, DeltaSpec) and mode == "update" and not sink.keys:
            fields.wrong("delta", "mode update needs keys: rows that changed must be found")
        return None if sink is None else OutputSpec(sink, **which)

    def _sink(self, fields: Fields, source: Source | None, where: str) -> Sink | None:
        chosen = [name for name in SINKS if fields.has(name)]
        sink: Sink | None = None
        if len(chosen) != 1:
            for name in (*SINKS, *(one for form in SINKS.values() for one in key_names(form))):
                fields.node(name)
            kinds = [name for name in SINKS if name != "parquet" or where == "sink"]
            which = _not_one(chosen, "say where to")
            self._problems.add(fields.line, f"{where}: {which}: one of {', '.join(kinds)}")
        elif chosen == ["topic"]:
            sink = self._topic(fields, source)
        else:
            sink = fields.read(SINKS[chosen[0]], line=fields.line)
        fields.close()
        if isinstance(sink, DeltaSpec) and sink.mode == "update" and not sink.keys:
            fields.wrong("mode", "update needs keys: rows that changed must be found in the table")
        if isinstance(sink, DeltaSpec) and sink.mode == "complete" and sink.keys:
            fields.wrong("keys", "mode complete replaces all rows: leave them out, or use update")
        return sink

    def _topic(self, fields: Fields, source: Source | None) -> TopicSpec:
        """In the source's cluster, with its log-in, unless another is named."""
        said = fields.values(TopicSpec)
        if "topic" in said and said["topic"].shown == "*":
            del said["topic"]
        if "servers" not in said:
            said["servers"] = Text((_SOMEWHERE,), fields.line)
            if isinstance(source, TableSource):
                self._problems.add(fields.line, "'servers' is missing: the source is a table")
            elif isinstance(source, TopicSource):
                log_in = {n: t for n, t in source.options.items() if n.lower().startswith(_LOG_IN)}
                said |= {"servers": source.servers, "options": {**log_in, **said["options"]}}
        return TopicSpec(**said, line=fields.line)

    def _dead_letters(
        self, inputs: Mapping[str, Input | None], source: Source | None, rules: Mapping[str, Rule]
    ) -> TopicSpec | None:
        top, given = self._top, [one for one in inputs.values() if one is not None]
        node, bad = top.node("dead_letters"), [one.decode for one in given if one.may_be_bad]
        if not top.has("dead_letters"):
            if bad and bad[0] is not None:
                # There is no default: records are dropped only if the file says so.
                self._problems.add(bad[0].line, _NO_DEAD_LETTERS)
            return None
        is_used = bad or self._is_joint or any(r.action == "dead_letters" for r in rules.values())
        if given and not is_used:
            is_raw = any(one.decode is not None for one in given)
            top.wrong("dead_letters", "with raw every record is good" if is_raw else _NO_DECODE)
            return None
        if isinstance(node, ScalarNode):
            if node.value != "drop":
                top.wrong("dead_letters", f"{node.value!r}: `topic: name`, or drop")
            return None
        fields = top.section("dead_letters")
        if fields is None:
            return None
        found = self._topic(fields, source)
        fields.close()
        if fields.has("mode"):
            fields.wrong("mode", "is for a sink")
        if found.topic is None:
            fields.missing("topic")
        return found

    def _expect(self) -> dict[str, Rule]:
        section, rules = self._top.section("expect"), {}
        for name in [] if section is None else section.names:
            assert section is not None
            if not NAME.fullmatch(name):
                section.wrong(name, LETTERS)
            if isinstance(section.node(name), ScalarNode):
                condition = section.text(name)
                rule = None if condition is None else Rule(condition)
            else:
                rule = part(Rule)(section, name)
            if rule is not None:
                rules[name] = rule
        return rules

    def _group(self, name: str, source: Source | None) -> Text | None:
        """What the file says; else the source's `kafka.group.id`; else the pipeline's name."""
        node = self._top.node("group")
        if node is None:
            if not isinstance(source, TopicSource):
                return None
            given = {key.lower(): text for key, text in source.options.items()}
            return given.get("kafka.group.id", Text((name,), 0))
        if is_kind(node, "bool"):
            if node.value != "false":
                self._top.wrong("group", "a name, or false to commit no progress")
            return None
        return self._top.text("group")

    # -- small things ----------------------------------------------------------------------------

    def _section(self, name: str) -> Fields | None:
        if self._top.has(name):
            return self._top.section(name)
        self._top.node(name)
        self._problems.add(1, f"{name!r} is missing")
        return None

    def _named(
        self, what: str, is_name: Callable[[str], Any], hint: str
    ) -> Iterator[tuple[str, Fields | None]]:
        """The parts of a section, which may not be empty."""
        section = self._top.section(what)
        if section is not None and not section.names:
            self._top.wrong(what, "give at least one, by its name")
        for name in [] if section is None else section.names:
            assert section is not None
            if not is_name(name):
                section.wrong(name, hint)
            yield name, section.section(name)


def _place(path: Text) -> str:
    return path.shown.rstrip("/") or "/"


def _not_one(chosen: list[str], if_none: str) -> str:
    return " and ".join(chosen) + " exclude each other" if chosen else if_none
