"""A client that connects when a broker has just opened its port. With incomplete metadata
librdkafka would stall for more than 15 seconds."""

import random
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.broker_process import COMMAND, environment

_LIMIT_S = 120
_STALL_S = 15


def _free_ports(count: int) -> int:
    """The first of `count` consecutive unused ports."""
    for _ in range(100):
        # At random, because tests run in parallel.
        first = random.randrange(21_000, 30_000)
        sockets = [socket.socket() for _ in range(count)]
        try:
            for number, each in enumerate(sockets):
                each.bind(("127.0.0.1", first + number))
        except OSError:
            continue
        finally:
            for each in sockets:
                each.close()
        return first
    raise AssertionError("no free ports")


@contextmanager
def _starting(data: Path, port: int, brokers: int) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [
            *(*COMMAND, "serve"),
            *("--listen", f"127.0.0.1:{port}", "--data", str(data), "--brokers", str(brokers)),
        ],
        env=environment(),
        stdout=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _is_open(port: int) -> bool:
    with closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("brokers", [1, 3])
def test_a_client_that_connects_as_the_ports_open_is_served_at_once(
    tmp_path: Path, brokers: int
) -> None:
    first = _free_ports(brokers)
    with _starting(tmp_path / "data", first, brokers):
        ends_s = time.monotonic() + _LIMIT_S
        while not all(_is_open(first + number) for number in range(brokers)):
            assert time.monotonic() < ends_s
            time.sleep(0.001)
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{first}", "log_level": 0})
        admin.create_topics([NewTopic("early", 6, brokers)])["early"].result(_STALL_S)
        assert len(admin.list_topics(timeout=_STALL_S).brokers) == brokers
