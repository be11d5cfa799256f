"""Error messages of commands for problems with the broker, the connection or the output."""

import contextlib
import fcntl
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker_process import BrokerProcess, unique_name
from tests.cli.support import COMMAND, Suwi
from tests.security.certificates import Authority
from tests.security.secure_broker import PASSWORDS, SecureBroker

PLAIN_LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority") / "ca")


@pytest.fixture(scope="module")
def secure(
    authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SecureBroker]:
    with SecureBroker(tmp_path_factory.mktemp("secure"), authority, authority.issue("b")) as broker:
        yield broker


class Client:
    """Writes a client.properties and lists topics with it. Returns the output on stderr."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "client.properties"

    def refusal(self, address: str, **properties: object) -> str:
        lines = [f"{key.replace('_', '.')}={value}" for key, value in properties.items()]
        self.file.write_text("\n".join(lines))
        return Suwi(address).refusal("topics", "list", "--command-config", self.file)


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return Client(tmp_path)


# -- TLS and SASL mismatches -----------------------------------------------------------------------


def test_tls_to_a_listener_without_it(broker: BrokerProcess, client: Client) -> None:
    said = client.refusal(broker.address, security_protocol="SSL")
    assert said.startswith(
        f"no broker at {broker.address}: it closed the connection during the TLS handshake. "
    )
    assert "security.protocol" in said
    assert str(client.file) in said
    assert "suwi serve" not in said


@pytest.mark.parametrize("listener", ["SSL", "MTLS", "SASL_SSL"])
def test_plain_text_to_a_listener_with_tls(secure: SecureBroker, listener: str) -> None:
    said = Suwi(secure.at(listener)).refusal("topics", "list")
    assert "closed the connection" in said
    assert "If it requires TLS or SASL, configure it with --command-config FILE" in said


def test_no_sasl_to_a_listener_that_requires_it(
    secure: SecureBroker, authority: Authority, client: Client
) -> None:
    said = Suwi(secure.at("SASL_PLAINTEXT")).refusal("topics", "list")
    assert said.startswith(
        f"no broker at {secure.at('SASL_PLAINTEXT')}: it closed the connection at the first"
    )
    assert "If it requires TLS or SASL, configure it with --command-config FILE" in said
    said = client.refusal(
        secure.at("SASL_SSL"),
        security_protocol="SSL",
        ssl_truststore_location=authority.certificate,
    )
    assert "it closed the connection at the first request" in said
    assert "SASL (security.protocol=SASL_SSL" in said


def test_an_unknown_certificate_authority(secure: SecureBroker, client: Client) -> None:
    said = client.refusal(secure.at("SSL"), security_protocol="SSL")
    assert "its certificate is not trusted: self" in said
    assert "ssl.truststore.location" in said
    assert "_ssl.c" not in said


def test_no_client_certificate_to_a_listener_that_requires_one(
    secure: SecureBroker, authority: Authority, client: Client
) -> None:
    said = client.refusal(
        secure.at("MTLS"), security_protocol="SSL", ssl_truststore_location=authority.certificate
    )
    assert "a client certificate (ssl.keystore.location)" in said


def test_a_wrong_password(secure: SecureBroker, client: Client) -> None:
    (user, password), *_ = PASSWORDS.items()
    login = f'{PLAIN_LOGIN} required username="{user}" password="not it";'
    said = client.refusal(
        secure.at("SASL_PLAINTEXT"),
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_jaas_config=login,
    )
    assert said == "Authentication failed: Invalid username or password"
    assert password not in said


def test_a_mistyped_security_key_is_an_error(suwi: Suwi, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("security.protocl=SSL\nacks=all\nssl.provider=x\n")
    said = suwi.misuse("topics", "list", "--command-config", file)
    assert "unknown key 'security.protocl'; did you mean 'security.protocol'?" in said
    file.write_text("acks=all\nssl.provider=x\nsasl.kerberos.service.name=k\n")
    suwi.ok("topics", "list", "--command-config", file)


def test_a_listener_that_does_not_respond() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        said = Suwi(address).refusal("topics", "list")
    assert said.startswith(f"no broker at {address}: no response in time. ")
    assert "Another program may listen there" in said


def test_a_mistyped_key_of_a_topic_gets_a_suggestion(suwi: Suwi, topic: str) -> None:
    said = suwi.refusal("configs", "set", "topic", topic, "retntion.ms=1")
    assert said == "unknown topic configuration 'retntion.ms'; did you mean 'retention.ms'?"


# -- output that cannot be written -----------------------------------------------------------------


def shell(suwi: Suwi, line: str) -> "subprocess.CompletedProcess[str]":
    """Run a line in a shell."""
    return subprocess.run(
        ["bash", "-c", line],
        env={**suwi.environment(), "PYTHON": COMMAND[0]},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("arguments", ["topics list", "topics list --json", "topics describe"])
def test_a_full_disk_is_reported_once(suwi: Suwi, topic: str, arguments: str) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    ended = shell(suwi, f'"$PYTHON" -m suwi {arguments} > /dev/full')
    assert (ended.returncode, ended.stderr) == (
        1,
        "suwi: cannot write the output: No space left on device\n",
    )


def test_a_command_without_stdout_is_an_error(suwi: Suwi, topic: str) -> None:
    ended = shell(suwi, '"$PYTHON" -m suwi topics list >&-')
    assert (ended.returncode, ended.stderr) == (1, "suwi: cannot write the output: it is closed\n")


def at_terminal(suwi: Suwi, columns: int, *arguments: str) -> str:
    """The output of a command on a terminal of this width, without colours."""
    main, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {k: v for k, v in suwi.environment().items() if k != "COLUMNS"}
    with subprocess.Popen(
        [*COMMAND, *arguments], env=environment, stdin=end, stdout=end, stderr=end
    ) as command:
        os.close(end)
        shown = b""
        try:
            while chunk := os.read(main, 4096):
                shown += chunk
        except OSError:  # Linux: the other end is closed
            pass
        assert command.wait(timeout=60) == 0
    os.close(main)
    return re.sub(r"\x1b\[[\d;]*m", "", shown.decode()).replace("\r\n", "\n")


@pytest.mark.parametrize("columns", [10, 80])
def test_a_narrow_terminal_hides_nothing_and_wraps_no_name(suwi: Suwi, columns: int) -> None:
    name = unique_name("a-topic-with-a-name-that-is-longer-than-the-terminal-is-wide")
    suwi.ok("topics", "create", name, "-p", 2)
    assert re.search(rf"^{name} +2 +1$", at_terminal(suwi, columns, "topics", "list"), re.M)
    shown = at_terminal(suwi, columns, "topics", "describe", name)
    headings = r"^Partition +Leader +Replicas +Isr +StartOffset +EndOffset +Size$"
    assert re.search(headings, shown, re.MULTILINE)
    assert re.search(r"^ +1 +0 +0 +0 +0 +0 +0 B$", shown, re.MULTILINE)


@pytest.mark.parametrize("stdout", [">&-", "> /dev/full", "| true"])
def test_a_broker_runs_even_if_its_output_cannot_be_written(tmp_path: Path, stdout: str) -> None:
    if "full" in stdout and not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    command = f'exec "$PYTHON" -m suwi serve --log-level debug --listen 127.0.0.1:0 {stdout}'
    if "|" in stdout:
        command = command.removeprefix("exec ")
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        serving = subprocess.Popen(
            ["bash", "-c", command],
            env={**Suwi("").environment(), "PYTHON": COMMAND[0]},
            stderr=stderr,
            cwd=tmp_path,
            start_new_session=True,
        )
    try:
        address = _wait_for(log, r"listening .*address=(127\.0\.0\.1:\d+)")
        Suwi(address).ok("topics", "create", "t")
        os.killpg(serving.pid, signal.SIGTERM)
        _wait_for(log, r"(broker stopped .*clean=true)")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(serving.pid, signal.SIGKILL)
        serving.wait()
    assert "Traceback" not in log.read_text()


def _wait_for(log: Path, pattern: str) -> str:
    limit = time.monotonic() + 120
    while True:
        found = re.search(pattern, log.read_text())
        if found is not None:
            return found[1]
        assert time.monotonic() < limit, log.read_text()
        time.sleep(0.05)


# -- prompts ---------------------------------------------------------------------------------------


def test_ctrl_c_at_a_question_ends_the_command_and_deletes_nothing(suwi: Suwi, topic: str) -> None:
    main, end = pty.openpty()
    command = suwi.start("topics", "delete", topic, stdin=end, stdout=end, stderr=end)
    os.close(end)
    try:
        shown = b""
        while b"[y/N]" not in shown:
            shown += os.read(main, 4096)
        time.sleep(0.2)  # until it reads
        command.send_signal(signal.SIGINT)
        assert command.wait(timeout=60) != 0
    finally:
        command.kill()
        command.wait()
        os.close(main)
    assert topic in suwi.ok("topics", "list")


@pytest.mark.parametrize(
    ("command", "exit_code", "problem"),
    [
        ("produce TOPIC", 1, "suwi: stdin is closed: name a file with --file"),
        ("topics delete TOPIC", 1, "suwi: deleting TOPIC needs --yes without a terminal"),
        ("users add ann", 2, "there is no terminal to ask for the password"),
        ("users add ann --password-file -", 2, "-: stdin is closed"),
    ],
)
def test_a_command_without_stdin_says_what_it_needs(
    suwi: Suwi, topic: str, command: str, exit_code: int, problem: str
) -> None:
    ended = shell(suwi, f'"$PYTHON" -m suwi {command.replace("TOPIC", topic)} <&-')
    assert ended.returncode == exit_code
    assert problem.replace("TOPIC", topic) in ended.stderr
    assert "Traceback" not in ended.stderr
