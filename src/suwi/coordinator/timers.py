"""Deadlines of one shard as data: arming one again costs a dictionary entry, nothing on the loop.

`arm` and `cancel` are what decisions ask for; `expired` is called with each key whose deadline has
passed, a bounded number in one turn of the loop.
Invariant: a key expires at most once for each time it was armed, and not after `cancel` or `clear`.
"""

import asyncio
import heapq
from collections.abc import Callable
from typing import Final

from suwi.coordinator.decision import PausableTimerKey, TimerKey

_EXPIRED_PER_TURN: Final = 32


class Timers:
    __slots__ = (
        "_deadlines",
        "_expired",
        "_handle",
        "_handle_at_s",
        "_heap",
        "_paused_since_s",
        "_sequence",
    )

    def __init__(self, expired: Callable[[TimerKey], None]) -> None:
        self._expired = expired
        self._deadlines: dict[TimerKey, tuple[float, float]] = {}
        """By key its deadline, and at which time the heap has it: then, or earlier."""
        self._heap: list[tuple[float, int, TimerKey]] = []
        """An entry whose time is not that in `_deadlines` is out of date."""
        self._sequence = 0
        self._handle: asyncio.TimerHandle | None = None
        self._handle_at_s = 0.0
        self._paused_since_s: float | None = None

    def __len__(self) -> int:
        return len(self._deadlines)

    def arm(self, key: TimerKey, delay_s: float) -> None:
        deadline_s = asyncio.get_running_loop().time() + max(0.0, delay_s)
        armed = self._deadlines.get(key)
        if armed is not None and armed[1] <= deadline_s:
            self._deadlines[key] = (deadline_s, armed[1])
        else:
            self._push(deadline_s, key)
            self._schedule()

    def cancel(self, key: TimerKey) -> None:
        self._deadlines.pop(key, None)

    @property
    def is_paused(self) -> bool:
        return self._paused_since_s is not None

    def pause(self) -> None:
        """Until `resume`, time does not count for pausable keys. Those that expire are armed again
        by whoever is told."""
        if self._paused_since_s is None:
            self._paused_since_s = asyncio.get_running_loop().time()

    def resume(self) -> None:
        if self._paused_since_s is None:
            return
        pause_s = asyncio.get_running_loop().time() - self._paused_since_s
        self._paused_since_s = None
        for key, (deadline_s, at_s) in self._deadlines.items():
            if isinstance(key, PausableTimerKey):
                self._deadlines[key] = (deadline_s + pause_s, at_s)

    def clear(self) -> None:
        self._deadlines.clear()
        self._heap.clear()
        self._paused_since_s = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _push(self, deadline_s: float, key: TimerKey) -> None:
        self._sequence += 1
        self._deadlines[key] = (deadline_s, deadline_s)
        heapq.heappush(self._heap, (deadline_s, self._sequence, key))

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
            armed = self._deadlines.get(key)
            if armed is None or armed[1] != at_s:
                continue
            if armed[0] > now_s:
                self._push(armed[0], key)
                continue
            del self._deadlines[key]
            expired += 1
            self._expired(key)
        self._schedule()
