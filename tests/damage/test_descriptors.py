"""A broker without file descriptors, and one with more connections than it may have."""

import resource
import socket
import sys
import time
from pathlib import Path

import pytest

from tests.broker_process import BrokerProcess
from tests.cli.support import Suwi
from tests.damage.test_full_disk import problems, wait_until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="prlimit is Linux's")

LIMIT = 256
LINES_MAX = 5


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
        wait_until(lambda: problems(suwi) == [])


def test_refused_connections_are_one_line_and_a_problem_for_a_while(tmp_path: Path) -> None:
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
        wait_until(lambda: problems(suwi) == [])
