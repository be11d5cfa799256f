"""`suwi serve --brokers 3`: a cluster in one process."""

import re
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from suwi.cli.main import app
from tests.broker_process import COMMAND, environment

PATIENCE_S = 120


@contextmanager
def cluster(data: Path, *arguments: str) -> Iterator[tuple[list[str], list[str]]]:
    """The startup message, and (afterwards) the output at the end."""
    options = ["--listen", "127.0.0.1:0", "--data", str(data), "--log-level", "error", *arguments]
    with subprocess.Popen(
        [*COMMAND, "serve", *options], stdout=subprocess.PIPE, env=environment(), text=True
    ) as process:
        assert process.stdout is not None
        startup, end = [], []
        for line in process.stdout:
            startup.append(line)
            if "stop with" in line:
                break
        try:
            yield startup, end
            process.send_signal(signal.SIGTERM)
            end += process.communicate(timeout=PATIENCE_S)[0].splitlines()
        finally:
            process.kill()


def addresses(startup: list[str]) -> str:
    (line,) = [line for line in startup if line.startswith("listening on")]
    return ",".join(re.findall(r"PLAINTEXT://([\d.:]+)", line))


def refusal(*arguments: object) -> str:
    options = ["serve", "--log-level", "error", *map(str, arguments)]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 1, result.output
    return result.stderr


def test_three_brokers_serve_and_come_back_with_their_data(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with cluster(data, "--brokers", "3") as (startup, end):
        assert "brokers 1, 2, 3, ready in" in startup[0]
        assert addresses(startup).count(",") == 2
        producer = Producer({"bootstrap.servers": addresses(startup), "acks": "all"})
        producer.produce("water", "high")
        assert producer.flush(PATIENCE_S) == 0
        described = AdminClient({"bootstrap.servers": addresses(startup)}).list_topics(
            "water", PATIENCE_S
        )
        assert sorted(described.topics["water"].partitions[0].replicas) == [1, 2, 3]
        assert sorted(described.brokers) == [1, 2, 3]
    assert end[-1] == "stopped cleanly"
    assert all((data / str(n) / "water-0").is_dir() for n in (1, 2, 3))
    with cluster(data, "--brokers", "3") as (startup, end):
        consumer = Consumer(
            {
                "bootstrap.servers": addresses(startup),
                "group.id": "none",
                "enable.auto.commit": False,
            }
        )
        consumer.assign([TopicPartition("water", 0, 0)])
        message = consumer.poll(PATIENCE_S)
        consumer.close()
        assert message is not None
        assert message.value() == b"high"


def test_each_broker_has_its_own_metrics_port(tmp_path: Path) -> None:
    options = ("--brokers", "2", "--metrics-port", "0")
    with cluster(tmp_path / "data", *options) as (startup, _):
        (line,) = [line for line in startup if line.startswith("metrics at")]
        assert len(set(re.findall(r"http://127\.0\.0\.1:\d+/metrics", line))) == 2


def test_metrics_ports_beyond_the_last_one_are_refused_before_the_start(tmp_path: Path) -> None:
    options = ("--data", tmp_path / "data", "--brokers", 3, "--listen", "127.0.0.1:0")
    said = refusal(*options, "--metrics-port", 65534)
    assert said == "suwi: --metrics-port 65534: 3 brokers need the ports up to 65536\n"
    assert not (tmp_path / "data").exists()


def test_metrics_are_served_on_the_given_address(tmp_path: Path) -> None:
    options = ("--metrics-host", "127.0.0.2", "--metrics-port", "0")
    with cluster(tmp_path / "data", *options) as (startup, _):
        (line,) = [line for line in startup if line.startswith("metrics at")]
        url = line.split()[2]
        assert url.startswith("http://127.0.0.2:")
        with urllib.request.urlopen(url) as response:
            assert b"suwi_live_brokers 1.0" in response.read()


def test_the_data_of_one_broker_is_not_used_by_several_and_vice_versa(tmp_path: Path) -> None:
    with cluster(tmp_path / "one"), cluster(tmp_path / "many", "--brokers", "2"):
        pass
    assert "start without --brokers" in refusal("--data", tmp_path / "one", "--brokers", 2)
    assert "start with --brokers" in refusal("--data", tmp_path / "many")


def test_data_without_metadata_is_refused_in_subdirectories_too(tmp_path: Path) -> None:
    (tmp_path / "data" / "2" / "water-0").mkdir(parents=True)
    message = refusal("--data", tmp_path / "data", "--brokers", 2)
    assert "holds partitions (water-0)" in message


def test_one_port_in_use_prevents_all_brokers_from_starting(tmp_path: Path) -> None:
    with cluster(tmp_path / "first") as (startup, _):
        address = addresses(startup)
        message = refusal("--data", tmp_path / "data", "--brokers", 2, "--listen", address)
    assert f"cannot listen on {address}" in message


def test_adopt_works_with_one_broker_only(tmp_path: Path) -> None:
    assert "--adopt" in refusal("--data", tmp_path / "data", "--brokers", 2, "--adopt")


def test_brokers_that_cannot_authenticate_to_each_other_do_not_start(tmp_path: Path) -> None:
    said = refusal(
        *("--data", tmp_path / "data", "--brokers", "3"),
        *("--set", "listeners=SASL_PLAINTEXT://127.0.0.1:0"),
        *("--set", "sasl.enabled.mechanisms=SCRAM-SHA-512"),
    )
    assert "set sasl.mechanism.inter.broker.protocol" in said
