"""Operating system processes that outlive the command that started them.

`spawn` starts one; a `ProcessId` is its pid with its start time.
Invariant: a signal reaches the process that was started, never another one with a recycled pid.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from suwi.env import LocalDisk

_FILE_MODE = 0o600
_ENDED = "ZX"
_STOPPED = "Tt"


class ProcessState(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"
    DEAD = "dead"


class ProcessId(NamedTuple):
    pid: int
    started: str
    """As the system reports it, different for every process that gets this pid."""

    @property
    def state(self) -> ProcessState:
        found = _look_up(self.pid)
        if found is None or found[1] != self.started or found[0] in _ENDED:
            return ProcessState.DEAD
        return ProcessState.PAUSED if found[0] in _STOPPED else ProcessState.RUNNING

    def send(self, number: signal.Signals) -> bool:
        """Whether the process was there to be signalled."""
        if self.state is ProcessState.DEAD:
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True


def spawn(command: Sequence[str], log: str, environ: Mapping[str, str]) -> ProcessId:
    """Start a process in a session of its own, with its output appended to the file `log`."""
    pid = os.posix_spawn(
        command[0],
        [*command],
        environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, _FILE_MODE),
            (os.POSIX_SPAWN_DUP2, 1, 2),
            # It would keep a lock or a pipe of the caller open for as long as it runs.
            *((os.POSIX_SPAWN_CLOSE, fd) for fd in _inherited_fds()),
        ],
        setsid=True,
        # A shell ignores it for a command in the background, which what is started would inherit.
        setsigdef=[signal.SIGINT],
    )
    found = _look_up(pid)
    return ProcessId(pid, found[1] if found else "")


def _inherited_fds() -> list[int]:
    found = []
    for fd in map(int, os.listdir("/dev/fd")):
        with contextlib.suppress(OSError):  # the one that listed the directory is closed
            if fd > 2 and os.get_inheritable(fd):
                found.append(fd)
    return found


def _look_up(pid: int) -> tuple[str, str] | None:
    """The state and the start time of a process."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)  # a child that has ended would stay as a zombie
    if sys.platform == "linux":
        disk = LocalDisk()
        try:
            fields = disk.read_bytes(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        except OSError:
            return None
        # proc(5): the fields after the name begin with the state; the start counts from boot.
        state, threads, start = fields[0].decode(), int(fields[17]), fields[19].decode()
        if state in _ENDED and threads > 1:
            state = "R"  # Only its first thread has ended; the others still hold its sockets.
        return state, f"{disk.boot_id()} {start}"
    else:
        command = ["ps", "-o", "state=,lstart=", "-p", str(pid)]
        listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
        return (listed[0][0], " ".join(listed[1:])) if listed else None
