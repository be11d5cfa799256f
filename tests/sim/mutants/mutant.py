"""The description of a mutant."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from simulation.scenario import Options

FAULT = 100
"""In place of a hazard: a bug that brokers had."""


@dataclass(frozen=True)
class Mutant:
    name: str
    hazard: int
    """Its number in docs/hazards.md, or FAULT."""
    what: str
    """What the patched code does wrong."""
    patches: tuple[tuple[Any, str, Any], ...]
    """Object or class, attribute, and what replaces it."""
    options: Options = field(default_factory=Options)
    """A fault script: the kinds of faults and of clients that lead to it, if seeds alone take too
    long."""

    def applied(self) -> AbstractContextManager[None]:
        return self._apply()

    @contextmanager
    def _apply(self) -> Iterator[None]:
        with ExitStack() as stack:
            for target, name, replacement in self.patches:
                stack.enter_context(patch.object(target, name, replacement))
            yield
