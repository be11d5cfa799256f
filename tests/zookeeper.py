"""A real ZooKeeper for tests: one server process on a free port of the loopback interface."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from suwi.local_cluster.zookeeper import Server, command, mode, why_unavailable, write_config
from suwi.testing.node import Reservation

__all__ = ["ZookeeperProcess", "running_zookeeper", "why_unavailable"]

_START_S_MAX = 200.0
# Otherwise ten seconds: a broker of a busy machine may be silent for as long.
_LONG_SESSIONS = "maxSessionTimeout=60000"


class ZookeeperProcess:
    """One server that keeps its data in `folder`; it may be killed, suspended and started again."""

    def __init__(self, folder: Path, *settings: str) -> None:
        self._reservation = Reservation()
        self.port = self._reservation.port or _free_port()
        self._folder = folder
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def tree(self) -> str:
        """A place for one cluster, as `zookeeper.connect` has it."""
        return f"{self.address}/test"

    def start(self) -> None:
        self._process = _start_server(self._folder, self.port, self._settings)
        _wait_until_ready(self._process, self.port, self._folder / "zookeeper.log")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def suspend(self) -> None:
        """Silent: connections stay open and nothing is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def wipe(self) -> None:
        """Lose all data, while it does not run."""
        shutil.rmtree(self._folder / "data")

    def __enter__(self) -> "ZookeeperProcess":
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


@contextmanager
def running_zookeeper(folder: Path) -> Iterator[str]:
    """Run a server that keeps its data in `folder`; gives its host:port."""
    with ZookeeperProcess(folder) as process:
        yield process.address


def _start_server(folder: Path, port: int, settings: Sequence[str]) -> "subprocess.Popen[bytes]":
    more = (_LONG_SESSIONS, *settings)
    config = write_config(str(folder), 1, {1: Server(port, 0, 0)}, more)
    with (folder / "zookeeper.log").open("ab") as log:
        return subprocess.Popen(
            command(config),
            # Half of the CPU that its start takes: it does not live long enough for more.
            env={**os.environ, "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_ready(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    deadline = time.monotonic() + _START_S_MAX
    while time.monotonic() < deadline and process.poll() is None:
        if mode(port) is not None:
            return
        time.sleep(0.05)
    raise RuntimeError(f"ZooKeeper did not start: {log.read_text(errors='replace')[-2000:]}")
