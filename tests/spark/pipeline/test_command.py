"""`suwi pipeline run` as people run it: in a process of its own, until it is told to stop."""

import os
import re
import signal
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("yaml", reason="PyYAML is not installed: pip install .[spark]")
pytest.importorskip("deltalake", reason="deltalake is not installed: pip install .[spark]")

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from chaos.processes import descendants
from tests.broker_process import SOURCE, BrokerProcess
from tests.cli.support import COMMAND, Suwi
from tests.spark.topics import fill, make_topic

PATIENCE_S = 400
PIPELINE = """\
name: orders
source: {{servers: "${{BROKER}}", topics: {topic}}}
decode: {{json: id BIGINT}}
python: own_module:doubled
sink: {{delta: {folder}/table}}
dead_letters: drop
checkpoint: {folder}/checkpoint
spark: {{spark.ui.enabled: "false"}}
"""
MODULE = """\
from pyspark.sql.functions import udf

@udf("bigint")
def twice(number):
    return 2 * number

def doubled(records):
    return records.select(twice("id").alias("id"))
"""


@pytest.mark.slow
def test_a_pipeline_runs_with_metrics_until_sigterm(broker: BrokerProcess, tmp_path: Path) -> None:
    topic = make_topic(broker.address)
    fill(broker.address, topic, [b'{"id": 1}'])
    (tmp_path / "orders.yaml").write_text(PIPELINE.format(topic=topic, folder=tmp_path))
    (tmp_path / "own_module.py").write_text(MODULE)  # found by driver and workers beside the file
    with (tmp_path / "said").open("w") as said:
        command = ["pipeline", "run", str(tmp_path / "orders.yaml"), "--metrics-port", "0"]
        process = subprocess.Popen(
            [*COMMAND, *command, "--master", "local[1]"],
            cwd="/",
            env={**os.environ, "PYTHONPATH": str(SOURCE), "BROKER": broker.address},
            stderr=said,
        )
    try:
        port = _wait(process, tmp_path / "said", r"metrics on http://127\.0\.0\.1:(\d+)/metrics")
        assert _scrape(process, port, 'suwi_pipeline_rows_total{query="orders"} 1.0')
        metrics = _scrape(process, port, 'suwi_pipeline_lag{partition="[^"]*",query="orders"} 0.0')
        age = re.search(r'last_batch_age_seconds{query="orders"} ([0-9.e-]+)', metrics)
        assert age is not None
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
    text = (tmp_path / "said").read_text()
    assert "Traceback" not in text
    assert "4 shuffle partitions (spark.sql.shuffle.partitions)" in text
    last = text.splitlines()[-1]
    assert last.startswith(f"orders: topic {topic} → {tmp_path}/table, batch 0, 1 rows, ")
    rows = DeltaTable(str(tmp_path / "table")).to_pyarrow_table().to_pylist()
    assert rows == [{"id": 2}]
    (status,) = Suwi(broker.address).json("pipeline", "status")
    assert (status["pipeline"], status["state"], status["error"]) == ("orders", "stopped", None)
    (query,) = status["queries"]
    assert (query["batch"], query["rows"], query["lag"]) == (0, 1, 0)


@pytest.mark.slow
def test_a_run_ends_in_order_although_its_java_gets_the_signal_first(tmp_path: Path) -> None:
    """Systemd tells all processes of a service, `kill -- -GROUP` those of a group."""
    write_deltalake(str(tmp_path / "from"), pa.table({"id": [1]}))
    (tmp_path / "copy.yaml").write_text(
        f"name: copy\nsource: {{delta: {tmp_path}/from}}\ncheckpoint: {tmp_path}/checkpoint\n"
        f"sql: SELECT id + 1 AS id FROM records\nsink: {{delta: {tmp_path}/to}}\n"
    )
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen(
            [*COMMAND, "pipeline", "run", str(tmp_path / "copy.yaml"), "--metrics-port", "0"],
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
            stderr=said,
        )
    try:
        port = _wait(process, tmp_path / "said", r"metrics on http://127\.0\.0\.1:(\d+)/metrics")
        assert _scrape(process, port, 'suwi_pipeline_rows_total{query="copy"} 1.0')
        everyone = [*(pid for pid, _ in descendants(process.pid)), process.pid]
        for pid in everyone:
            os.kill(pid, signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
    *first, last = (tmp_path / "said").read_text().splitlines()
    assert last.startswith("copy: ")
    assert ", 1 rows, " in last
    strange = re.compile(r"(?!copy: |WARNING: Using incubator)|.*starting again")
    assert [line for line in first if strange.match(line)] == []


@pytest.mark.slow
def test_the_last_line_of_a_run_that_failed_is_the_reason(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    """Earlier each attempt printed up to 85 lines of Java's trace, and more lines followed."""
    topic = make_topic(broker.address)
    fill(broker.address, topic, [b'{"id": 1}'])
    (tmp_path / "orders.yaml").write_text(PIPELINE.format(topic=topic, folder=tmp_path))
    (tmp_path / "own_module.py").write_text(MODULE.replace("2 * number", "number / 0"))
    ran = subprocess.run(
        [*COMMAND, "pipeline", "run", str(tmp_path / "orders.yaml"), "--once", "--retries", "1"],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "BROKER": broker.address},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ran.returncode == 1
    lines = ran.stderr.splitlines()
    assert lines[-1] == "orders: failed, 2 times: ZeroDivisionError: division by zero"
    assert not [line for line in lines if line.startswith(("\tat ", "Traceback", "  File "))]


@pytest.mark.slow
def test_layers_of_a_directory_run_in_one_spark(broker: BrokerProcess, tmp_path: Path) -> None:
    topic = make_topic(broker.address)
    fill(broker.address, topic, [b'{"id": 1}', b'{"id": 2}'])
    (tmp_path / "orders.yaml").write_text(PIPELINE.format(topic=topic, folder=tmp_path))
    (tmp_path / "own_module.py").write_text(MODULE)
    (tmp_path / "earlier-by-name.yaml").write_text(
        f"name: sums\nsource: {{delta: {tmp_path}/table}}\ncheckpoint: {tmp_path}/c2\n"
        "sql: SELECT id + 1 AS id FROM records\n"
        f"sink: {{delta: {tmp_path}/more}}\nspark: {{spark.sql.shuffle.partitions: 3}}\n"
    )
    ran = subprocess.run(
        [*COMMAND, "pipeline", "run", str(tmp_path), "--once", "--master", "local[1]"],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "BROKER": broker.address},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count("starting Spark") == 1
    rows = DeltaTable(str(tmp_path / "more")).to_pyarrow_table().to_pylist()
    assert sorted(row["id"] for row in rows) == [3, 5]


def _wait(process: "subprocess.Popen[bytes]", file: Path, pattern: str) -> str:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        found = re.search(pattern, file.read_text())
        if found:
            return found[1]
        assert process.poll() is None, file.read_text()
        time.sleep(0.1)
    raise AssertionError(file.read_text())


def _scrape(process: "subprocess.Popen[bytes]", port: str, pattern: str) -> str:
    """The metrics, as soon as one is as it should be."""
    end, text = time.monotonic() + PATIENCE_S, ""
    while time.monotonic() < end:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as page:
            text = page.read().decode()
        if re.search(pattern, text):
            return text
        assert process.poll() is None
        time.sleep(0.2)
    raise AssertionError(text)
