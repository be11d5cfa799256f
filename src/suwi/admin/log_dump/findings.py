"""What a reader finds in a file, in order: an `Entry` for each item, a `Damage` for a problem."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO


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


Findings = Iterator[Entry | Damage | Note]


def open_file(path: str) -> BinaryIO:
    # The file may belong to a running broker: read-only, and never locked.
    return open(path, "rb")  # noqa: PTH123
