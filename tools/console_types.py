"""Writes console/src/api.ts: the types of the console's JSON, from the values its pages return.

`make docs` runs it; a test checks that the file is what it writes.
"""

import dataclasses
import inspect
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from suwi.console.change import Done, Order, Preview, Refusal, asked_type
from suwi.console.faults import FAULTS
from suwi.console.page import Problem
from suwi.console.server import CHANGES, PAGES, STREAMS, Console

TARGET = Path(__file__).parent.parent / "console/src/api.ts"
_HEAD = """// The JSON of the console's server. Written by tools/console_types.py: do not edit.
"""
_PLAIN: dict[Any, str] = {
    str: "string",
    int: "number",
    float: "number",
    bool: "boolean",
    type(None): "null",
}
_PLAIN[Any] = "unknown"


def typescript() -> str:
    found: dict[str, str] = {}
    for root in (
        Problem,
        Console,
        *map(_returned, PAGES.values()),
        *(event for _, event in STREAMS.values()),
        Done,
        Order,
        Preview,
        Refusal,
    ):
        _declare(root, found)
    for title, plans in (("Changes", CHANGES), ("Faults", FAULTS)):
        asked = {name: _declare(asked_type(plan), found) for name, plan in plans.items()}
        lines = [f"  {_key(name)}: {kind};\n" for name, kind in sorted(asked.items())]
        found[title] = f"export interface {title} {{\n{''.join(lines)}}}\n"
    return _HEAD + "".join(f"\n{text}" for _, text in sorted(found.items()))


def _key(name: str) -> str:
    return name if name.isidentifier() else f'"{name}"'


def _returned(read: Any) -> Any:
    return typing.get_type_hints(read)["return"]


def _declare(kind: type, found: dict[str, str]) -> str:
    """The interface of a named tuple or data class, and of what is in it. Returns its name."""
    name = kind.__name__
    if name not in found:
        found[name] = ""
        fields = (
            [field.name for field in dataclasses.fields(kind)]
            if dataclasses.is_dataclass(kind)
            else list(kind._fields)  # type: ignore[attr-defined]
        )
        hints = typing.get_type_hints(kind)
        lines = [f"  {field}: {_typed(hints[field], found)};\n" for field in fields]
        found[name] = f"export interface {name} {{\n{''.join(lines)}}}\n"
    return name


def _typed(hint: Any, found: dict[str, str]) -> str:
    if hint in _PLAIN:
        return _PLAIN[hint]
    if isinstance(hint, typing.NewType):
        return _typed(hint.__supertype__, found)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return " | ".join(f'"{value}"' for value in arguments)
    if origin in (types.UnionType, typing.Union):
        return " | ".join(_typed(argument, found) for argument in arguments)
    if origin in (list, tuple, Sequence):
        inner = _typed(arguments[0], found)
        return f"({inner})[]" if " " in inner else f"{inner}[]"
    if origin in (dict, Mapping):
        return f"Record<string, {_typed(arguments[1], found)}>"
    assert inspect.isclass(hint), f"no TypeScript for {hint}"
    return _declare(hint, found)


if __name__ == "__main__":
    TARGET.write_text(typescript())
    print(f"wrote {TARGET}")
