"""Common behaviour of all commands: fast help, clear errors, exit codes."""

import socket
import subprocess
from pathlib import Path

import pytest

from suwi.admin.server_properties import from_environment
from suwi.cli.main import COMMANDS
from tests.broker_process import BrokerProcess
from tests.cli.support import COMMAND, Suwi

TALKS_TO_A_BROKER = [
    "topics create t",
    "topics list",
    "topics describe",
    "topics describe t",
    "topics alter t --partitions 2",
    "topics delete t --yes",
    "configs describe topic t",
    "configs describe broker 0",
    "configs describe broker all",
    "configs set topic t retention.ms=1",
    "configs set broker all log.retention.ms=1",
    "configs unset topic t retention.ms",
    "cluster events",
    "groups describe g",
    "groups history g",
    "transactions describe t",
    "produce t --file {file}",
    "consume t",
    "consume t --from-beginning --no-follow --json",
]


@pytest.fixture
def dead_address() -> str:
    """An address on which no program listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return f"127.0.0.1:{port}"


@pytest.mark.parametrize("command", TALKS_TO_A_BROKER)
def test_the_error_for_a_dead_broker_names_it_and_says_what_to_do(
    command: str, dead_address: str, tmp_path: Path
) -> None:
    (tmp_path / "lines").write_text("x\n")
    words = command.format(file=tmp_path / "lines").split()
    message = Suwi("unused").refusal(*words, "--broker", dead_address)
    assert message.startswith(f"no broker at {dead_address}: connection refused")
    assert "suwi serve" in message


def test_the_error_names_every_address_that_was_tried(dead_address: str) -> None:
    message = Suwi(f"{dead_address},nowhere.invalid:1").refusal("topics", "list")
    assert dead_address in message
    assert "nowhere.invalid:1" in message


def test_one_of_several_addresses_is_enough(broker: BrokerProcess, dead_address: str) -> None:
    Suwi(f"{dead_address},{broker.address}").ok("topics", "list")


@pytest.mark.parametrize("address", ["", "host:", "host:x", "::1:9092"])
def test_an_invalid_address_is_a_usage_error(address: str) -> None:
    message = Suwi("unused").misuse("topics", "list", "--broker", address)
    assert "--broker" in message
    assert "9092" in message


@pytest.mark.parametrize(
    "command",
    [
        "topics",
        "topics create",
        "topics create t --partitions 0",
        "topics create t --partitions many",
        "topics create t --config retention.ms",
        "topics alter t",
        "topics alter t --config a=1 --unset a",
        "topics delete",
        "topics destroy t",
        "configs",
        "configs describe",
        "configs describe topic",
        "configs describe user u",
        "groups",
        "groups describe g --state Empty",
        "groups reset",
        "groups reset g --topic t --shift-by far",
        "groups delete",
        "groups history",
        "groups history g --limit 0",
        "configs describe broker one",
        "configs set topic t",
        "configs set topic t retention.ms",
        "configs unset topic t",
        "produce",
        "produce t --acks 2",
        "produce t --compression rar",
        "produce t --partition -1",
        "produce t --header h",
        "produce t --json --key-separator :",
        "consume",
        "consume t --offset many",
        "consume t --offset 99999999999999999999",
        "consume t --from-time yesterday",
        "consume t --offset 1 --from-beginning",
        "consume t --count 0",
        "dump",
        "topics list --command-config /does/not/exist",
        "nothing",
    ],
)
def test_a_usage_error_shows_the_usage(suwi: Suwi, command: str) -> None:
    suwi.misuse(*command.split())


def test_a_listener_that_closes_the_connection_may_require_sasl() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        command = Suwi(address).start("topics", "list", stderr=subprocess.PIPE)
        server.accept()[0].close()
        _, said = command.communicate(timeout=120)
    assert command.returncode == 1
    assert b"--command-config" in said


def test_a_broker_starts_without_modules_that_few_need() -> None:
    program = (
        "import sys\n"
        "import suwi.cli.main, suwi.cli.serve, suwi.cli.broker_process\n"
        "rare = {'cramjam', 'kazoo', 'prometheus_client', 'suwi.client.admin', 'suwi.console', "
        "'suwi.decoders', 'suwi.local_cluster'}\n"
        "print(sorted(rare & set(sys.modules)))\n"
    )
    ended = subprocess.run(
        [COMMAND[0], "-c", program],
        env=Suwi("").environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.strip() == "[]"


def test_help_does_not_import_what_commands_need() -> None:
    program = (
        "import sys\n"
        "from suwi.cli.main import app\n"
        "try:\n"
        "    app(['--help'])\n"
        "except SystemExit:\n"
        "    pass\n"
        "heavy = {'kio.schema', 'kio.serial', 'cramjam', 'rich', 'ssl', 'asyncio', 'kazoo', "
        "'prometheus_client'}\n"
        "sys.stderr.write(' '.join(sorted(heavy & set(sys.modules))))\n"
    )
    ended = subprocess.run(
        [COMMAND[0], "-c", program],
        env=Suwi("").environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stderr == ""
    for name in "serve topics configs produce consume dump".split():
        assert name in ended.stdout


def test_help_says_of_each_command_what_the_command_says_of_itself(suwi: Suwi) -> None:
    for name, text in COMMANDS.items():
        said = " ".join(suwi.ok(name, "--help").split())
        assert text in said, name
    assert "Did you mean 'topics'?" in suwi.misuse("topic")


@pytest.mark.parametrize(
    "command",
    [
        "topics create",
        "topics list",
        "topics describe",
        "topics alter",
        "topics delete",
        "configs describe",
        "configs set",
        "configs unset",
        "cluster events",
        "produce",
        "consume",
        "dump",
    ],
)
def test_help_fits_a_terminal_of_80_columns(suwi: Suwi, command: str) -> None:
    lines = suwi.ok(*command.split(), "--help").splitlines()
    assert max(len(line) for line in lines) <= 83  # a line of JSON is not wrapped
    assert lines[0].startswith("Usage: ")


def test_the_environment_variable_suwi_broker_does_not_affect_a_broker() -> None:
    assert from_environment({"SUWI_BROKER": "h:1", "SUWI_COMMAND_CONFIG": "f"}) == []
