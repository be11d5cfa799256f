"""`python -m chaos.stepped_clock serve …`: as `suwi serve`, with a wall clock that can be stepped.

The file `clock-step` beside the broker's configuration has the milliseconds that are added to the
time. Nothing else of a broker reads the wall clock (ruff sees to it), and timers do not use it.
Invariant: the clock never fails, also not while the broker has no descriptors left.
"""

import os
import sys
import time
from pathlib import Path

from suwi.cli.main import app
from suwi.env import SystemClock

FILE = "clock-step"
_LOOKS_EVERY_S = 0.1
_DIGITS = 20


def step(directory: Path, by_ms: int) -> None:
    """Of the broker with its configuration in this directory."""
    descriptor = os.open(directory / FILE, os.O_WRONLY | os.O_CREAT)
    try:
        os.pwrite(descriptor, f"{by_ms:{_DIGITS}}".encode(), 0)
    finally:
        os.close(descriptor)


def _make_steppable(path: Path) -> None:
    real_now_ms = SystemClock.now_ms
    step_ms, looked_s = 0, 0.0
    descriptor = os.open(path, os.O_RDONLY | os.O_CREAT)

    def now_ms(clock: SystemClock) -> int:
        nonlocal step_ms, looked_s
        if time.monotonic() - looked_s > _LOOKS_EVERY_S:
            looked_s = time.monotonic()
            step_ms = int(os.pread(descriptor, _DIGITS, 0) or b"0")
        return real_now_ms(clock) + step_ms

    SystemClock.now_ms = now_ms  # type: ignore[method-assign]


if __name__ == "__main__":
    _make_steppable(Path(sys.argv[sys.argv.index("--config") + 1]).with_name(FILE))
    app()
