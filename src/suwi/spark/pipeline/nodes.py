"""YAML with line numbers: what a pipeline file says, and where.

`load` parses; `Fields` takes a mapping apart, by name or by the keys that a dataclass declares with
`key`. Every method notes what is wrong and gives something to go on with, so one look finds all
mistakes.
Invariant: a key that nobody asked for is a mistake when the fields are closed.
"""

import difflib
from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field, field, fields
from typing import Any, NamedTuple, TypeAlias, TypeVar

import yaml
from yaml import MappingNode, Node, ScalarNode, SequenceNode

from suwi.spark.pipeline.text import Text, parse_text

_DEPTH_MAX = 20
_MAPPING = "names and values are expected, as `name: value`"
_NOTHING = "nothing is given: give a value, or leave it out"
_HINTS = {
    "mapping values are not allowed": ": text that contains ': ' must be in quotes; keys of one "
    "section begin in one column",
    "\\t": ": indent with spaces, not with tabs",
    "quoted scalar found unexpected end": ": the quote is not closed",
    "expected <block end>": ": keys of one section begin in one column",
}
_T = TypeVar("_T")


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
    """Collects problems, so that one run finds all of them."""

    def __init__(self) -> None:
        self.found: list[Problem] = []

    def add(self, line: int, text: str) -> None:
        self.found.append(Problem(line, text))


def meant(name: str, allowed: Iterable[str]) -> str:
    """The most similar name, or all names if none is similar."""
    names = list(allowed)
    close = difflib.get_close_matches(name.lower(), names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"there are {', '.join(names)}"


def load(text: str, problems: Problems) -> MappingNode | None:
    """The file as a mapping; None, and a problem, if it is none."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        about = " ".join(word for word in (error.context, error.problem) if word)
        if "end of stream" in about:
            mark = error.context_mark or mark  # Where it began, not the end of the file.
        hint = next((hint for words, hint in _HINTS.items() if words in about), "")
        problems.add(1 if mark is None else mark.line + 1, f"not YAML: {about}{hint}")
        return None
    except yaml.YAMLError as error:
        problems.add(1, f"not YAML: {str(error).splitlines()[0]}")
        return None
    if not isinstance(root, MappingNode):
        problems.add(1, "the file is empty" if root is None else "the file is no mapping")
        return None
    _check(root, problems, 0)
    return root


def _check(node: Node, problems: Problems, depth: int) -> None:
    """Keys are words, each once; what is inside of what has an end."""
    if depth > _DEPTH_MAX:
        problems.add(line_of(node), "nested too deeply")
        node.value = []
    lines: dict[str, int] = {}
    for entry in [] if isinstance(node, ScalarNode) else node.value:
        key_node, value = entry if isinstance(node, MappingNode) else (None, entry)
        _check(value, problems, depth + 1)
        if key_node is None:
            continue
        line, name = line_of(key_node), str(key_node.value)
        if not isinstance(key_node, ScalarNode):
            problems.add(line, "a key must be a word")
        elif name in lines:
            problems.add(line, f"{name!r} is there twice; first in line {lines[name]}")
        lines.setdefault(name, line)


def line_of(node: Node) -> int:
    """Text in a block begins in the line after its `|`."""
    is_block = isinstance(node, ScalarNode) and node.style in ("|", ">")
    return int(node.start_mark.line) + 1 + is_block


def is_kind(node: Node | None, kind: str) -> bool:
    """Whether it is a single value of this kind: str, int, float, bool, null."""
    return isinstance(node, ScalarNode) and node.tag == f"tag:yaml.org,2002:{kind}"


class Fields:
    def __init__(self, node: MappingNode, problems: Problems, where: str = "") -> None:
        self.line = line_of(node)
        self._nodes = {str(name.value): value for name, value in reversed(node.value)}
        self._lines = {str(name.value): line_of(name) for name, _ in reversed(node.value)}
        self._problems = problems
        self._where = where
        self._asked: list[str] = []

    def has(self, name: str) -> bool:
        return name in self._nodes

    @property
    def names(self) -> list[str]:
        return list(reversed(self._nodes))

    def line_at(self, name: str) -> int:
        return self._lines.get(name, self.line)

    def wrong(self, name: str, problem: str) -> None:
        self._problems.add(self.line_at(name), f"{self._path(name)}: {problem}")

    def missing(self, name: str) -> None:
        self._problems.add(self.line, f"{name!r} is missing{self._inside}")

    def close(self) -> None:
        asked = list(dict.fromkeys(self._asked))
        known = [name for name in asked if name not in self._nodes] or asked
        for name, line in self._lines.items():
            if name not in asked:
                hint = meant(name, known)
                self._problems.add(line, f"there is no {name!r}{self._inside}: {hint}")

    # -- all that a class declares ---------------------------------------------------------------

    def values(self, form: type) -> dict[str, Any]:
        """What the keys of a dataclass say, by the names of its fields."""
        found = {}
        for one in _declared(form):
            name = one.metadata["name"] or one.name
            value = one.metadata["read"](self, name)
            if value is not None:
                found[one.name] = value
            elif _is_required(one) and not self.has(name):
                self.missing(name)
        return found

    def read(self, form: type[_T], **more: Any) -> _T | None:
        """None: something that must be there is not."""
        found = {**self.values(form), **more}
        is_whole = all(one.name in found for one in _declared(form) if _is_required(one))
        return form(**found) if is_whole else None

    # -- values ----------------------------------------------------------------------------------

    def node(self, name: str) -> Node | None:
        """None if it is missing or empty."""
        self._asked.append(name)
        node = self._nodes.get(name)
        if is_kind(node, "null"):
            self.wrong(name, _NOTHING)
            return None
        return node

    def text(self, name: str) -> Text | None:
        node = self.node(name)
        return None if node is None else self._text(name, node)

    def flag(self, name: str) -> bool | None:
        node = self.node(name)
        if node is None:
            return None
        if not is_kind(node, "bool"):
            self.wrong(name, "true or false")
        return str(node.value).lower() in ("true", "yes", "on")

    def texts(self, name: str) -> tuple[Text, ...]:
        """One text or a list of them."""
        node = self.node(name)
        if node is None:
            return ()
        items = node.value if isinstance(node, SequenceNode) else (node,)
        if not items:
            self.wrong(name, "the list is empty")
        return tuple(filter(None, (self._text(name, item) for item in items)))

    def mapping(self, name: str) -> dict[str, Text]:
        """Texts by name, whatever the names are."""
        inside = self.section(name)
        found = {}
        for one in [] if inside is None else inside.names:
            assert inside is not None
            node = inside.node(one)
            text = None if node is None else inside._text(one, node, may_be_empty=True)
            if text is not None:
                found[one] = text
        return found

    def section(self, name: str) -> "Fields | None":
        node = self.node(name)
        if node is None:
            return None
        if isinstance(node, MappingNode):
            return Fields(node, self._problems, self._path(name))
        self.wrong(name, _MAPPING)
        return None

    def _text(self, name: str, node: Node, *, may_be_empty: bool = False) -> Text | None:
        problem = "a single value is expected"
        if is_kind(node, "null") or not (may_be_empty or str(node.value).strip()):
            problem = _NOTHING
        elif isinstance(node, ScalarNode):
            try:
                return parse_text(str(node.value), line_of(node))
            except ValueError as error:
                problem = str(error)
        self._problems.add(line_of(node), f"{self._path(name)}: {problem}")
        return None

    def _path(self, name: str) -> str:
        return f"{self._where}.{name}" if self._where else name

    @property
    def _inside(self) -> str:
        return f" in {self._where}" if self._where else ""


# -- keys of a class -------------------------------------------------------------------------------

Read: TypeAlias = Callable[[Fields, str], Any]
"""The value of a key; None: it is not there, or it is wrong, which is noted."""


def key(read: Read, default: Any = MISSING, *, name: str = "") -> Any:
    """A field of a dataclass that is a key of the file: under its own name, or another.

    Without a default it must be there. A default that is a type makes an empty one.
    """
    about = {"read": read, "name": name}
    if isinstance(default, type):
        return field(default_factory=default, metadata=about)
    return field(default=default, metadata=about)


def plain(check: Callable[[str], str | None]) -> Read:
    """Text without references; `check` says what is wrong with it."""

    def read(given: Fields, name: str) -> str | None:
        text = given.text(name)
        if text is None:
            return None
        if not text.is_plain:
            given.wrong(name, "cannot come from the environment or a file")
        problem = check(text.shown)
        if problem is not None:
            given.wrong(name, f"{text.shown!r}: {problem}")
        return text.shown

    return read


def word(*allowed: str) -> Read:
    return plain(lambda given: None if given in allowed else ", ".join(allowed))


def part(form: type) -> Read:
    """A mapping with the keys of another class."""

    def read(given: Fields, name: str) -> Any:
        inside = given.section(name)
        found = None if inside is None else inside.read(form)
        if inside is not None:
            inside.close()
        return found

    return read


def key_names(form: type) -> list[str]:
    return [one.metadata["name"] or one.name for one in _declared(form)]


def said(one: Any, *but: str) -> dict[str, Any]:
    """What a part says beyond the defaults, by the names of its fields."""
    values = {each.name: (getattr(one, each.name), each.default) for each in _declared(one)}
    return {
        name: value
        for name, (value, default) in values.items()
        if name not in but and value not in (default, {})
    }


def _declared(form: Any) -> "list[Field[Any]]":
    return [one for one in fields(form) if "read" in one.metadata]


def _is_required(one: "Field[Any]") -> bool:
    return one.default is MISSING and one.default_factory is MISSING
