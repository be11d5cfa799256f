"""Apache Kafka's own tools over TLS and SASL, as administrators of both would use them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from compat.kafka import ToolFailed, run_java
from compat.test_tools import CONFIGS, CONSUME, PRODUCE, TOPICS
from tests.security.certificates import Authority, Identity
from tests.security.clients import Access, client_properties
from tests.security.secure_broker import PASSWORDS, SESSION_MS, SecureBroker

NEW_USER, NEW_PASSWORD = "eve", "eve-Passw0rd"
WAYS_IN = (
    "SSL",
    "MTLS",
    "SASL_SSL PLAIN",
    "SASL_SSL SCRAM-SHA-256",
    "SASL_PLAINTEXT SCRAM-SHA-512",
)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority") / "ca")


@pytest.fixture(scope="module")
def identity(authority: Authority) -> Identity:
    return authority.issue("alice")


@pytest.fixture(scope="module")
def secure(
    authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SecureBroker]:
    """With a user that kafka-configs has created."""
    with SecureBroker(tmp_path_factory.mktemp("secure"), authority, authority.issue("b")) as broker:
        passwords = ",".join(
            f"{mechanism}=[iterations=8192,password={NEW_PASSWORD}]"
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
        )
        _alter_user(broker, NEW_USER, "--add-config", passwords)
        yield broker
        assert "Traceback" not in broker.log
        assert NEW_PASSWORD not in broker.log


def _alter_user(broker: SecureBroker, name: str, *what: str) -> None:
    user = ("--entity-type", "users", "--entity-name", name)
    run_java(CONFIGS, "--bootstrap-server", broker.address, "--alter", *user, *what)


class Tools:
    """Kafka's tools with a client.properties for one kind of access."""

    def __init__(self, broker: SecureBroker, folder: Path, listener: str, access: Access) -> None:
        file = folder / "client.properties"
        properties = client_properties(access).items()
        file.write_text("\n".join(f"{k}={v}".replace("\\", "\\\\") for k, v in properties))
        self._options = ("--bootstrap-server", broker.at(listener), "--command-config", str(file))

    def __call__(self, tool: str, *arguments: str, stdin: str = "") -> str:
        return run_java(tool, *self._options, *arguments, stdin=stdin)


@pytest.mark.parametrize("way_in", WAYS_IN)
def test_kafkas_tools_get_in_and_do_their_work(
    secure: SecureBroker,
    authority: Authority,
    identity: Identity,
    tmp_path: Path,
    topic: str,
    way_in: str,
) -> None:
    listener, _, mechanism = way_in.partition(" ")
    access = Access(
        "SSL" if listener == "MTLS" else listener,
        None if listener == "SASL_PLAINTEXT" else authority.certificate,
        identity if listener == "MTLS" else None,
        mechanism,
    )
    if mechanism == "PLAIN":
        user, password = next(iter(PASSWORDS.items()))
        access = access._replace(user=user, password=password)
    elif mechanism:
        access = access._replace(user=NEW_USER, password=NEW_PASSWORD)
    kafka = Tools(secure, tmp_path, listener, access)
    assert f"Created topic {topic}" in kafka(TOPICS, "--create", "--topic", topic)
    lines = [f"line {n}" for n in range(500)]
    kafka(PRODUCE, "--topic", topic, stdin="\n".join(lines))
    read = kafka(
        CONSUME,
        *("--topic", topic, "--partition", "0", "--offset", "earliest"),
        *("--max-messages", str(len(lines)), "--timeout-ms", "60000"),
    )
    assert read.splitlines()[: len(lines)] == lines


def test_kafkas_tools_are_told_that_a_password_is_wrong(
    secure: SecureBroker, tmp_path: Path
) -> None:
    access = Access("SASL_PLAINTEXT", None, None, "SCRAM-SHA-256", NEW_USER, "not it")
    kafka = Tools(secure, tmp_path, "SASL_PLAINTEXT", access)
    with pytest.raises(ToolFailed, match="invalid credentials with SASL mechanism SCRAM-SHA-256"):
        kafka(TOPICS, "--list")


def test_a_user_that_kafka_configs_has_removed_stays_out(
    secure: SecureBroker, tmp_path: Path
) -> None:
    _alter_user(secure, "mallory", "--add-config", "SCRAM-SHA-256=[password=for-now]")
    access = Access("SASL_PLAINTEXT", None, None, "SCRAM-SHA-256", "mallory", "for-now")
    kafka = Tools(secure, tmp_path, "SASL_PLAINTEXT", access)
    kafka(TOPICS, "--list")
    _alter_user(secure, "mallory", "--delete-config", "SCRAM-SHA-256")
    with pytest.raises(ToolFailed, match="invalid credentials"):
        kafka(TOPICS, "--list")


def test_kafkas_producer_renews_its_session_in_time(
    secure: SecureBroker, tmp_path: Path, topic: str
) -> None:
    user, password = next(iter(PASSWORDS.items()))
    access = Access("SASL_PLAINTEXT", None, None, "PLAIN", user, password)
    kafka = Tools(secure, tmp_path, "SHORT", access)
    kafka(TOPICS, "--create", "--topic", topic)
    seconds = SESSION_MS * 4 // 1000
    printed = kafka(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", topic, "--num-records", str(seconds * 100), "--throughput", "100"),
        *("--record-size", "100"),
    )
    assert f"{seconds * 100} records sent" in printed
    assert "authentication has expired" not in secure.log
