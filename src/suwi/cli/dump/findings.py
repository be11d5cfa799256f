"""What a reader finds in a file."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing in a file: `name: value` for each field, after `indent` blanks."""

    kind: str
    fields: Mapping[str, Any]
    """As JSON has them."""
    shown: Mapping[str, str] = field(default_factory=dict)
    """Where people see another text than JSON has; an empty one is left out."""
    indent: int = 0

    def text(self) -> str:
        parts = []
        for name, value in self.fields.items():
            text = self.shown.get(name, str(value))
            if text:
                parts.append(f"{name}: {text}")
        return " " * self.indent + " ".join(parts)


@dataclass(frozen=True, slots=True)
class Damage:
    """Something that should not be so."""

    text: str


@dataclass(frozen=True, slots=True)
class Note:
    """Something worth knowing that is no damage."""

    text: str
