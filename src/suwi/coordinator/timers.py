"""Deadlines of one shard as data: arming one again costs a dictionary entry, nothing on the loop.

`arm` and `cancel` are what decisions ask for; `expired` is called with each key whose deadline has
passed, a limited number in one iteration of the loop. Pausable keys have a clock of their own,
which stands still from `pause` to `resume`: the deadline of a key moves by the part of the pause in
which it was armed.
Invariant: a key expires at most once for each time it was armed, and not after `cancel` or `clear`;
a pausable one not during a pause.
"""

import asyncio
import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from suwi.coordinator.event import PausableTimerKey, TimerKey

_EXPIRED_PER_TURN: Final = 32
_HELD_S: Final = float("-inf")
"""In place of the time of a key's entry in the heap: the key became due during a pause, and has no
entry."""


@dataclass(slots=True, eq=False)
class Timers:
    _expired: Callable[[TimerKey], None]
    _deadlines: dict[TimerKey, tuple[float, float]] = field(default_factory=dict)
    """By key its deadline by its own clock, and the time of its entry in the heap, which may be
    earlier."""
    _heap: list[tuple[float, int, TimerKey]] = field(default_factory=list)
    """An entry whose time is not that in `_deadlines` is out of date."""
    _held: dict[TimerKey, None] = field(default_factory=dict)
    """Keys whose time came during this pause. They return to the heap at its end."""
    _sequence: int = 0
    _handle: asyncio.TimerHandle | None = None
    _handle_at_s: float = 0.0
    _paused_s: float = 0.0
    """How long all earlier pauses took."""
    _paused_since_s: float | None = None

    def __len__(self) -> int:
        return len(self._deadlines)

    def arm(self, key: TimerKey, delay_s: float) -> None:
        delay_s = max(0.0, delay_s)
        now_s = asyncio.get_running_loop().time()
        deadline_s, at_s = self._clock_s(key, now_s) + delay_s, now_s + delay_s
        armed = self._deadlines.get(key)
        if armed is not None and armed[1] <= at_s:
            self._deadlines[key] = (deadline_s, armed[1])
        else:
            self._push(deadline_s, at_s, key)
            self._schedule()

    def cancel(self, key: TimerKey) -> None:
        self._deadlines.pop(key, None)

    def keys(self) -> Iterable[TimerKey]:
        return self._deadlines

    def left_s(self, key: TimerKey) -> float:
        """How long an armed key has left, by its own clock."""
        return self._deadlines[key][0] - self._clock_s(key, asyncio.get_running_loop().time())

    @property
    def is_paused(self) -> bool:
        return self._paused_since_s is not None

    def pause(self) -> None:
        """Until `resume`, time does not count for pausable keys, and they do not expire."""
        if self._paused_since_s is None:
            self._paused_since_s = asyncio.get_running_loop().time()

    def resume(self) -> None:
        if self._paused_since_s is None:
            return
        now_s = asyncio.get_running_loop().time()
        self._paused_s += now_s - self._paused_since_s
        self._paused_since_s = None
        held, self._held = self._held, {}
        for key in held:
            deadline_s, at_s = self._deadlines.get(key, (0.0, 0.0))
            if at_s == _HELD_S:
                self._push(deadline_s, now_s + deadline_s - self._clock_s(key, now_s), key)
        self._schedule()

    def clear(self) -> None:
        self._deadlines.clear()
        self._heap.clear()
        self._held.clear()
        self._paused_since_s = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _clock_s(self, key: TimerKey, now_s: float) -> float:
        if not isinstance(key, PausableTimerKey):
            return now_s
        return (now_s if self._paused_since_s is None else self._paused_since_s) - self._paused_s

    def _push(self, deadline_s: float, at_s: float, key: TimerKey) -> None:
        self._sequence += 1
        self._deadlines[key] = (deadline_s, at_s)
        heapq.heappush(self._heap, (at_s, self._sequence, key))

    def _schedule(self) -> None:
        if not self._heap:
            return
        at_s = self._heap[0][0]
        if self._handle is not None:
            if self._handle_at_s <= at_s:
                return
            self._handle.cancel()
        self._handle_at_s = at_s
        self._handle = asyncio.get_running_loop().call_at(at_s, self._fire)

    def _fire(self) -> None:
        self._handle = None
        # The loop may call a little early, by the resolution of its clock.
        now_s = max(asyncio.get_running_loop().time(), self._handle_at_s)
        expired = 0
        while self._heap and self._heap[0][0] <= now_s and expired < _EXPIRED_PER_TURN:
            at_s, _, key = heapq.heappop(self._heap)
            deadline_s, armed_at_s = self._deadlines.get(key, (0.0, _HELD_S))
            if armed_at_s != at_s:
                continue
            if self.is_paused and isinstance(key, PausableTimerKey):
                self._deadlines[key] = (deadline_s, _HELD_S)
                self._held[key] = None
                continue
            due_s = now_s + deadline_s - self._clock_s(key, now_s)
            if due_s > now_s:
                self._push(deadline_s, due_s, key)
                continue
            del self._deadlines[key]
            expired += 1
            self._expired(key)
        self._schedule()
