"""YAML with line numbers: what a pipeline file says, and where.

`load` parses; `Fields` takes a mapping apart by name. Every method notes what is wrong and gives
something to go on with, so one look finds all mistakes.
Invariant: a key that nobody asked for is a mistake when the fields are closed.
"""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from suwi.spark.pipeline.text import Text, parse_text


class Problem(NamedTuple):
    line: int
    """From 1 on."""
    text: str


class BadPipeline(Exception):
    """The file cannot be used; `problems` says why, in the order of the lines."""

    def __init__(self, path: str, problems: Iterable[Problem]) -> None:
        self.path = path
        self.problems = sorted(set(problems))
        super().__init__("\n".join(f"{path}:{line}: {text}" for line, text in self.problems))


class Problems:
    """Collects what is wrong; whoever finds something goes on looking."""

    def __init__(self) -> None:
        self.found: list[Problem] = []

    def add(self, line: int, text: str) -> None:
        self.found.append(Problem(line, text))


def meant(name: str, allowed: Iterable[str]) -> str:
    """Which of the names is probably meant, and if none is near, all of them."""
    names = list(allowed)
    close = difflib.get_close_matches(name.lower(), names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"there are {', '.join(names)}"


_TAG = "tag:yaml.org,2002:"


@dataclass(frozen=True, slots=True)
class Scalar:
    raw: str
    kind: str
    """str, int, float, bool, null, timestamp"""
    line: int


@dataclass(frozen=True, slots=True)
class Sequence:
    items: "tuple[Node, ...]"
    line: int


@dataclass(frozen=True, slots=True)
class Table:
    entries: "dict[str, Node]"
    line: int
    key_lines: dict[str, int] = field(default_factory=dict)


Node: TypeAlias = Scalar | Sequence | Table


def load(text: str, problems: Problems) -> Table | None:
    """None, with a word, where the file is no mapping at all."""
    import yaml

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        about = " ".join(word for word in (error.context, error.problem) if word)
        problems.add(1 if mark is None else mark.line + 1, f"not YAML: {about}")
        return None
    except yaml.YAMLError as error:
        problems.add(1, f"not YAML: {str(error).splitlines()[0]}")
        return None
    if not isinstance(root, yaml.MappingNode):
        problems.add(1, "the file is empty" if root is None else "the file is no mapping")
        return None
    node = _node(root, problems, 0)
    assert isinstance(node, Table)
    return node


_DEPTH_MAX = 20


def _node(node: Any, problems: Problems, depth: int) -> Node:
    import yaml

    line = node.start_mark.line + 1
    if depth > _DEPTH_MAX:
        problems.add(line, "nested too deeply")
        return Scalar("", "null", line)
    if isinstance(node, yaml.ScalarNode):
        # Text in a block begins in the line after its `|`.
        first = line + 1 if node.style in ("|", ">") else line
        return Scalar(node.value, node.tag.removeprefix(_TAG), first)
    if isinstance(node, yaml.SequenceNode):
        return Sequence(tuple(_node(one, problems, depth + 1) for one in node.value), line)
    entries: dict[str, Node] = {}
    lines: dict[str, int] = {}
    for key, value in node.value:
        name, key_line = str(key.value), key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            problems.add(key_line, "a key must be a word")
        elif name in entries:
            problems.add(key_line, f"{name!r} is there twice; first in line {lines[name]}")
        else:
            entries[name] = _node(value, problems, depth + 1)
            lines[name] = key_line
    return Table(entries, line, lines)


class Fields:
    def __init__(self, node: Table, problems: Problems, where: str = "") -> None:
        self.line = node.line
        self._node = node
        self._problems = problems
        self._where = where
        self._asked: list[str] = []

    def has(self, name: str) -> bool:
        return name in self._node.entries

    def line_of(self, name: str) -> int:
        return self._node.key_lines.get(name, self.line)

    def wrong(self, name: str, problem: str) -> None:
        self._problems.add(self.line_of(name), f"{self._path(name)}: {problem}")

    def close(self) -> None:
        for name in self._node.entries:
            if name not in self._asked:
                known = [n for n in self._asked if n not in self._node.entries] or self._asked
                hint = meant(name, known if len(known) < len(self._asked) else self._asked)
                inside = f" in {self._where}" if self._where else ""
                self._problems.add(self.line_of(name), f"there is no {name!r}{inside}: {hint}")

    # -- values ----------------------------------------------------------------------------------

    def node(self, name: str) -> Node | None:
        """None where it is not there, or empty."""
        self._asked.append(name)
        node = self._node.entries.get(name)
        if isinstance(node, Scalar) and node.kind == "null":
            self.wrong(name, "nothing is given")
            return None
        return node

    def text(self, name: str, *, required: bool = False) -> Text | None:
        node = self.node(name)
        if node is None:
            if required and not self.has(name):
                inside = f" in {self._where}" if self._where else ""
                self._problems.add(self.line, f"{name!r} is missing{inside}")
            return None
        return self._text(name, node)

    def flag(self, name: str, default: bool = False) -> bool:
        node = self.node(name)
        if node is None:
            return default
        if isinstance(node, Scalar) and node.kind == "bool":
            return node.raw.lower() in ("true", "yes", "on")
        self.wrong(name, "true or false")
        return default

    def texts(self, name: str) -> tuple[Text, ...]:
        """One text or a list of them."""
        node = self.node(name)
        if node is None:
            return ()
        items = node.items if isinstance(node, Sequence) else (node,)
        if not items:
            self.wrong(name, "the list is empty")
        found = (self._text(name, item) for item in items)
        return tuple(text for text in found if text is not None)

    def mapping(self, name: str) -> dict[str, Text]:
        """Texts by name, whatever the names are."""
        node = self.node(name)
        if node is None:
            return {}
        if not isinstance(node, Table):
            self.wrong(name, "names and values are expected, as `name: value`")
            return {}
        found = {key: self._text(f"{name}.{key}", value) for key, value in node.entries.items()}
        return {key: text for key, text in found.items() if text is not None}

    def section(self, name: str) -> "Fields | None":
        node = self.node(name)
        if node is None:
            return None
        if isinstance(node, Table):
            return Fields(node, self._problems, self._path(name))
        self.wrong(name, "names and values are expected, as `name: value`")
        return None

    def _text(self, name: str, node: Node) -> Text | None:
        if not isinstance(node, Scalar):
            self._problems.add(node.line, f"{self._path(name)}: a single value is expected")
            return None
        if node.kind == "null":
            self._problems.add(node.line, f"{self._path(name)}: nothing is given")
            return None
        try:
            return parse_text(node.raw, node.line)
        except ValueError as error:
            self._problems.add(node.line, f"{self._path(name)}: {error}")
            return None

    def _path(self, name: str) -> str:
        return f"{self._where}.{name}" if self._where else name


def plain_table(node: Table) -> dict[str, Any]:
    """A mapping as Python has it, for what is itself a document: an Avro schema."""
    return {key: _plain(value) for key, value in node.entries.items()}


def _plain(node: Node) -> Any:
    if isinstance(node, Table):
        return plain_table(node)
    if isinstance(node, Sequence):
        return [_plain(item) for item in node.items]
    match node.kind:
        case "int":
            return int(node.raw)
        case "float":
            return float(node.raw)
        case "bool":
            return node.raw.lower() in ("true", "yes", "on")
        case "null":
            return None
    return node.raw
