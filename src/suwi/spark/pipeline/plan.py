"""What pipelines do, in a few lines or as a picture, and what keeps them from doing it together.

`plan_lines` is for one file, `lineage_lines` and `lineage_svg` are for several, `in_order` sorts
them so that who writes a table or topic comes before who reads it; `check_checkpoint` and
`check_together` say what does not fit.
"""

import os.path
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from html import escape
from typing import NamedTuple, TypeAlias

from suwi.spark.delta.storage import local_path
from suwi.spark.manifest import ManifestLog
from suwi.spark.options import BadOption
from suwi.spark.output_batches import DEAD_LETTERS, local_folder, recorded_plan
from suwi.spark.pipeline.checkpoint import Checkpoint
from suwi.spark.pipeline.checks import options_of
from suwi.spark.pipeline.nodes import Problem
from suwi.spark.pipeline.spec import (
    IcebergSpec,
    Input,
    Pipeline,
    TableSource,
    TopicSpec,
    sink_text,
    source_text,
)
from suwi.spark.pipeline.text import Text
from suwi.spark.query_plan import difference, input_text
from suwi.spark.spark_session import is_of_session


def plan_lines(pipeline: Pipeline) -> Iterator[str]:
    """One query: what it reads, its steps, and what it writes when."""
    yield f"one query, with the checkpoint {pipeline.checkpoint.named}"
    yield from _lines(pipeline)
    yield "what needs state of its own is a pipeline of its own, which reads a table of this one"


def _lines(pipeline: Pipeline) -> Iterator[str]:
    for name, one in pipeline.inputs.items():
        yield f"  reads   {name}: {source_text(one.source)}{_steps(one)}"
    when = "for each batch" if pipeline.is_joint else "when the query starts"
    for name, path in pipeline.tables.items():
        yield f"  joins   {name}: {path.named}, read anew {when}"
    if pipeline.sql is not None:
        yield "  then    sql"
    elif pipeline.python is not None:
        yield f"  then    {pipeline.python.module}:{pipeline.python.name}"
    for name, rule in pipeline.expect.items():
        yield f"  expects {name}: {rule.condition.shown}, otherwise {rule.action}"
    for name, output in pipeline.outputs.items():
        when = "" if output.when is None else f", when {output.when.shown}"
        yield f"  writes  {name}: {sink_text(output.sink)}{when}"
    if pipeline.dead_letters is not None:
        dead = sink_text(pipeline.dead_letters)
        rules = [name for name, one in pipeline.expect.items() if one.action == "dead_letters"]
        more = f", what breaks {', '.join(rules)}" if rules else ""
        yield f"  writes  {DEAD_LETTERS}: {dead}, what cannot be decoded{more}"


def _steps(one: Input) -> str:
    said = "" if one.decode is None else f", {one.decode.kind}"
    if one.watermark is not None:
        said += f", watermark {one.watermark.column.shown} {one.watermark.delay.shown}"
    if one.deduplicate:
        said += f", each {', '.join(text.shown for text in one.deduplicate)} once"
    return said


def check_checkpoint(pipeline: Pipeline) -> list[Problem]:
    """What the file alone shows; stateful steps are compared by Spark. Nothing is written."""
    line = pipeline.checkpoint.line
    if not pipeline.is_joint:
        return []
    path = pipeline.checkpoint.value
    try:
        before = recorded_plan(path)
    except BadOption as error:
        return [Problem(line, f"checkpoint: {error}")]
    inputs = set()
    for one in pipeline.inputs.values():
        texts = options_of(one.source)
        inputs.add(input_text({name.lower(): text.value for name, text in texts.items()}))
    # The SQL decides their order: Spark's plan has it.
    had = sorted(before.get("inputs", list(inputs)))
    reasons = [difference({"inputs": had}, {"inputs": sorted(inputs)})]
    position = Checkpoint(path).position()
    if position is not None and not position.is_done:
        manifest = ManifestLog(local_folder(path)).find(position.batch)
        names = {*pipeline.outputs, *([DEAD_LETTERS] if pipeline.dead_letters else [])}
        gone = [] if manifest is None else [one for one in manifest.outputs if one not in names]
        reasons += [manifest.still_needs(one) for one in gone if manifest is not None]
    return [Problem(line, f"checkpoint: {reason}") for reason in reasons if reason is not None]


# -- several pipelines -----------------------------------------------------------------------------


class Circle(ValueError):
    """Pipelines feed each other: none of them can be the first."""


class Place(NamedTuple):
    """A table, a topic, or the topics of a pattern."""

    kind: str
    at: str
    """The same for the same place: a path, or servers and name."""
    text: str

    def feeds(self, read: "Place") -> bool:
        if read.kind != "pattern" or self.kind != "topic":
            return self[:2] == read[:2]
        (servers, name), (of, pattern) = self.at.split(" ", 1), read.at.split(" ", 1)
        return servers == of and re.search(pattern, name) is not None


def _table(path: Text) -> Place:
    local = local_path(path.value)
    return Place("table", path.value if local is None else os.path.abspath(local), path.named)


def _topic(kind: str, servers: Text, name: Text) -> Place:
    return Place(kind, f"{servers.value.replace(' ', '')} {name.value}", f"topic {name.named}")


def _reads(pipeline: Pipeline) -> Iterator[Place]:
    for source in (one.source for one in pipeline.inputs.values()):
        if isinstance(source, TableSource):
            yield _table(source.path)
            continue
        yield from (_topic("topic", source.servers, topic) for topic in source.topics)
        if source.pattern is not None:
            yield _topic("pattern", source.servers, source.pattern)
    yield from map(_table, pipeline.tables.values())


def _writes(pipeline: Pipeline) -> Iterator[Place]:
    for sink in pipeline.sinks.values():
        if isinstance(sink, IcebergSpec):
            yield Place("iceberg", sink.table.value, sink.table.named)
        elif not isinstance(sink, TopicSpec):
            yield _table(sink.path)
        elif sink.topic is not None:
            yield _topic("topic", sink.servers, sink.topic)


def _before(pipelines: Iterable[Pipeline]) -> dict[str, list[str]]:
    """By name, who writes what a pipeline reads."""
    written = {one.name: list(_writes(one)) for one in pipelines}
    return {
        one.name: [
            name
            for name, places in written.items()
            if name != one.name and any(w.feeds(r) for w in places for r in _reads(one))
        ]
        for one in pipelines
    }


def in_order(pipelines: Sequence[Pipeline]) -> list[Pipeline]:
    """Who writes comes before who reads. Raises `Circle`."""
    by_name = {one.name: one for one in pipelines}
    try:
        return [by_name[name] for name in TopologicalSorter(_before(pipelines)).static_order()]
    except CycleError as error:
        raise Circle(f"they read what each other writes: {' → '.join(error.args[1])}") from None


def check_together(pipelines: Sequence[Pipeline]) -> list[str]:
    """Why they cannot run in one session; nothing if they can."""
    found = []
    for what, used in (
        ("the name", [one.name for one in pipelines]),
        ("the checkpoint", [one.checkpoint.value for one in pipelines]),
    ):
        twice = [given for given, times in Counter(used).items() if times > 1]
        found += [f"{what} {given!r} is that of two pipelines" for given in twice]
    settings = {(name, text.value) for one in pipelines for name, text in one.spark.items()}
    differ = [name for name, times in Counter(name for name, _ in settings).items() if times > 1]
    found += [
        f"spark: {name!r} differs between the files, and a session has it once"
        for name in sorted(differ)
        if not is_of_session(name)
    ]
    try:
        if not found:
            in_order(pipelines)
    except Circle as error:
        found.append(str(error))
    return found


def lineage_lines(pipelines: Sequence[Pipeline]) -> Iterator[str]:
    before = _before(pipelines)
    for one in in_order(pipelines):
        yield one.name + (f", after {', '.join(before[one.name])}" if before[one.name] else "")
        yield from _lines(one)


_Node: TypeAlias = Place | str | tuple[Place | str, Place | str]
"""A table or topic, a pipeline, or an edge in a column that it passes."""


class _Box(NamedTuple):
    left: int
    top: int
    width: int


_GAP, _HEIGHT, _CHARACTER = 60, 44, 8
_STYLE = (
    "text{font:13px ui-monospace,monospace;fill:#222;text-anchor:middle}"
    "rect{fill:#fff;stroke:#666}rect.step{fill:#e3edf9;stroke:#1b5fa8}path{fill:none;stroke:#666}"
)


def lineage_svg(pipelines: Sequence[Pipeline]) -> str:
    """Tables and topics on white, pipelines on blue, from left to right."""
    written = [place for one in pipelines for place in _writes(one)]
    columns: dict[Place | str, int] = {}
    edges: dict[tuple[Place | str, Place | str], None] = {}
    for one in in_order(pipelines):
        sources = [w for r in _reads(one) for w in ([w for w in written if w.feeds(r)] or [r])]
        at = 1 + max((columns.setdefault(source, 0) for source in sources), default=0)
        columns[one.name] = at
        columns |= {place: max(at + 1, columns.get(place, 0)) for place in _writes(one)}
        edges |= dict.fromkeys((source, one.name) for source in sources)
        edges |= dict.fromkeys((one.name, place) for place in _writes(one))
    for source in columns.keys() - {end for _, end in edges}:
        columns[source] = min(columns[end] for start, end in edges if start == source) - 1
    nodes: list[list[_Node]] = [[] for _ in range(max(columns.values(), default=0) + 1)]
    for place, column in columns.items():
        nodes[column].append(place)
    for edge in edges:
        for column in range(columns[edge[0]] + 1, columns[edge[1]]):
            nodes[column].append(edge)  # It passes between the boxes of this column.
    boxes: dict[tuple[int, _Node], _Box] = {}
    left = height = _GAP // 3
    for column, of_column in enumerate(nodes):
        width = _CHARACTER * max(map(len, map(_label, of_column)), default=0) + 24
        for row, node in enumerate(of_column):
            boxes[column, node] = _Box(left, _GAP // 3 + row * _HEIGHT, width)
        left, height = left + width + _GAP, max(height, len(of_column) * _HEIGHT)
    drawn = []
    for edge in edges:
        first, last = columns[edge[0]], columns[edge[1]]
        between = [boxes[column, edge] for column in range(first + 1, last)]
        drawn.append(_path([boxes[first, edge[0]], *between, boxes[last, edge[1]]]))
    drawn += [_drawn(place, boxes[column, place]) for place, column in columns.items()]
    size = f'width="{left - _GAP * 2 // 3}" height="{height + _GAP // 3}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{_STYLE}</style>'
    return "\n".join([head, *drawn, "</svg>"])


def _label(node: _Node) -> str:
    if isinstance(node, Place):
        return node.text
    return node if isinstance(node, str) else ""


def _path(boxes: Sequence[_Box]) -> str:
    x, y = boxes[0].left + boxes[0].width, boxes[0].top + 15
    said = f"M{x} {y}"
    for box in boxes[1:]:
        half, to_y = (x + box.left) // 2, box.top + 15
        x, y, drawn = box.left + box.width, to_y, f"C{half} {y} {half} {to_y} {box.left} {to_y}"
        said += f"{drawn}H{x}" if box is not boxes[-1] else drawn
    return f'<path d="{said}"/>'


def _drawn(node: Place | str, box: _Box) -> str:
    x, y, width = box
    kind = ' class="step"' if isinstance(node, str) else ""
    text = f'<text x="{x + width // 2}" y="{y + 20}">{escape(_label(node))}</text>'
    return f'<rect{kind} x="{x}" y="{y}" width="{width}" height="30" rx="4"/>{text}'
