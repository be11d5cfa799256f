"""What a mutant is."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from suwi.sim.scenario import Options

FAULT = 100
"""In place of a hazard: a fault that brokers had."""


@dataclass(frozen=True)
class Mutant:
    name: str
    hazard: int
    """Its number in the list of hazards; FAULT for what is not in it."""
    what: str
    """What the patched code does wrong."""
    patches: tuple[tuple[Any, str, Callable[..., Any]], ...]
    """Of which object or class which attribute becomes what."""
    options: Options = field(default_factory=Options)
    """A fault script: the kinds of trouble and of clients that lead to it, where seeds alone take
    too long."""

    def applied(self) -> AbstractContextManager[None]:
        return self._apply()

    @contextmanager
    def _apply(self) -> Iterator[None]:
        with ExitStack() as stack:
            for target, name, replacement in self.patches:
                stack.enter_context(patch.object(target, name, replacement))
            yield
