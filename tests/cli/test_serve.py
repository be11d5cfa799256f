"""`suwi serve`: help, refusals, start and stop."""

import logging
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from suwi import __version__
from suwi.cli.main import app
from tests.broker_process import COMMAND, SOURCE, BrokerProcess

SETTINGS_FROM_OUTSIDE = ("SUWI_", "KAFKA_")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in os.environ:
        if name.startswith(SETTINGS_FROM_OUTSIDE):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def suwi(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refusal(*arguments: object) -> str:
    """The error of a `suwi serve` that must not start: one line, no traceback."""
    result = suwi("serve", "--log-level", "error", *arguments)
    assert result.exit_code == 1, result.output
    (line,) = result.stderr.splitlines()
    assert line.startswith("suwi: ")
    return line.removeprefix("suwi: ")


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


# -- help ------------------------------------------------------------------------------------------


def test_without_arguments_the_commands_are_listed() -> None:
    assert "serve" in suwi().output


def test_help_names_every_option_and_where_settings_come_from() -> None:
    help_text = suwi("serve", "--help").output
    for (
        word
    ) in "--listen --data --config --set --insecure --log-level SUWI_LOG_RETENTION_MS".split():
        assert word in help_text
    assert "--no-insecure" not in help_text


def test_version_is_printed() -> None:
    assert suwi("--version").output == f"suwi {__version__}\n"


def test_a_mistyped_command_gets_a_suggestion() -> None:
    result = suwi("serv")
    assert result.exit_code == 2
    assert "'serve'" in result.output


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("listen", ["9092", "localhost", "localhost:", "localhost:kafka"])
def test_an_address_without_a_port_is_refused_with_an_example(listen: str) -> None:
    assert refusal("--listen", listen) == (
        f"--listen {listen}: give it as HOST:PORT, like 127.0.0.1:9092"
    )


def test_an_address_may_be_given_as_in_kafka() -> None:
    assert refusal("--listen", "PLAINTEXT://0.0.0.0:9092") == refusal("--listen", "0.0.0.0:9092")
    assert "NONSENSE" in refusal("--listen", "NONSENSE://127.0.0.1:9092")


@pytest.mark.parametrize("listen", ["0.0.0.0:9092", ":9092", "[::]:9092", "192.0.2.1:9092"])
def test_plain_text_for_other_machines_is_refused_without_insecure(listen: str) -> None:
    assert "add --insecure" in refusal("--listen", listen)


def test_a_port_in_use_is_named(taken_port: int) -> None:
    listen = f"127.0.0.1:{taken_port}"
    assert refusal("--listen", listen).startswith(f"cannot listen on {listen}: another program")


def test_the_listener_that_cannot_be_bound_is_named_among_several(taken_port: int) -> None:
    listeners = f"A://127.0.0.1:0,B://127.0.0.1:{taken_port}"
    protocols = "listener.security.protocol.map=A:PLAINTEXT,B:PLAINTEXT"
    message = refusal("--set", f"listeners={listeners}", "--set", protocols)
    assert message.startswith(f"cannot listen on 127.0.0.1:{taken_port}: ")


def test_a_port_for_metrics_that_is_in_use_is_named(taken_port: int) -> None:
    message = refusal("--listen", "127.0.0.1:0", "--metrics-port", taken_port)
    assert message.startswith(
        f"--metrics-port {taken_port}: cannot listen on 127.0.0.1:{taken_port}: another program"
    )


def test_a_file_in_place_of_the_data_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for data in ("file", "file/below"):
        assert refusal("--data", data) == f"cannot keep data in {data}: it is not a directory"


def test_partitions_without_metadata_are_refused(tmp_path: Path) -> None:
    (tmp_path / "kafka" / "orders-0").mkdir(parents=True)
    message = refusal("--data", "kafka")
    assert message.startswith("kafka holds partitions (orders-0) but no suwi-metadata.sqlite")
    assert refusal("--data", "new,kafka") == message


def test_the_directory_with_the_metadata_comes_first(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "suwi-metadata.sqlite").touch()
    assert refusal("--data", "new,old") == "old holds the metadata: name it first in log.dirs"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_write_permission_is_refused(tmp_path: Path) -> None:
    (tmp_path / "fixed").mkdir(mode=0o555)
    refused = "Permission denied"
    assert refusal("--data", "fixed/below") == f"cannot keep data in fixed/below: {refused}"
    file = "fixed/suwi-metadata.sqlite"
    assert refusal("--data", "fixed") == f"cannot keep data in {file}: {refused}"


def test_damaged_metadata_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "suwi-metadata.sqlite").write_bytes(b"no database" * 100)
    assert refusal("--data", "data").startswith("cannot use data/suwi-metadata.sqlite: ")


def test_a_broker_without_a_data_directory_is_refused() -> None:
    assert refusal("--data", "") == "log.dirs is empty: name a directory for the data"


def test_a_configuration_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert refusal("--config", "none") == "--config none: No such file or directory"
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    assert refusal("--config", "binary") == "--config binary: not a text file in UTF-8"


def test_bad_keys_and_values_are_named_with_what_is_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "did you mean 'log.retention.ms'?" in refusal("--set", "log.retention.mss=1")
    assert "allowed: a whole number from 1024" in refusal("--set", "log.segment.bytes=1")
    assert "allowed: true or false" in refusal("--set", "auto.create.topics.enable=yes")
    monkeypatch.setenv("SUWI_NUM_PARTITIONS", "many")
    assert refusal().startswith("SUWI_NUM_PARTITIONS: invalid value 'many'")


def test_an_unknown_log_level_is_refused() -> None:
    assert refusal("--log-level", "loud").endswith("allowed: debug, info, warning, error")


def test_a_refused_configuration_creates_no_files(tmp_path: Path) -> None:
    refusal("--set", "no.such.key=1")
    refusal("--listen", "0.0.0.0:9092")
    assert list(tmp_path.iterdir()) == []


# -- running ---------------------------------------------------------------------------------------


def test_the_directory_of_a_running_broker_is_refused_to_a_second(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data"):
        message = refusal("--data", tmp_path / "data", "--listen", "127.0.0.1:0")
    assert message.startswith(f"{tmp_path}/data is in use by another broker")


def test_the_directory_of_another_broker_id_is_refused(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        broker.stop()
    message = refusal("--data", tmp_path / "data", "--set", "node.id=4")
    assert "belongs to broker 0" in message


def test_a_broker_prints_its_addresses_and_stops_cleanly(tmp_path: Path) -> None:
    arguments = ["--listen", "127.0.0.1:0", "--data", "data", "--set", "num.io.threads=8"]
    with subprocess.Popen(
        [*COMMAND, "serve", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        text=True,
    ) as broker:
        assert broker.stdout is not None
        greeting = [broker.stdout.readline() for _ in range(4)]
        broker.send_signal(signal.SIGTERM)
        said, logged = broker.communicate(timeout=120)
    assert broker.returncode == 0
    assert greeting[0].startswith(f"Suwi {__version__}, broker 0, ready in ")
    assert re.fullmatch(r"listening on  PLAINTEXT://127\.0\.0\.1:[1-9]\d+\n", greeting[1])
    assert greeting[2] == f"data in       {tmp_path}/data\n"
    assert said == "stopping ...\nstopped cleanly\n"
    assert "configuration has no effect here key=num.io.threads" in logged
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ((), "--brokers 3"),
        (("--brokers", 3, "--metrics-port", 0), "--metrics-port"),
        (("--brokers", 3, "--listen", "0.0.0.0:9092", "--insecure"), "127.0.0.1"),
        (("--brokers", 3, "--data", "a,b"), "one data directory"),
    ],
)
def test_faults_are_for_several_brokers_on_loopback(
    options: tuple[object, ...], reason: str
) -> None:
    assert reason in refusal("--faults", *options)
