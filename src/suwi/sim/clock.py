"""Wall clocks of the simulation, which do not read the real one."""

from collections.abc import Callable

START_MS = 1_700_000_000_000
"""When simulations begin: some day in 2023, so that timestamps look like timestamps."""


class ManualClock:
    """Advances only when a test says so; for tests without an event loop."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def advance(self, duration_ms: int) -> None:
        self._now_ms += duration_ms


class SimClock:
    """One machine's wall clock: virtual time since the start, plus the machine's skew."""

    def __init__(
        self, loop_time: Callable[[], float], *, start_ms: int = START_MS, skew_ms: int = 0
    ) -> None:
        self._loop_time = loop_time
        self._start_ms = start_ms
        self.skew_ms = skew_ms

    def now_ms(self) -> int:
        return self._start_ms + self.skew_ms + int(self._loop_time() * 1000)
