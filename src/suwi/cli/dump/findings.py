"""The findings of a reader in a file."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Entry:
    """One item of a file."""

    kind: str
    fields: Mapping[str, Any]
    """For JSON output."""
    shown: Mapping[str, object] | None = None
    """For text output, if that differs; None and empty values are left out."""
    indent: int = 0

    def text(self) -> str:
        """`name: value` for each field."""
        shown = self.fields if self.shown is None else self.shown
        parts = [f"{name}: {value}" for name, value in shown.items() if value not in (None, "")]
        return " " * self.indent + " ".join(parts)


@dataclass(frozen=True, slots=True)
class Damage:
    """A problem in a file."""

    text: str


@dataclass(frozen=True, slots=True)
class Note:
    """Information that is not damage."""

    text: str
