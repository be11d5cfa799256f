"""Mistakes in a pipeline file, each with its line: all of them, not only the first."""

import difflib
from collections.abc import Iterable
from typing import NamedTuple


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
