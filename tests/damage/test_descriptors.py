"""A broker without file descriptors, and one with more connections than it may have.

That these problems end half a minute later is in `tests/broker/test_problems.py`.
"""

import resource
import socket
import sys
import time
from pathlib import Path

import pytest

from suwi.records.batch import batches
from suwi.records.builder import build_batch
from suwi.records.record import Record
from suwi.wire.versions import ApiKey
from tests.broker_process import BrokerProcess
from tests.cli.support import Suwi
from tests.damage.test_full_disk import problems, wait_until
from tests.raw_client import RawClient, produce_fields, produced

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="prlimit is Linux's")

LIMIT = 256
LINES_MAX = 5
PARTITIONS = 30
SEGMENTS = 40


def test_a_broker_without_descriptors_says_so_in_one_line_and_recovers(tmp_path: Path) -> None:
    """asyncio alone writes thousands of tracebacks and uses a whole core."""
    with BrokerProcess(tmp_path / "data") as broker:
        suwi = Suwi(broker.address)
        lines = len(broker.log.splitlines())
        before = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (5, before[1]))
        with socket.create_connection(("127.0.0.1", broker.port)):
            wait_until(lambda: "kind=no-descriptors" in broker.log)
            time.sleep(3)  # asyncio tries again every second
        assert len(broker.log.splitlines()) - lines <= LINES_MAX
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, before)
        wait_until(lambda: suwi("status").exit_code == 1)
        (problem,) = problems(suwi)
        assert "no descriptors: Too many open files" in problem
        suwi.ok("topics", "create", "orders")


def test_refused_connections_are_one_line_and_a_problem(tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT))

    with BrokerProcess(tmp_path / "data", in_child=limit) as broker:
        suwi = Suwi(broker.address)
        lines = len(broker.log.splitlines())
        peers = [socket.create_connection(("127.0.0.1", broker.port)) for _ in range(LIMIT)]
        wait_until(lambda: "kind=connections-refused" in broker.log)
        for peer in peers:
            peer.close()
        wait_until(lambda: suwi("status").exit_code == 1)
        assert len(broker.log.splitlines()) - lines <= LINES_MAX
        (problem,) = problems(suwi)
        assert "connections refused: too many connections" in problem


@pytest.mark.slow
@pytest.mark.parametrize("limit", [256, 120])
def test_many_unsynced_segments_after_a_kill_leave_descriptors_for_connections(
    tmp_path: Path, limit: int
) -> None:
    """Earlier their sync opened all of them, after which nothing closed any: no answer ever."""

    def few_files() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

    settings = ("log.segment.bytes=4096", "log.flush.scheduler.interval.ms=3600000")
    with BrokerProcess(tmp_path / "data", *settings, in_child=few_files) as broker:
        with RawClient(broker.address) as client:
            client.create_topic("orders", PARTITIONS)
            for number in range(SEGMENTS):
                assert _produced(client, number) == dict.fromkeys(range(PARTITIONS), (0, number))
        broker.kill()
        broker.start()
        with RawClient(broker.address) as client:
            # A log that was recovered is synced with its first append.
            assert _produced(client, SEGMENTS) == dict.fromkeys(range(PARTITIONS), (0, SEGMENTS))
        with RawClient(broker.address) as client:
            for partition in range(PARTITIONS):
                assert _offsets(client, partition) == list(range(SEGMENTS + 1))
        assert "no-descriptors" not in broker.log


def _produced(client: RawClient, number: int) -> dict[int, tuple[int, int]]:
    """Append an idempotent batch, as large as most of a segment, to each partition."""
    record = Record(value=b"%02d" % number * 1_500)
    batch = bytes(build_batch([record], producer_id=7, producer_epoch=0, base_sequence=number))
    fields = produce_fields(12, "orders", dict.fromkeys(range(PARTITIONS), batch))
    answers = produced(client.ask(ApiKey.PRODUCE, 12, fields))
    return {partition: (answer[0], answer[1]) for partition, answer in answers.items()}


def _offsets(client: RawClient, partition: int) -> list[int]:
    offsets: list[int] = []
    while len(offsets) <= SEGMENTS:
        fetched = client.fetch("orders", len(offsets), partition=partition)
        found = [header.base_offset for _, header in batches(bytes(fetched.records))]
        assert fetched.error_code == 0
        assert found
        offsets.extend(found)
    return offsets
