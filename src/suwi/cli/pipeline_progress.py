"""Shows the progress of a pipeline: one updated line on a terminal, otherwise periodic lines.

Invariant: it writes only to stderr, and never overwrites permanent lines.
"""

import sys
from typing import TYPE_CHECKING

from suwi.cli.output import printable
from suwi.env import local_env

if TYPE_CHECKING:
    from suwi.spark.pipeline.progress import Watch

_LINE_EVERY_MS = 10_000
_LINE_WIDTH = 160


class Progress:
    """One line that is overwritten on a terminal; otherwise a line every 10 seconds."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._is_terminal = sys.stderr.isatty()
        self._width = 0
        self._shown_ms = 0
        self._shown = ""

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()

    def say(self, text: str) -> None:
        """Print a permanent line."""
        self._clear()
        prefix = "" if text.startswith(self._name) else f"{self._name}: "
        sys.stderr.write(f"{prefix}{printable(text)}\n")
        sys.stderr.flush()

    def show(self, watches: "list[Watch]") -> None:
        text = " · ".join(watch.line() for watch in watches)
        if self._is_terminal:
            self._clear()
            text = text[:_LINE_WIDTH]
            sys.stderr.write(text)
            self._width = len(text)
            sys.stderr.flush()
            return
        now_ms = local_env().clock.now_ms()
        if now_ms - self._shown_ms >= _LINE_EVERY_MS and text != self._shown:
            self._shown_ms, self._shown = now_ms, text
            self.say(text)

    def _clear(self) -> None:
        if self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            self._width = 0
