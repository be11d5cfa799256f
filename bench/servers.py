"""The systems under load: each a process of its own on loopback, ended by whoever started it."""

import json
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from bench.base_env import ROOT, base_python, clean_environment
from bench.clients import Options

SUWI, MOCK, BOUND = "suwi", "librdkafka mock", "bound"
_STOP_S_MAX = 20
_ADMIN_S_MAX = 20
_RUN_SUWI = "from suwi.cli.main import app; app()"


@dataclass(frozen=True)
class Server:
    name: str
    address: str
    process: subprocess.Popen[str]

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def target(self) -> Options:
        """What every client needs to know of it."""
        return {"address": self.address, "server_pid": self.pid}

    def make_topic(self, name: str, **config: str) -> None:
        admin = self._admin()
        if self.name == MOCK:
            admin.list_topics(name, timeout=_ADMIN_S_MAX)  # it creates what it is asked about
            return
        topic = NewTopic(name, 1, 1, config={k.replace("_", "."): v for k, v in config.items()})
        for created in admin.create_topics([topic]).values():
            created.result(_ADMIN_S_MAX)

    def drop_topic(self, name: str) -> None:
        """Remove a topic and, without delay, its files: their memory serves the next run."""
        if self.name == SUWI:
            admin = self._admin()
            for deleted in admin.delete_topics([name]).values():
                deleted.result(_ADMIN_S_MAX)

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.address, "log_level": 3})


@contextmanager
def temporary_directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="suwi-bench-") as directory:
        yield Path(directory)


def suwi_command(data: Path, *settings: str) -> list[str]:
    command = [str(base_python()), "-c", _RUN_SUWI, "serve", "--log-level", "warning"]
    command += ["--listen", "127.0.0.1:0", "--data", str(data)]
    for setting in ("log.segment.delete.delay.ms=0", *settings):
        command += ["--set", setting]
    return command


@contextmanager
def suwi(*settings: str) -> Iterator[Server]:
    """A broker from the base install, with its data in a directory that goes with it."""
    with (
        temporary_directory() as directory,
        _process(suwi_command(directory / "data", *settings), cwd=directory) as process,
    ):
        yield Server(SUWI, _announced_address(process), process)


@contextmanager
def mock_cluster() -> Iterator[Server]:
    with _process([sys.executable, "-m", "bench.mock_cluster"], cwd=ROOT) as process:
        yield Server(MOCK, _announced_address(process), process)


@contextmanager
def bound(work: str, path: Path, **options: object) -> Iterator[Server]:
    """One run of the bare loop; it ends with its client's connection."""
    arguments = json.dumps({"work": work, "path": str(path), **options})
    with _process([str(base_python()), "-m", "bench.bound", arguments], cwd=ROOT) as process:
        yield Server(BOUND, _announced_address(process), process)


@contextmanager
def idle_connections(server: Server, count: int) -> Iterator[None]:
    """So many connections are open and silent."""
    arguments = json.dumps({"address": server.address, "connections": count})
    with _process([str(base_python()), "-m", "bench.clients.idle", arguments], cwd=ROOT) as process:
        assert process.stdout is not None
        if json.loads(process.stdout.readline() or "{}").get("open") != count:
            raise RuntimeError(f"could not open {count} connections")
        yield


@contextmanager
def _process(command: list[str], cwd: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=clean_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[str]) -> None:
    """End one of our own processes: politely, then for certain."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_S_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()


def _announced_address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"127\.0\.0\.1:[1-9]\d*", line):
            return found[0]
    raise RuntimeError("the server ended before it said where it listens")
