"""A timer on an event loop, and its lateness: everything that delayed the loop.

The same heartbeat in an idle process shows the machine's share at the same moment;
the rest is the loop's own: long callbacks, and waiting for the GIL.
"""

import asyncio
from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

BEAT_S = 0.005
_LATE_FROM_S = 0.001
_LATE_MAX = 20_000

Late = tuple[float, float]
"""When it was due, on the clock that all processes of a machine share, and how late it was."""


class Beats:
    """The lateness of beats."""

    def __init__(self) -> None:
        self._count = 0
        self._due_s = array("d")
        self._late_s = array("d")

    def add(self, due_s: float, late_s: float) -> None:
        self._count += 1
        if late_s >= _LATE_FROM_S and len(self._due_s) < _LATE_MAX:
            self._due_s.append(due_s)
            self._late_s.append(late_s)

    def as_json(self) -> dict[str, Any]:
        late = list(zip(self._due_s, self._late_s, strict=True))
        return {"beats": self._count, "late": late}


class Heartbeat:
    def __init__(
        self, loop: asyncio.AbstractEventLoop, note: Callable[[float, float], None]
    ) -> None:
        self._loop = loop
        self._note = note
        self._due_s = 0.0
        self._next()

    def _next(self) -> None:
        self._due_s = self._loop.time() + BEAT_S
        self._loop.call_at(self._due_s, self._beat)

    def _beat(self) -> None:
        self._note(self._due_s, self._loop.time() - self._due_s)
        self._next()


def own_lateness_s(late: Sequence[Late], idle: Sequence[Late]) -> list[float]:
    """Of each late beat, the part that the idle process does not explain.

    From a beat that was late from a to b the lateness of the idle process in that time is
    subtracted.
    """
    return [max(0.0, late_s - _explained_s(due_s, due_s + late_s, idle)) for due_s, late_s in late]


def _explained_s(from_s: float, to_s: float, idle: Sequence[Late]) -> float:
    """The lateness of the idle process within a span; its own late spans do not overlap."""
    explained_s = 0.0
    # The span before the first that starts inside may overlap it.
    for due_s, late_s in idle[max(0, bisect_left(idle, (from_s, 0.0)) - 1) :]:
        if due_s >= to_s:
            break
        explained_s += max(0.0, min(to_s, due_s + late_s) - max(from_s, due_s))
    return explained_s
