"""A place within a JSON value, as `$.order.items[0]['a name']`, and what is there."""

import json
import re
from typing import Any

from suwi.console.page import BadQuery
from suwi.decoders.decoder import as_json

Path = tuple[str | int, ...]

_STEP = re.compile(r"\.([^.\[\]'\"\s]+)|\[(\d{1,9})\]|\['((?:[^'\\]|\\.)*)'\]")
_NOTHING: Any = object()


def parse_path(text: str) -> Path:
    """Raises `BadQuery`."""
    steps: list[str | int] = []
    at = 1
    while at < len(text) or not text.startswith("$"):
        step = _STEP.match(text, at) if text.startswith("$") else None
        if step is None:
            raise BadQuery(f"path: {text[:100]!r} is no path such as $.order.items[0]['a name']")
        name, index, quoted = step.groups()
        steps.append(int(index) if index else name or re.sub(r"\\(.)", r"\1", quoted))
        at = step.end()
    return tuple(steps)


def _refuse(constant: str) -> None:
    """JSON has no NaN and no Infinity."""
    raise ValueError(constant)


class PathMatch:
    """Whether the value at a path is a literal: a text as it is, anything else as JSON has it."""

    def __init__(self, path: str, literal: str) -> None:
        self._path = parse_path(path)
        self._text = literal
        self._literal, wanted = _NOTHING, f". == {json.dumps(literal)}"
        try:
            self._literal = json.loads(literal, parse_constant=_refuse)
            if not isinstance(self._literal, str):
                wanted += f" or . == {literal}"
        except (ValueError, RecursionError):
            pass
        inside, *outer = reversed(("value", *self._path))
        where = "".join(f"[{json.dumps(step)}]" for step in reversed(outer))
        is_there = f"(.{where} | has({json.dumps(inside)}))? and " if self._literal is None else ""
        self.jq = f"{is_there}((.{where}[{json.dumps(inside)}])? | {wanted})"
        """The same for the program jq, to which what is not there is null."""

    def __call__(self, value: Any) -> bool:
        for step in self._path:
            is_inside = isinstance(value, dict if isinstance(step, str) else list)
            try:
                value = value[step] if is_inside else _NOTHING
            except LookupError:
                value = _NOTHING
        if value is _NOTHING:
            return False
        if isinstance(value, str | bytes):
            return bool(as_json(value) == self._text)
        if isinstance(value, bool) or isinstance(self._literal, bool):
            return value is self._literal  # 1 equals True
        return bool(value == self._literal) or str(as_json(value)) == self._text
