"""Processes that record from `begin` to `end`: a monitored broker, a pinger, an idle heartbeat."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.base_env import ROOT, base_python
from bench.clients import Options
from bench.homes import SuwiHome
from bench.servers import Server, running
from bench.watch.commands import MARK

_WATCHED = (
    f"import sys; sys.path.insert(0, {str(ROOT)!r}); from bench.watch.broker import main; main()"
)


class Recorder:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def begin(self) -> None:
        self.say("begin")

    def end(self) -> dict[str, Any]:
        """What was recorded since `begin`."""
        recorded: dict[str, Any] = self.say("end")
        return recorded

    def do(self, *command: object) -> Any:
        """For processes with more commands than begin and end."""
        return self.say(json.dumps(command))

    def say(self, line: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self.heard()

    def heard(self) -> Any:
        """The next answer; other output is skipped."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(MARK):
                return json.loads(line.removeprefix(MARK))
        raise RuntimeError("a recording process has ended")


@contextmanager
def recorder(module: str, options: Options | None = None) -> Iterator[Recorder]:
    command = [str(base_python()), "-m", module]
    if options is not None:
        command.append(json.dumps(options))
    with running(command, ROOT) as process:
        yield Recorder(process)


@contextmanager
def idle_heartbeat() -> Iterator[Recorder]:
    with recorder("bench.watch.idle") as idle:
        yield idle


@contextmanager
def pinger(address: str, topic: str, every_s: float) -> Iterator[Recorder]:
    """A small producer; its topic must exist."""
    options = {"address": address, "topic": topic, "every_s": every_s}
    with recorder("bench.clients.pinger", options) as ping:
        yield ping


@contextmanager
def watched_cluster(brokers: int, settings: dict[str, str]) -> Iterator[tuple[Recorder, list[str]]]:
    """Brokers of the test kit in one process, with their addresses."""
    options = {"brokers": brokers, "settings": settings}
    with recorder("bench.watch.cluster", options) as cluster:
        addresses = cluster.heard()
        yield cluster, [addresses[str(number)] for number in range(1, brokers + 1)]


class WatchedHome(SuwiHome):
    """A broker whose event loop is monitored, with a metrics page."""

    def __init__(self, directory: Path, settings: dict[str, str]) -> None:
        super().__init__(directory, settings, run=_WATCHED, options=("--metrics-port", "0"))
        self.metrics_url = ""

    @property
    def recorder(self) -> Recorder:
        assert self._process is not None
        return Recorder(self._process)

    def start(self) -> Server:
        server = super().start()
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("metrics at"):
                self.metrics_url = line.split()[-1]
                return server
        raise RuntimeError("the broker ended before it printed the address of its metrics")
