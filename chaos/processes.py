"""Processes to be killed: drivers with their child processes, and their output."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]


class Process:
    """A child process in its own process group."""

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                env=env,
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self.lines: list[str] = []
        self._said = threading.Condition()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as said:
            for line in said:
                with self._said:
                    self.lines.append(line.rstrip())
                    self._said.notify_all()
        self._process.wait()
        with self._said:
            self._said.notify_all()

    def wait_for(self, word: str, limit_s: float) -> bool:
        """Wait until it prints the word; False if it ended before, or the time is up."""

        def is_over() -> bool:
            return any(line.startswith(word) for line in self.lines) or not self.is_running

        with self._said:
            self._said.wait_for(is_over, limit_s)
            return any(line.startswith(word) for line in self.lines)

    def wait(self, limit_s: float) -> int | None:
        """Its exit code; None if it is still running."""
        try:
            return self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def workers(self) -> list[int]:
        """Python processes that Spark's JVM started: they read, write and commit."""
        return [pid for pid, command in descendants(self._process.pid) if "pyspark" in command]

    def family(self) -> list[int]:
        """The process and its descendants, the JVM first, to be listed before the kill.

        Listing them takes longer than the moments that are to be hit.
        """
        found = descendants(self._process.pid)
        jvms = [pid for pid, command in found if "java" in command.split(" ")[0]]
        others = [pid for pid, _ in found if pid not in jvms]
        return [*jvms, self._process.pid, *others]

    def kill(self, family: Sequence[int] | None = None) -> None:
        """SIGKILL."""
        for pid in family or self.family():
            kill_one(pid)
        self._process.wait()


def kill_one(pid: int) -> bool:
    """Whether there was such a process."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def descendants(pid: int) -> list[tuple[int, str]]:
    """All descendants with their command lines, parents before children."""
    listed = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True
    )
    children: dict[int, list[tuple[int, str]]] = {}
    for line in listed.stdout.splitlines():
        child, parent, command = line.split(None, 2)
        children.setdefault(int(parent), []).append((int(child), command))
    found: list[tuple[int, str]] = []
    waiting = [pid]
    while waiting:
        for child, command in children.get(waiting.pop(), []):
            found.append((child, command))
            waiting.append(child)
    return found
