"""Kafka Connect distributed on Suwi: workers are a group of the protocol type `connect`."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from compat.directories import read
from compat.kafka import JavaProcess, free_port
from compat.test_groups import GROUPS
from compat.test_tools import kafka
from tests.broker_process import BrokerProcess

WORKER = "org.apache.kafka.connect.cli.ConnectDistributed"
_STARTED_S = 120
_REBALANCED_S = 120
_LINES = 200


class Worker:
    """One worker of a Connect cluster."""

    def __init__(
        self,
        directory: Path,
        number: int,
        suwi: BrokerProcess,
        cluster: str,
        **more_settings: str,
    ) -> None:
        self.port = free_port()
        properties = directory / f"worker{number}.properties"
        topics = {
            f"{kind}.storage.{key}": value
            for kind in ("config", "offset", "status")
            for key, value in (("topic", f"{cluster}-{kind}"), ("replication.factor", "1"))
        }
        settings = {
            "bootstrap.servers": suwi.address,
            "plugin.discovery": "service_load",  # scanning all classes takes seconds
            "group.id": cluster,
            "listeners": f"http://127.0.0.1:{self.port}",
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "offset.flush.interval.ms": "500",
            "session.timeout.ms": "6000",
            "heartbeat.interval.ms": "1000",
            "scheduled.rebalance.max.delay.ms": "1000",
            **topics,
            **{key.replace("_", "."): value for key, value in more_settings.items()},
        }
        properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        self.process = JavaProcess(directory / f"worker{number}.log", WORKER, str(properties))

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/{path}",
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"},
            method="GET" if body is None else "PUT",
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def is_up(self) -> bool:
        self.process.check()
        return self.ask("connectors") is not None

    def runs_on(self, connector: str) -> set[str]:
        """Which workers run its tasks."""
        status = self.ask(f"connectors/{connector}/status")
        return {task["worker_id"] for task in status["tasks"] if task["state"] == "RUNNING"}


def _until(what: str, holds: Callable[[], bool], within_s: float) -> None:
    limit = time.monotonic() + within_s
    while time.monotonic() < limit:
        try:
            if holds():
                return
        except (OSError, urllib.error.HTTPError):
            pass
        time.sleep(0.2)
    raise AssertionError(f"{what}: not within {within_s} s")


def _append(file: Path, first: int, end: int) -> None:
    with file.open("a") as lines:
        lines.writelines(f"line {number}\n" for number in range(first, end))


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def test_a_connector_of_a_killed_worker_goes_on_at_the_other_one(
    suwi: BrokerProcess, tmp_path: Path
) -> None:
    source, sink = tmp_path / "in.txt", tmp_path / "out.txt"
    workers = [Worker(tmp_path, number, suwi, "connect-cluster") for number in (1, 2)]
    _append(source, 0, _LINES)
    with ExitStack() as stack:
        for worker in workers:
            stack.enter_context(worker.process)
        for worker in workers:
            _until("a worker starts", worker.is_up, _STARTED_S)
        source_connector = {
            "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
            "file": str(source),
            "topic": "connected",
        }
        sink_connector = {
            "connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector",
            "file": str(sink),
            "topics": "connected",
        }
        workers[0].ask("connectors/source/config", source_connector)
        workers[0].ask("connectors/sink/config", sink_connector)
        expected = {f"line {number}" for number in range(_LINES)}
        _until("the sink has it", lambda: set(_lines(sink)) == expected, _REBALANCED_S)
        assert _lines(sink) == [f"line {number}" for number in range(_LINES)]
        assert "connect" in kafka(suwi, GROUPS, "--list", "--protocol", "connect")

        victim = next(
            worker
            for worker in workers
            if f"127.0.0.1:{worker.port}" in workers[0].runs_on("source")
        )
        (survivor,) = (worker for worker in workers if worker is not victim)
        victim.process.kill()
        _append(source, _LINES, 2 * _LINES)
        expected |= {f"line {number}" for number in range(_LINES, 2 * _LINES)}
        _until("the sink has the rest", lambda: set(_lines(sink)) == expected, _REBALANCED_S)
        own = {f"127.0.0.1:{survivor.port}"}
        for connector in ("source", "sink"):
            _until(
                "the other worker runs it",
                lambda connector=connector: survivor.runs_on(connector) == own,  # type: ignore[misc]
                _REBALANCED_S,
            )


def test_a_source_is_exactly_once_while_workers_are_killed(
    suwi: BrokerProcess, tmp_path: Path
) -> None:
    """With `exactly.once.source.support`: the lines of a file and the position in it are written in
    one transaction, and a worker that takes over fences the one before."""
    source, topic = tmp_path / "in.txt", "connected-once"
    workers = [
        Worker(tmp_path, number, suwi, "connect-once", exactly_once_source_support="enabled")
        for number in (1, 2)
    ]
    connector = {
        "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
        "exactly.once.support": "required",
        "file": str(source),
        "topic": topic,
    }
    written = 0

    def lines() -> list[str]:
        return [(record.value or b"").decode() for record in read(suwi.address, topic)]

    def more() -> None:
        nonlocal written
        _append(source, written, written + _LINES)
        written += _LINES

    more()
    with ExitStack() as stack:
        for worker in workers:
            stack.enter_context(worker.process)
        for worker in workers:
            _until("a worker starts", worker.is_up, _STARTED_S)
        workers[0].ask("connectors/once/config", connector)
        _until("the lines are written", lambda: len(lines()) >= written, _REBALANCED_S)
        for _ in range(3):
            (running,) = _until_it_runs(workers)
            victim = next(worker for worker in workers if f"127.0.0.1:{worker.port}" == running)
            more()
            victim.process.kill()
            _until("the other has them", lambda: len(lines()) >= written, _REBALANCED_S)
            victim.process.__enter__()
            _until("the worker is back", victim.is_up, _STARTED_S)
    assert lines() == [f"line {number}" for number in range(written)]


def _until_it_runs(workers: list[Worker]) -> set[str]:
    found: set[str] = set()

    def runs() -> bool:
        found.clear()
        found.update(workers[0].runs_on("once"))
        return len(found) == 1

    _until("its task runs", runs, _REBALANCED_S)
    return found
