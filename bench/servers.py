"""The systems under load: each in its own process on loopback, ended by the code that started it.

Brokers (`homes`) keep data in a directory and can be restarted on it; the mock cluster and the
bare loop are here.
"""

import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from bench.base_env import ROOT, base_python, clean_environment
from bench.clients import Options

SUWI, KAFKA, MOCK, BOUND = "Suwi", "Apache Kafka", "librdkafka mock", "bound"
BEFORE = "Suwi before"
"""Another version of Suwi, for the comparison of two."""
_STOP_S_MAX = 60
_ADMIN_S_MAX = 120


@dataclass(frozen=True)
class Server:
    name: str
    address: str
    """Of all brokers, if there are several."""
    pid: int
    more_pids: tuple[int, ...] = ()

    @property
    def pids(self) -> tuple[int, ...]:
        return (self.pid, *self.more_pids)

    @property
    def target(self) -> Options:
        """The settings that every client needs."""
        return {"address": self.address, "server_pids": self.pids}

    @property
    def is_broker(self) -> bool:
        """Whether it stores what it acknowledges, so that a client can check it."""
        return self.name in (SUWI, BEFORE, KAFKA)

    def make_topic(self, name: str, partitions: int = 1, replicas: int = 1, **config: str) -> None:
        """Returns when the topic has leaders."""
        admin = self._admin()
        if self.is_broker:
            settings = {key.replace("_", "."): value for key, value in config.items()}
            topic = NewTopic(name, partitions, replicas, config=settings)
            for created in admin.create_topics([topic]).values():
                created.result(_ADMIN_S_MAX)
        limit = time.monotonic() + _ADMIN_S_MAX
        while time.monotonic() < limit:
            # The mock cluster creates a topic when it is asked about it.
            described = admin.list_topics(name, timeout=_ADMIN_S_MAX).topics[name]
            leaders = [p.leader for p in described.partitions.values() if p.leader >= 0]
            if len(leaders) >= partitions:
                return
            time.sleep(0.01)
        raise RuntimeError(f"topic {name} has no leaders at {self.name}")

    def drop_topic(self, name: str) -> None:
        """Remove a topic and, soon, its files: their page cache serves the next run."""
        if self.is_broker:
            admin = self._admin()  # kept: without it the response is lost
            for deleted in admin.delete_topics([name]).values():
                deleted.result(_ADMIN_S_MAX)

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.address, "log_level": 3})


@contextmanager
def temporary_directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="suwi-bench-", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


@contextmanager
def mock_cluster() -> Iterator[Server]:
    with running([sys.executable, "-m", "bench.mock_cluster"], ROOT) as process:
        yield Server(MOCK, announced_address(process), process.pid)


@contextmanager
def bound(work: str, path: Path, **options: object) -> Iterator[Server]:
    """One run of the bare loop; it ends with its client's connection."""
    arguments = json.dumps({"work": work, "path": str(path), **options})
    with running([str(base_python()), "-m", "bench.bound", arguments], ROOT) as process:
        yield Server(BOUND, announced_address(process), process.pid)


@contextmanager
def bare_reader(broker: Server, directory: Path) -> Iterator[Server]:
    """A proxy of a broker that serves the partition in this directory to consumers."""
    arguments = json.dumps({"broker": broker.address, "directory": str(directory)})
    with running([str(base_python()), "-m", "bench.bare_reader", arguments], ROOT) as process:
        yield Server(BOUND, announced_address(process), process.pid)


def start(command: list[str], cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        cwd=cwd,
        env=clean_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@contextmanager
def running(command: list[str], cwd: Path) -> Iterator[subprocess.Popen[str]]:
    process = start(command, cwd)
    try:
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[str], *, at_once: bool = False) -> None:
    """End one of our own processes: SIGTERM, then SIGKILL."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    if process.poll() is None:
        process.send_signal(signal.SIGKILL if at_once else signal.SIGTERM)
    try:
        process.wait(_STOP_S_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()


def announced_address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"127\.0\.0\.1:[1-9]\d*", line):
            return found[0]
    raise RuntimeError("the server ended before it printed its address")
