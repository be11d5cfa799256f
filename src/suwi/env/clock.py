"""Wall-clock time. Durations and timers use the event loop's own clock instead."""

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Milliseconds since 1970, as in record timestamps."""


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000
