"""How a pipeline is doing: on a terminal one line that is written over, else one now and then.

Invariant: only stderr is written to, and what is to stay is never written over.
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
    """One line that is written over on a terminal; else a line now and then."""

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
        """Something that stays."""
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
