"""`python -m chaos.stepped_clock serve …`: as `suwi serve`, with a wall clock that can be stepped.

The file `clock-step` beside the broker's configuration has the milliseconds that are added to the
time. Nothing else of a broker reads the wall clock (ruff sees to it), and timers do not use it.
"""

import sys
import time
from pathlib import Path

from suwi.cli.main import app
from suwi.env import SystemClock

FILE = "clock-step"
_LOOKS_EVERY_S = 0.1


def step(directory: Path, by_ms: int) -> None:
    """Of the broker with its configuration in this directory."""
    new = directory / f"{FILE}.new"
    new.write_text(str(by_ms))
    new.rename(directory / FILE)


def _make_steppable(file: Path) -> None:
    real_now_ms = SystemClock.now_ms
    step_ms, looked_s = 0, 0.0

    def now_ms(clock: SystemClock) -> int:
        nonlocal step_ms, looked_s
        if time.monotonic() - looked_s > _LOOKS_EVERY_S:
            looked_s = time.monotonic()
            step_ms = int(file.read_text()) if file.exists() else 0
        return real_now_ms(clock) + step_ms

    SystemClock.now_ms = now_ms  # type: ignore[method-assign]


if __name__ == "__main__":
    _make_steppable(Path(sys.argv[sys.argv.index("--config") + 1]).with_name(FILE))
    app()
