"""Real clients over every protocol: produce and consume, and failed authentication."""

import pytest

from tests.broker_process import unique_name
from tests.raw_client import RawClient
from tests.security.certificates import Authority, Identity
from tests.security.clients import CLIENTS, Access, Client, Suwi
from tests.security.secure_broker import PASSWORDS, SCRAM_PASSWORDS, SecureBroker

ACCESSES = ["SSL", "MTLS"] + [
    f"{protocol} {mechanism}"
    for protocol in ("SASL_PLAINTEXT", "SASL_SSL")
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
]


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> Client:
    return CLIENTS[request.param]()


@pytest.fixture(params=ACCESSES)
def listener_access(
    request: pytest.FixtureRequest, authority: Authority, alice: Identity
) -> tuple[str, Access]:
    """A listener and the credentials for it."""
    listener, _, mechanism = request.param.partition(" ")
    if listener == "MTLS":
        return listener, Access("SSL", authority.certificate, alice)
    users = PASSWORDS if mechanism == "PLAIN" else SCRAM_PASSWORDS
    user, password = next(iter(users.items())) if mechanism else ("", "")
    ca = authority.certificate if listener.endswith("SSL") else None
    return listener, Access(listener, ca, None, mechanism, user, password)


@pytest.fixture(scope="module")
def alice(authority: Authority) -> Identity:
    return authority.issue("alice", "/O=Example/CN=alice")


def test_what_is_written_is_read(
    broker: SecureBroker, client: Client, listener_access: tuple[str, Access]
) -> None:
    listener, access = listener_access
    topic = unique_name("secure")
    with RawClient(broker.address) as raw:
        raw.create_topic(topic)
    # The larger ones are sent in parts; without TLS with sendfile.
    values = [b"small", bytes(range(256)) * 800, b"", b"x" * 300_000, b"last"]
    client.produce(broker.at(listener), access, topic, values)
    assert client.consume(broker.at(listener), access, topic, len(values)) == values
    with RawClient(broker.address) as raw:
        assert raw.fetch(topic, 0, partition_max_bytes=1 << 22).high_watermark == len(values)


def test_suwis_client_logs_in(broker: SecureBroker, listener_access: tuple[str, Access]) -> None:
    listener, access = listener_access
    users = Suwi().ask_users(broker.at(listener), access)
    assert set(SCRAM_PASSWORDS) <= set(users)


ANYBODY = {**CLIENTS, "suwi": Suwi}


@pytest.mark.parametrize("name", ANYBODY)
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("user", ["known", "unknown"])
def test_a_wrong_password_and_an_unknown_user_are_refused(
    broker: SecureBroker, name: str, mechanism: str, user: str
) -> None:
    users = PASSWORDS if mechanism == "PLAIN" else SCRAM_PASSWORDS
    login = next(iter(users)) if user == "known" else "nobody"
    access = Access("SASL_PLAINTEXT", mechanism=mechanism, user=login, password="not it")
    said = ANYBODY[name]().failure(broker.at("SASL_PLAINTEXT"), access)
    assert "uthentication" in said


@pytest.mark.parametrize("name", ANYBODY)
def test_a_mechanism_that_is_not_enabled_is_named(broker: SecureBroker, name: str) -> None:
    (user, password), *_ = SCRAM_PASSWORDS.items()
    access = Access("SASL_PLAINTEXT", mechanism="SCRAM-SHA-256", user=user, password=password)
    said = ANYBODY[name]().failure(broker.at("SHORT"), access)
    assert "echanism" in said


@pytest.mark.parametrize("name", ANYBODY)
def test_mutual_tls_requires_a_certificate(
    broker: SecureBroker, authority: Authority, name: str
) -> None:
    access = Access("SSL", authority.certificate)
    assert ANYBODY[name]().failure(broker.at("MTLS"), access)


@pytest.mark.parametrize("name", ANYBODY)
@pytest.mark.parametrize("kind", ["expired", "foreign"])
def test_invalid_certificates_are_refused(
    broker: SecureBroker,
    authority: Authority,
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    kind: str,
) -> None:
    if kind == "expired":
        identity = authority.issue(unique_name("old"), "/CN=alice", expired=True)
    else:
        other = Authority(tmp_path_factory.mktemp("other") / "ca", "Somebody else")
        identity = other.issue("alice")
    access = Access("SSL", authority.certificate, identity)
    assert ANYBODY[name]().failure(broker.at("MTLS"), access)


@pytest.mark.parametrize("name", ANYBODY)
def test_a_client_does_not_trust_a_broker_of_another_authority(
    broker: SecureBroker, tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    other = Authority(tmp_path_factory.mktemp("other") / "ca", "Somebody else")
    said = ANYBODY[name]().failure(broker.at("SSL"), Access("SSL", other.certificate))
    assert said
