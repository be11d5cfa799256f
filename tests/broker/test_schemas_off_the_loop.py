"""The schemas of kio are loaded when they are first needed, and in a thread: it takes tens of
milliseconds, and needs a file descriptor."""

import random
import resource
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from suwi.testing.node import Reservation
from suwi.wire.codec import encode_request, uses_schema
from suwi.wire.headers import request_header
from suwi.wire.schema import Direction, structure
from suwi.wire.versions import APIS, ApiKey, Audience
from tests.broker_process import BrokerProcess, environment
from tests.raw_client import RawClient
from tests.wire.samples import sample

# Says of each schema that is loaded while clients are served whether the event loop waits for it.
SERVE = """
import sys, threading

class Finder:
    @staticmethod
    def find_spec(name, path, target=None):
        if name.startswith("kio.schema.") and name.count(".") == 3:
            is_main = threading.current_thread() is threading.main_thread()
            where = "on the loop" if is_main else "in a thread"
            sys.stderr.write(f"loaded {name} {where}\\n")

sys.meta_path.insert(0, Finder)
from suwi.cli.main import app
app(["serve", *sys.argv[1:]])
"""
FOR_CLIENTS = [
    api for api in APIS.values() if api.audience is Audience.CLIENTS and uses_schema(api.key)
]


def requests() -> Iterator[bytes]:
    """One of every version of every API."""
    chance = random.Random(1)
    for api in FOR_CLIENTS:
        for version in range(api.min_version, api.max_version + 1):
            fields = sample(structure(api.key, version, Direction.REQUEST), chance)
            header = request_header(api.key, version, 1, "client")
            yield header + encode_request(api.key, version, fields)


def test_a_schema_is_loaded_in_a_thread_when_a_client_first_needs_it(tmp_path: Path) -> None:
    port, log = Reservation().port, tmp_path / "log"
    arguments = ["--data", str(tmp_path / "data"), "--listen", f"127.0.0.1:{port}"]
    with log.open("w") as stderr:
        broker = subprocess.Popen(
            [sys.executable, "-c", SERVE, *arguments],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    try:
        assert broker.stdout is not None
        while "listening" not in broker.stdout.readline():
            assert broker.poll() is None
        before = log.read_text().count("\n")
        for request in requests():
            with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
                client.sendall(struct.pack(">i", len(request)) + request)
                client.recv(1)  # A response, or the connection is closed.
    finally:
        broker.terminate()
        broker.communicate()
    loaded = [line for line in log.read_text().splitlines()[before:] if line.startswith("loaded")]
    assert len(loaded) > len(FOR_CLIENTS)
    assert [line for line in loaded if "on the loop" in line] == []


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="prlimit is Linux's")
def test_a_request_waits_for_the_descriptor_that_its_schema_needs(tmp_path: Path) -> None:
    """Before, its connection was closed."""

    def without_the_fork() -> None:
        """A process that has loaded no schema yet."""

    with (
        BrokerProcess(tmp_path / "data", in_child=without_the_fork) as broker,
        RawClient(broker.address) as client,
    ):
        client.ask(ApiKey.API_VERSIONS, 0, {})
        before = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (5, before[1]))
        fields = {"include_cluster_authorized_operations": False}
        body = encode_request(ApiKey.DESCRIBE_CLUSTER, 0, fields)
        client.send_request(ApiKey.DESCRIBE_CLUSTER, 0, body)
        with pytest.raises(TimeoutError):
            client.read_frame_within(1.0)
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, before)
        assert client.answer(ApiKey.DESCRIBE_CLUSTER, 0).error_code == 0
