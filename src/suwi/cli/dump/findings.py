"""What a reader finds in a file."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing in a file."""

    kind: str
    fields: Mapping[str, Any]
    """As JSON has them."""
    shown: Mapping[str, object] | None = None
    """As people see them, where that differs; None and empty ones are left out."""
    indent: int = 0

    def text(self) -> str:
        """`name: value` for each field."""
        shown = self.fields if self.shown is None else self.shown
        parts = [f"{name}: {value}" for name, value in shown.items() if value not in (None, "")]
        return " " * self.indent + " ".join(parts)


@dataclass(frozen=True, slots=True)
class Damage:
    """Something that should not be so."""

    text: str


@dataclass(frozen=True, slots=True)
class Note:
    """Something worth knowing that is no damage."""

    text: str
