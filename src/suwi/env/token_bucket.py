"""A token bucket: how much may be used per second, with bursts.

What is used last may exceed what is left, and what follows waits for it. The time is an argument.
"""

import math
from dataclasses import dataclass
from typing import Final

_MEASURED_S: Final = 10.0
"""What was used so long ago counts for a third of what is used now."""
_AT_ONCE_S: Final = 0.1
"""What is used within this time counts as used at its beginning, and what is saved within it is
added at its end: to do so at each use is slow."""


@dataclass(slots=True, eq=False, repr=False, weakref_slot=True)
class TokenBucket:
    rate: float
    """Per second; it can be changed at any time."""
    burst_s: float
    """So many seconds' worth is saved."""
    debt_s_max: float = float("inf")
    """More than so many seconds' worth is not waited for."""
    left: float = 0.0
    """At the last use: less than nothing if that must be waited for."""
    until_s: float = float("-inf")
    """Up to then what is used and not more than what is left can be taken from `left` directly,
    without `record`: on the path of each request a call is slow."""
    _at_s: float = float("-inf")
    _refilled: float = 0.0
    """What was left then."""
    _used: float = 0.0
    _recent: float = 0.0
    _recorded_s: float = float("-inf")

    def wait_s(self, now_s: float) -> float:
        """How long until more may be used; 0 if it may be now."""
        if self.left >= 0:
            return 0.0
        self._refill(now_s)
        return max(0.0, -self.left / self.rate)

    def used(self, now_s: float) -> float:
        """How much was used per second of late, what is older counting less."""
        recent = self._recent + self._refilled - self.left
        used = max(0.0, self._used + recent / _MEASURED_S)
        return used * math.exp((self._recorded_s - now_s) / _MEASURED_S)

    def record(self, amount: float, now_s: float) -> float:
        """Returns how much of it counts, which may be given back as a negative amount."""
        if now_s > self.until_s:
            self._refill(now_s)
            self._used, self._recent, self._recorded_s = self.used(now_s), 0.0, now_s
            self.until_s = now_s + _AT_ONCE_S
        left = self.left - amount
        if left >= 0:
            self.left = left
            return amount
        self._refill(now_s)
        before = self.left
        self.left = max(before - amount, -self.debt_s_max * self.rate)
        counted = before - self.left
        self._recent += amount - counted
        return counted

    def is_full(self, now_s: float) -> bool:
        """Whether it is as a new one: what was used is made up for."""
        self._refill(now_s)
        return self.left >= self.burst_s * self.rate

    def _refill(self, now_s: float) -> None:
        most = self.burst_s * self.rate
        left = self.left + (now_s - self._at_s) * self.rate
        self._recent += self._refilled - self.left
        self.left = self._refilled = most if left > most else left
        self._at_s = now_s
