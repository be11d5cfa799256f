"""The source and the sinks over Spark Connect: a session that is a client of another process."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install .[spark]")
pytest.importorskip("deltalake", reason="deltalake is not installed: pip install .[spark]")
pytest.importorskip("grpc_status", reason='no grpcio: pip install "pyspark[connect]"')
pytest.importorskip("pandas", reason='Connect asks for pandas: pip install "pandas<3"')

from suwi.spark.java import NoJava, use_java
from tests.broker_process import SOURCE, BrokerProcess
from tests.spark.topics import fill, make_topic

NEEDS_KAFKA = False
pytestmark = pytest.mark.timeout(900)
_JOB_S = 600


class Ran:
    def __init__(self, found: dict[str, Any], sent: list[bytes | None]) -> None:
        self.found, self.sent = found, sent


@pytest.fixture(scope="module")
def ran(suwi: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    try:
        use_java()
    except NoJava as reason:
        pytest.skip(str(reason))
    folder: Path = tmp_path_factory.mktemp("connect")
    topic, out = make_topic(suwi.address, partitions=2), make_topic(suwi.address)
    fill(suwi.address, topic, [b'{"id": 1}', b'{"id": 2}', b"nonsense"])
    fill(suwi.address, topic, [b'{"id": 3}'], partition=1)
    paths = [str(SOURCE), str(SOURCE.parent), os.environ.get("PYTHONPATH", "")]
    ours = {"PYTHONPATH": os.pathsep.join(paths), "PYSPARK_PYTHON": sys.executable}
    ended = subprocess.run(
        [sys.executable, "-m", "compat.connect_job", suwi.address, topic, out, str(folder)],
        env={**os.environ, **ours, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=_JOB_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-5000:]
    found = json.loads(ended.stdout.splitlines()[-1])
    assert found["session"].startswith("pyspark.sql.connect"), "it is a session of Connect"
    return Ran(found, [record.value for record in suwi.stored_records(out)])


def test_a_batch_is_read(ran: Ran) -> None:
    values = ["nonsense", '{"id": 1}', '{"id": 2}', '{"id": 3}']
    assert ran.found["read_a_batch"] == values


def test_a_stream_goes_into_a_table_once(ran: Ran) -> None:
    assert ran.found["stream_into_a_table"] == [1, 2, 3]


def test_a_table_is_read_as_a_batch_and_as_a_stream(ran: Ran) -> None:
    assert ran.found["read_a_table"] == [[2, 3], [1, 2, 3]]


def test_a_stream_replaces_rows_by_their_keys(ran: Ran) -> None:
    assert ran.found["replace_rows_by_key"] == [1, 2, 3]


def test_a_stream_and_dead_letters_go_into_a_topic(ran: Ran) -> None:
    assert (ran.found["stream_into_a_topic"], ran.found["send_dead_letters"]) == (None, None)
    assert sorted(ran.sent) == [b"1", b"2", b"3", b"nonsense"]


@pytest.mark.xfail(
    strict=True,
    reason="over Connect the job of a foreachBatch knows neither its query nor its batch, so that "
    "a replay could not be told; it is refused",
)
def test_a_table_is_updated(ran: Ran) -> None:
    assert ran.found["update_a_table"] == [1, 2, 3]


def test_what_cannot_be_is_refused_with_a_word(ran: Ran) -> None:
    refusal = "ValueError: mode='update' does not work over Spark Connect: use a classic session"
    assert ran.found["update_a_table"] == refusal
