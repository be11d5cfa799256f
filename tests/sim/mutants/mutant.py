"""What a mutant is."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch


@dataclass(frozen=True)
class Mutant:
    name: str
    hazard: int
    """Its number in the list of hazards."""
    what: str
    """What the patched code does wrong."""
    patches: tuple[tuple[Any, str, Callable[..., Any]], ...]
    """Of which object or class which attribute becomes what."""
    kinds: tuple[str, ...] | None = None
    """A directed fault schedule: the kinds of trouble that lead to it, where seeds alone take too
    long."""

    def applied(self) -> AbstractContextManager[None]:
        return self._apply()

    @contextmanager
    def _apply(self) -> Iterator[None]:
        with ExitStack() as stack:
            for target, name, replacement in self.patches:
                stack.enter_context(patch.object(target, name, replacement))
            yield
