"""The demo's console: `suwi console` in its own process."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_STOP_S = 30


@contextmanager
def open_console(servers: str) -> Iterator[str | None]:
    """Its address; None if it cannot start."""
    command = Path(sys.executable).with_name("suwi")
    process = subprocess.Popen(
        [str(command), "console", "--broker", servers],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # Ctrl-C ends the demo, which ends it
    )
    assert process.stdout is not None
    try:
        words = process.stdout.readline().split()
        yield words[-1] if words else None
    finally:
        process.terminate()
        process.wait(_STOP_S)
        process.stdout.close()
