"""Whether the values of a pipeline can be used: references that resolve, options that exist.

The same code that reads options when a query starts judges them here; a problem is told with the
line of the option that it names.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from suwi.env import Disk
from suwi.spark.delta.errors import DeltaSinkError
from suwi.spark.delta.options import read_options
from suwi.spark.options import BadOption, read_source_options
from suwi.spark.pipeline.problems import Problems
from suwi.spark.pipeline.spec import DeltaSpec, Pipeline, Source, TopicSpec
from suwi.spark.pipeline.text import Text, Unresolved
from suwi.spark.sink_options import read_sink_options

Read = Callable[[Mapping[str, str]], object]

_DELTA_NAMES = {
    "order_by": "orderBy",
    "delete_when": "deleteWhen",
    "target_file_size": "targetFileSize",
    "compression": "compression",
}


def check_options(
    pipeline: Pipeline, problems: Problems, environ: Mapping[str, str], disk: Disk
) -> None:
    is_whole = True
    for text in dict.fromkeys(_texts(pipeline)):
        try:
            text.resolve(environ, disk)
        except Unresolved as error:
            problems.add(text.line, str(error))
            is_whole = False
    if not is_whole:
        return  # What the options are is not known.
    check = _Check(problems, lambda text: text.resolve(environ, disk))
    source = pipeline.source
    check.all_at_once(
        "source",
        source_options(source),
        source.line,
        lambda given: read_source_options(given, streaming=True),
    )
    for where, sink in (("sink", pipeline.sink), ("dead_letters", pipeline.dead_letters)):
        if isinstance(sink, TopicSpec):
            check.all_at_once(where, topic_options(sink), sink.line, read_sink_options)
        elif isinstance(sink, DeltaSpec):
            check.all_at_once(where, _delta_options(sink), sink.line, read_options)


class _Check:
    def __init__(self, problems: Problems, resolve: Callable[[Text], str]) -> None:
        self._problems = problems
        self._resolve = resolve

    def all_at_once(self, where: str, texts: Mapping[str, Text], line: int, read: Read) -> None:
        """Each reader stops at the first mistake: what it names is left out, and it reads again."""
        left = dict(texts)
        while True:
            try:
                read({name: self._resolve(text) for name, text in left.items()})
                return
            except (BadOption, DeltaSinkError) as error:
                named = _named(str(error), left)
                at = left[named].line if named else line
                self._problems.add(at, f"{where}: {error}")
                if named is None or not _go_on_without(named, left):
                    return


def _go_on_without(name: str, left: dict[str, Text]) -> bool:
    """Leave out what is wrong, so that the rest can be judged; whether there is such a way."""
    text = left.pop(name)
    match name.lower():
        case "kafka.bootstrap.servers":
            left[name] = Text(("127.0.0.1:9092",), text.line)
        case "subscribe" | "subscribepattern" | "assign" | "path":
            return False
        case lower if lower.startswith(_SECURITY):
            for other in [other for other in left if other.lower().startswith(_SECURITY)]:
                del left[other]  # They make sense only together.
    return True


_SECURITY = ("kafka.sasl.", "kafka.security.", "kafka.ssl.")


def _named(message: str, texts: Mapping[str, Text]) -> str | None:
    """The option that a message is about: the longest of the names that are in it."""
    found = [name for name in texts if name.lower() in message.lower()]
    return max(found, key=len, default=None)


def source_options(source: Source) -> dict[str, Text]:
    options = {"kafka.bootstrap.servers": source.servers}
    if source.topics:
        parts = [part for topic in source.topics for part in (",", *topic.parts)]
        options["subscribe"] = Text(tuple(parts[1:]), source.topics[0].line)
    if source.pattern is not None:
        options["subscribePattern"] = source.pattern
    if source.start is not None:
        options["startingOffsets"] = source.start
    return options | source.options


def topic_options(sink: TopicSpec) -> dict[str, Text]:
    named = {} if sink.topic is None else {"topic": sink.topic}
    return {"kafka.bootstrap.servers": sink.servers, **named, **sink.options}


def _delta_options(sink: DeltaSpec) -> dict[str, Text]:
    options = {"path": sink.path}
    options |= {_DELTA_NAMES[name]: text for name, text in sink.more.items()}
    if sink.keys:
        options["keys"] = Text(("key",), sink.line)
    return options | {f"storage.{name}": text for name, text in sink.storage_options.items()}


def _texts(value: Any) -> Iterator[Text]:
    """Every text of a pipeline."""
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
