"""A real ZooKeeper for tests: one server process on a free port of the loopback interface."""

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from suwi.local_cluster.zookeeper import Server, command, mode, why_unavailable, write_config

__all__ = ["running_zookeeper", "why_unavailable"]

_START_S_MAX = 60.0


@contextmanager
def running_zookeeper(folder: Path) -> Iterator[str]:
    """Run a server that keeps its data in `folder`; gives its host:port."""
    port = _free_port()
    config = write_config(str(folder), 1, {1: Server(port, 0, 0)})
    with (folder / "zookeeper.log").open("wb") as log:
        process = subprocess.Popen(
            command(config),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            _wait_until_ready(process, port, folder / "zookeeper.log")
            yield f"127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()


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
