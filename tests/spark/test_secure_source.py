"""Reading through TLS and log-ins; and what a query shows of its secrets: nothing."""

from collections.abc import Iterator

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from suwi.client.security import AuthenticationFailed
from suwi.spark import dead_letter, to_topic
from suwi.spark.options import BadOption
from tests.raw_client import RawClient
from tests.security.certificates import Authority
from tests.security.conftest import add_scram_users
from tests.security.secure_broker import PASSWORDS, SCRAM_PASSWORDS, SecureBroker
from tests.spark.readers import read_batch, stop_readers, values
from tests.spark.topics import fill, make_topic


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    authority = Authority(tmp_path_factory.mktemp("authority") / "ca")
    folder = tmp_path_factory.mktemp("secure")
    with SecureBroker(folder, authority, authority.issue("broker")) as process:
        with RawClient(process.address) as client:
            add_scram_users(client, SCRAM_PASSWORDS)
        yield process


@pytest.fixture(scope="module")
def topic(secure: SecureBroker) -> str:
    name = make_topic(secure.address)
    fill(secure.address, name, [b"hidden"])
    return name


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    yield
    stop_readers()


def log_in(mechanism: str, user: str, password: str) -> dict[str, str]:
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    return {
        "kafka.sasl.mechanism": mechanism,
        "kafka.sasl.jaas.config": f"org.apache.kafka.common.security.{module} required "
        f'username="{user}" password="{password}";',
    }


def test_a_query_reads_through_tls(secure: SecureBroker, topic: str) -> None:
    trust = {
        "kafka.security.protocol": "SSL",
        "kafka.ssl.truststore.location": str(secure.authority.certificate),
    }
    assert values(read_batch(secure.at("SSL"), subscribe=topic, **trust)) == ["hidden"]
    mutual = {**trust, "kafka.ssl.keystore.location": str(secure.authority.issue("me").both)}
    assert values(read_batch(secure.at("MTLS"), subscribe=topic, **mutual)) == ["hidden"]


@pytest.mark.parametrize(
    ("mechanism", "user", "password"),
    [
        ("PLAIN", "alice", PASSWORDS["alice"]),
        ("SCRAM-SHA-256", "carol", SCRAM_PASSWORDS["carol"]),
        ("SCRAM-SHA-512", "dave", SCRAM_PASSWORDS["dave"]),
    ],
)
def test_a_query_logs_in(
    secure: SecureBroker, topic: str, mechanism: str, user: str, password: str
) -> None:
    options = {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.ssl.truststore.certificates": secure.authority.certificate.read_text(),
        **log_in(mechanism, user, password),
    }
    assert values(read_batch(secure.at("SASL_SSL"), subscribe=topic, **options)) == ["hidden"]


def test_rows_and_dead_letters_are_written_through_tls_and_a_log_in(
    spark: SparkSession, secure: SecureBroker
) -> None:
    options = {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.ssl.truststore.certificates": secure.authority.certificate.read_text(),
        **log_in("SCRAM-SHA-512", "dave", SCRAM_PASSWORDS["dave"]),
    }
    name, bad = make_topic(secure.address), make_topic(secure.address)
    to_topic(spark.sql("SELECT 'hidden' AS value"), secure.at("SASL_SSL"), name, options=options)
    columns = "'t' AS topic, 0 AS partition, 7L AS offset, now() AS timestamp, X'00' AS key"
    dead = spark.sql(f"SELECT {columns}, X'ff' AS value, 'not JSON' AS reason")
    dead_letter(dead, secure.at("SASL_SSL"), bad, options=options)
    assert values(read_batch(secure.at("SASL_SSL"), subscribe=name, **options)) == ["hidden"]
    (letter,) = read_batch(secure.at("SASL_SSL"), subscribe=bad, **options)
    assert letter["value"] == b"\xff"


def test_a_wrong_password_is_told_at_once_and_not_shown(secure: SecureBroker, topic: str) -> None:
    options = {
        "kafka.security.protocol": "SASL_PLAINTEXT",
        **log_in("PLAIN", "alice", "wrong-secret"),
    }
    with pytest.raises(AuthenticationFailed) as failed:
        read_batch(secure.at("SASL_PLAINTEXT"), subscribe=topic, **options)
    assert "wrong-secret" not in str(failed.value)


def test_stores_of_java_are_refused_with_the_way_out(secure: SecureBroker, topic: str) -> None:
    store = secure.authority.pkcs12(secure.authority.issue("java"), "changeit")
    options = {
        "kafka.security.protocol": "SSL",
        "kafka.ssl.truststore.type": "PKCS12",
        "kafka.ssl.truststore.location": str(store),
        "kafka.ssl.truststore.password": "changeit",
    }
    with pytest.raises(BadOption, match="openssl pkcs12"):
        read_batch(secure.at("SSL"), subscribe=topic, **options)


def test_secrets_are_in_no_plan_and_no_error(
    spark: SparkSession, secure: SecureBroker, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = PASSWORDS["alice"]
    options = {
        "kafka.bootstrap.servers": secure.at("SASL_PLAINTEXT"),
        "subscribe": topic,
        "kafka.security.protocol": "SASL_PLAINTEXT",
        **log_in("PLAIN", "alice", secret),
    }
    good = spark.read.format("suwi").options(**options).load()
    assert [bytes(row.value) for row in good.collect()] == [b"hidden"]
    options["kafka.ssl.keystore.key"] = "-----BEGIN PRIVATE KEY-----"
    stream = spark.readStream.format("suwi").options(**options).load()
    for plan in (good, stream):
        plan.explain("extended")
        plan.explain("formatted")
    with pytest.raises(PySparkException) as failed:
        stream.select("no such column")
    shown = capsys.readouterr().out + str(failed.value)
    assert "BatchScan suwi" in shown
    assert "kafka.bootstrap.servers" in shown  # Spark shows the options of a stream
    assert secret not in shown
    assert "PRIVATE KEY" not in shown
    del options["kafka.ssl.keystore.key"]
    for change in ({"startingOffsets": "sometime"}, {"kafka.sasl.mechanism": "GSSAPI"}):
        with pytest.raises(PySparkException) as failed:
            spark.read.format("suwi").options(**{**options, **change}).load()
        assert "BadOption" in str(failed.value)
        assert secret not in str(failed.value)
