"""`suwi` in a fork of a process that has imported it: a new one imports for half a second."""

import multiprocessing
import os
import signal
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["suwi.cli.main", "suwi.cli.serve", "suwi.cli.broker_process"])


class ForkedSuwi:
    """Has as much of `subprocess.Popen` as a `BrokerProcess` uses."""

    def __init__(self, arguments: Sequence[str], environ: Mapping[str, str], stderr: Path) -> None:
        reader, writer = _context.Pipe(duplex=False)
        given = (list(arguments), dict(environ), writer, str(stderr))
        self._process = _context.Process(target=_run, args=given, daemon=True)
        self._process.start()
        writer.close()
        self.stdout = os.fdopen(os.dup(reader.fileno()))
        reader.close()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """What it has printed, at its end."""
        self._process.join(timeout)
        assert self.poll() is not None, f"it still runs after {timeout} s"
        with self.stdout:
            return self.stdout.read(), None


def _run(arguments: list[str], environ: dict[str, str], stdout: Connection, stderr: str) -> None:
    os.environ.clear()
    os.environ.update(environ)
    os.dup2(stdout.fileno(), 1)
    stdout.close()
    with open(stderr, "ab") as log:
        os.dup2(log.fileno(), 2)
    from suwi.cli.main import app

    app(arguments, prog_name="suwi")
