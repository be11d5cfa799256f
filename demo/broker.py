"""A real broker for the demo: `suwi serve` in its own process, with its log in a file."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

_ADDRESS = re.compile(r"listening on +\w+://([\d.]+):(\d+)")
_GREETING_LINES = 4
_STOP_S = 30


class Broker:
    def __init__(self, data: Path, settings: dict[str, str]) -> None:
        self.data = data
        self.log = data.with_name("broker.log")
        self.port = 0
        self.greeting: list[str] = []
        self._settings = settings
        self._process: subprocess.Popen[str] | None = None
        self._log_read = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def arguments(self) -> list[str]:
        settings = [word for pair in self._settings.items() for word in ("--set", "=".join(pair))]
        return ["serve", "--listen", self.address, "--data", str(self.data), *settings]

    def start(self) -> None:
        """Returns when clients are served: the broker has printed its address."""
        command = Path(sys.executable).with_name("suwi")
        if not command.exists():
            raise RuntimeError(f"{command} does not exist: run `make setup` first")
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                [str(command), *self.arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                env=_environment(),
                text=True,
            )
        assert self._process.stdout is not None
        self.greeting = [self._process.stdout.readline() for _ in range(_GREETING_LINES)]
        found = _ADDRESS.search("".join(self.greeting))
        if found is None:
            self.kill()
            raise RuntimeError(f"the broker did not start:\n{self.log.read_text()}")
        self.port = int(found[2])

    def stop(self) -> str:
        """SIGTERM; returns what the broker prints meanwhile."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        said, _ = self._process.communicate(timeout=_STOP_S)
        if self._process.returncode != 0:
            raise RuntimeError(f"the broker did not stop cleanly:\n{self.log.read_text()}")
        return said

    def kill(self) -> None:
        """SIGKILL, the `kill -9` that no process can catch."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def new_log_lines(self) -> list[str]:
        """What the broker has logged since the last call, without the time."""
        text = self.log.read_text()
        new, self._log_read = text[self._log_read :], len(text)
        return [line.split(" ", 1)[1] for line in new.splitlines() if " " in line]


def _environment() -> dict[str, str]:
    """Only the demo configures the demo's broker."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SUWI_", "KAFKA_"))
    }
