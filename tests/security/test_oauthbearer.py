"""SASL OAUTHBEARER of a listener: an attacker's tokens, sessions that end, and real clients."""

import json
import logging
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from suwi.broker import listener_security
from suwi.broker.listener_security import ListenerSecurity, ScramUsers
from suwi.env import SystemClock, local_env
from suwi.env.problems import Problems
from suwi.model.broker_config import parse_broker_config
from suwi.model.config_kinds import BadConfig
from suwi.model.listener_config import parse_listeners
from suwi.security.jwt_validator import BadToken, ValidToken
from suwi.security.mechanism import Authenticated, Challenge, Refused
from suwi.security.oauthbearer import OAuthBearerClient, OAuthBearerServer
from suwi.wire.versions import ApiKey
from tests.broker_process import COMMAND, BrokerProcess, environment, unique_name
from tests.raw_client import RawClient
from tests.security.issuer import AUDIENCE, NAME, SCOPE, Issuer, SigningKey, attacks
from tests.security.test_sasl_wire import FAILED, authenticate, handshake, metadata

ISSUER = Issuer()
ATTACKS = attacks(ISSUER)
INVALID_TOKEN = b'{"status":"invalid_token"}'
PATIENCE_S = 120
SESSION_MS = 5_000
HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"


class TokenBroker(BrokerProcess):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "data")
        self.keys = folder / "keys.json"
        self.audit = folder / "audit"
        self._config = folder / "server.properties"
        ISSUER.publish(self.keys)
        settings = {
            "node.id": "1",
            "listeners": "PLAINTEXT://127.0.0.1:0,TOKENS://127.0.0.1:0,SHORT://127.0.0.1:0",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,TOKENS:SASL_PLAINTEXT,"
            "SHORT:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "listener.name.tokens.oauthbearer.sasl.server.callback.handler.class": HANDLER,
            "sasl.oauthbearer.jwks.endpoint.url": self.keys.as_uri(),
            "sasl.oauthbearer.expected.issuer": NAME,
            "sasl.oauthbearer.expected.audience": f"another,{AUDIENCE}",
            "sasl.oauthbearer.expected.scope": SCOPE,
            "listener.name.short.oauthbearer.connections.max.reauth.ms": str(SESSION_MS),
            "connection.failed.authentication.delay.ms": "1",
            "audit.log.dir": str(self.audit),
        }
        self._config.write_text("\n".join(f"{key}={value}" for key, value in settings.items()))

    def at(self, listener: str) -> str:
        found = re.findall(rf"listening listener={listener} address=127\.0\.0\.1:(\d+)", self.log)
        return f"127.0.0.1:{found[-1]}"

    def _arguments(self) -> list[str]:
        level = ("--log-level", "debug")
        return ["--config", str(self._config), "--data", str(self.data), *level]

    def failed_log_ins(self) -> list[dict[str, Any]]:
        lines = [
            json.loads(line)
            for file in self.audit.glob("*.log")
            for line in file.read_text().split("\n")[:-1]  # the next one may be half written
        ]
        return [line for line in lines if line.get("request") == "log-in"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenBroker]:
    with TokenBroker(tmp_path_factory.mktemp("tokens")) as process:
        yield process
        assert "Traceback" not in process.log
        written = process.log + "".join(file.read_text() for file in process.audit.iterdir())
        for token in [*ATTACKS.values(), "eyJ"]:
            assert len(token) < 10 or token not in written


def until(is_true: Callable[[], Any]) -> None:
    ends_s = time.monotonic() + PATIENCE_S
    while not is_true():
        assert time.monotonic() < ends_s
        time.sleep(0.05)


def first_message(token: str) -> bytes:
    return OAuthBearerClient(token).first()


def log_in(client: RawClient, token: str) -> Any:
    assert handshake(client, "OAUTHBEARER").error_code == 0
    return authenticate(client, first_message(token))


# -- tokens ---------------------------------------------------------------------------------------


def refused(broker: TokenBroker) -> int:
    """How often, by the audit log."""
    return sum(line["outcome"]["refused"] for line in broker.failed_log_ins())


def test_an_attackers_tokens_are_all_in_the_audit_log(broker: TokenBroker) -> None:
    before = refused(broker)
    for token in ATTACKS.values():
        with RawClient(broker.at("TOKENS")) as client:
            log_in(client, token)
    until(lambda: refused(broker) >= before + len(ATTACKS))
    for line in broker.failed_log_ins():
        assert line["on"] == ["listener:TOKENS"]
        assert (line["mechanism"], line["host"]) == ("OAUTHBEARER", "127.0.0.1")
        assert line["reason"]


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attackers_token_is_refused_as_kafka_does(broker: TokenBroker, name: str) -> None:
    with RawClient(broker.at("TOKENS")) as client:
        answer = log_in(client, ATTACKS[name])
        assert (answer.error_code, answer.auth_bytes) == (0, INVALID_TOKEN)
        answer = authenticate(client, b"\x01")
        assert (answer.error_code, answer.auth_bytes) == (FAILED, b"")
        assert answer.error_message == INVALID_TOKEN.decode()
        assert client.is_closed_by_broker


def test_after_a_refused_token_there_is_no_second_attempt(broker: TokenBroker) -> None:
    with RawClient(broker.at("TOKENS")) as client:
        log_in(client, ATTACKS["expired"])
        answer = authenticate(client, first_message(ISSUER.token()))
        assert answer.error_code == FAILED
        assert client.is_closed_by_broker
    with RawClient(broker.at("TOKENS")) as client:
        log_in(client, ATTACKS["expired"])
        client.send_request(3, 4, b"")
        assert client.is_closed_by_broker


def test_a_new_key_is_found_after_a_token_that_has_it(broker: TokenBroker) -> None:
    new = SigningKey("second")
    Issuer(*ISSUER.keys, new).publish(broker.keys)
    token = ISSUER.sign(ISSUER.claims(), new)

    def is_accepted() -> bool:
        with RawClient(broker.at("TOKENS")) as client:
            return log_in(client, token).auth_bytes == b""

    until(is_accepted)


# -- sessions -------------------------------------------------------------------------------------


def test_the_session_ends_with_the_token(broker: TokenBroker) -> None:
    with RawClient(broker.at("TOKENS")) as client:
        begins_s, lifetime_s = time.time(), 5
        answer = log_in(client, ISSUER.token(lifetime_s=lifetime_s))
        assert (answer.error_code, answer.auth_bytes) == (0, b"")
        assert 0 < answer.session_lifetime.total_seconds() <= lifetime_s
        is_served = True
        while is_served:
            time.sleep(0.1)
            client.send_request(ApiKey.METADATA, 0, bytes(4))
            is_served = client.read_frame() is not None
        assert time.time() - begins_s >= lifetime_s


def test_the_session_ends_with_the_setting_if_that_is_sooner(broker: TokenBroker) -> None:
    with RawClient(broker.at("SHORT")) as client:
        lifetime = log_in(client, ISSUER.token(lifetime_s=600)).session_lifetime
        assert lifetime.total_seconds() * 1000 == SESSION_MS
    with RawClient(broker.at("SHORT")) as client:
        lifetime = log_in(client, ISSUER.token(lifetime_s=2)).session_lifetime
        assert lifetime.total_seconds() <= 2


def test_a_new_token_of_the_same_user_continues_the_session(broker: TokenBroker) -> None:
    with RawClient(broker.at("TOKENS")) as client:
        log_in(client, ISSUER.token("alice", lifetime_s=2))
        time.sleep(2.1)
        answer = log_in(client, ISSUER.token("alice", lifetime_s=600))
        assert (answer.error_code, answer.auth_bytes) == (0, b"")
        assert answer.session_lifetime.total_seconds() > 500
        assert metadata(client).brokers


def test_a_token_of_another_user_ends_the_session(broker: TokenBroker) -> None:
    with RawClient(broker.at("TOKENS")) as client:
        log_in(client, ISSUER.token("alice"))
        time.sleep(1.1)
        answer = log_in(client, ISSUER.token("bob"))
        assert answer.error_code == FAILED
        assert answer.error_message == "a connection cannot change its user"
        assert client.is_closed_by_broker
    until(lambda: any("change its user" in line["reason"] for line in broker.failed_log_ins()))
    noted = {(line["principal"], line["user"]) for line in broker.failed_log_ins()}
    assert ("User:alice", "bob") in noted


def test_an_invalid_token_ends_the_session_at_once(broker: TokenBroker) -> None:
    with RawClient(broker.at("TOKENS")) as client:
        log_in(client, ISSUER.token("alice"))
        time.sleep(1.1)
        assert log_in(client, ATTACKS["wrong key"]).auth_bytes == INVALID_TOKEN
        client.send_request(3, 4, b"")
        assert client.is_closed_by_broker


# -- messages -------------------------------------------------------------------------------------


def answer_to(message: bytes) -> Any:
    def validate(token: str) -> ValidToken:
        if token != "a.b.c":
            raise BadToken("another token", "eve")
        return ValidToken("alice,=", 1000)

    return OAuthBearerServer(validate).respond(message)


@pytest.mark.parametrize(
    "message",
    [
        b"n,,\x01auth=Bearer a.b.c\x01\x01",
        b"n,,\x01auth=bearer   a.b.c\x01\x01",
        b"n,a=alice=2C=3D,\x01auth=Bearer a.b.c\x01\x01",
        b"n,,\x01host=a\x01auth=Bearer a.b.c\x01port=1 2\t3\x01\x01",
    ],
)
def test_a_first_message_with_a_valid_token_is_accepted(message: bytes) -> None:
    assert answer_to(message) == Authenticated("alice,=", b"", 1000)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        b"\xff",
        b"a.b.c",
        b"n,,",
        b"n,,\x01\x01",
        b"n,,\x01auth=Bearer a.b.c\x01",
        b"n,,\x01auth=Bearer a.b.c",
        b"n,,\x01auth=Bearer a.b.c\x01\x01\x01",
        b"y,,\x01auth=Bearer a.b.c\x01\x01",
        b"p=tls-unique,,\x01auth=Bearer a.b.c\x01\x01",
        b"n,alice,\x01auth=Bearer a.b.c\x01\x01",
        b"n,a=,\x01auth=Bearer a.b.c\x01\x01",
        b"n,,\x01auth=Basic a.b.c\x01\x01",
        b"n,,\x01auth=Bearer a.b.c d\x01\x01",
        b"n,,\x01auth=Bearer a.b.c\x01auth=Bearer d\x01\x01",
        b"n,,\x01Auth=Bearer a.b.c\x01\x01",
        b"n,,\x01auth=Bearer a.b.c\x01h0st=a\x01\x01",
        b"n,a=" + b"x" * 500_000,
    ],
)
def test_another_first_message_is_refused(message: bytes) -> None:
    with pytest.raises(Refused, match="not an OAUTHBEARER message"):
        answer_to(message)


def test_a_first_message_has_a_limited_number_of_parts() -> None:
    """Strangers send it, and its parts are matched one by one on the event loop."""
    token, more = b"auth=Bearer a.b.c\x01", b"port=1\x01"
    assert isinstance(answer_to(b"n,,\x01" + token + more * 99 + b"\x01"), Authenticated)
    for message in (
        b"n,,\x01" + token + more * 100 + b"\x01",
        b"n,a=" + b"x" * 1001 + b",\x01" + token + b"\x01",
    ):
        with pytest.raises(Refused, match="not an OAUTHBEARER message"):
            answer_to(message)


def test_nobody_can_act_for_another_user() -> None:
    with pytest.raises(Refused, match="authorization id"):
        answer_to(b"n,a=admin,\x01auth=Bearer a.b.c\x01\x01")


def test_the_reason_of_a_refusal_is_not_sent() -> None:
    step = answer_to(b"n,,\x01auth=Bearer x.y.z\x01\x01")
    assert isinstance(step, Challenge)
    assert step.token == INVALID_TOKEN
    assert step.refused is not None
    assert (str(step.refused), step.refused.reason) == (INVALID_TOKEN.decode(), "another token")
    assert step.refused.user == "eve"


# -- real clients ---------------------------------------------------------------------------------


class Tokens:
    """Gives librdkafka one token after the other, each long before the last one ends."""

    def __init__(self, *users: str, lifetime_s: float = 600) -> None:
        self._users = list(users)
        self._lifetime_s = lifetime_s
        self.given = 0

    def __call__(self, _settings: str) -> tuple[str, float]:
        user = self._users[self.given % len(self._users)]
        self.given += 1
        return ISSUER.token(user, self._lifetime_s), time.time() + self._lifetime_s / 2


def settings(address: str, tokens: Tokens) -> dict[str, Any]:
    return {
        "bootstrap.servers": address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": tokens,
    }


@pytest.fixture
def topic(broker: TokenBroker) -> str:
    name = unique_name("tokens")
    with RawClient(broker.address) as client:
        client.create_topic(name)
    return name


def test_librdkafka_produces_and_consumes_with_a_token(broker: TokenBroker, topic: str) -> None:
    producer = Producer(settings(broker.at("TOKENS"), Tokens("alice")))
    producer.produce(topic, b"value", partition=0)
    assert producer.flush(PATIENCE_S) == 0
    own = {"group.id": "none", "enable.auto.commit": False}
    consumer = Consumer({**settings(broker.at("TOKENS"), Tokens("bob")), **own})
    with closing(consumer):
        consumer.assign([TopicPartition(topic, 0, 0)])
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        assert message.value() == b"value"


def test_librdkafka_stays_connected_when_its_token_ends(broker: TokenBroker, topic: str) -> None:
    """A connection that is older than any token was re-authenticated."""
    tokens, since_s = Tokens("alice", lifetime_s=6), {0: time.monotonic()}

    def note(text: str) -> None:
        for each in json.loads(text)["brokers"].values():
            if each["nodeid"] == 1 and each["connects"] not in since_s:
                since_s[each["connects"]] = time.monotonic()

    more = {"stats_cb": note, "statistics.interval.ms": 100}
    producer = Producer({**settings(broker.at("TOKENS"), tokens), **more})
    delivered: list[KafkaError | None] = []

    def is_older_than_tokens() -> bool:
        producer.produce(topic, b"x", on_delivery=lambda error, _: delivered.append(error))
        producer.poll(0.1)
        connects, connected_s = max(since_s.items())
        return connects > 0 and time.monotonic() - connected_s > 8

    until(is_older_than_tokens)
    assert producer.flush(PATIENCE_S) == 0
    assert tokens.given > 2
    assert set(delivered) == {None}


def test_librdkafka_cannot_become_another_user(broker: TokenBroker, topic: str) -> None:
    quiet = logging.getLogger("librdkafka")
    quiet.setLevel(logging.CRITICAL)
    tokens = Tokens("carol", "mallory", lifetime_s=6)
    producer = Producer(settings(broker.at("TOKENS"), tokens), logger=quiet)

    def is_refused() -> bool:
        producer.produce(topic, b"x")  # or it would stay disconnected after a session has ended
        producer.poll(0.1)
        lines = [line for line in broker.failed_log_ins() if line["user"] in ("carol", "mallory")]
        return any("change its user" in line["reason"] for line in lines)

    until(is_refused)


def test_commands_log_in_with_a_token_from_a_file(
    broker: TokenBroker, topic: str, tmp_path: Path
) -> None:
    token, properties = tmp_path / "token", tmp_path / "client.properties"
    properties.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\n"
        f"sasl.oauthbearer.token.endpoint.url={token.as_uri()}\n"
    )
    said = {}
    for name, text in (("good", ISSUER.token()), ("expired", ATTACKS["expired"])):
        token.write_text(text)
        options = ["--bootstrap-server", broker.at("TOKENS"), "--command-config", properties]
        ended = subprocess.run(
            [*COMMAND, "topics", "list", *options],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        said[name] = ended.returncode, ended.stdout + ended.stderr
    assert said["good"][0] == 0, said
    assert topic in said["good"][1]
    assert said["expired"][0] != 0
    assert "invalid_token" in said["expired"][1]


# -- settings -------------------------------------------------------------------------------------


def configured(**more: str) -> ListenerSecurity:
    properties = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        **{name.replace("_", "."): value for name, value in more.items()},
    }
    config = parse_broker_config(properties).config
    (spec,) = parse_listeners(config)
    problems = Problems(SystemClock())
    return ListenerSecurity.of(spec, config, local_env(), ScramUsers(None), problems)  # type: ignore[arg-type]


URL = "https://issuer.example/keys"
URL_KEY = "sasl_oauthbearer_jwks_endpoint_url"
ALLOWED_KEY = "org_apache_kafka_sasl_oauthbearer_allowed_urls"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "set sasl.oauthbearer.jwks.endpoint.url"),
        ({URL_KEY: "/etc/keys.json"}, "set sasl.oauthbearer.jwks.endpoint.url"),
        ({URL_KEY: "file://"}, "set sasl.oauthbearer.jwks.endpoint.url"),
        ({URL_KEY: "ftp://x/keys"}, "set sasl.oauthbearer.jwks.endpoint.url"),
        ({URL_KEY: "https://me:pw@x/keys"}, "without a user"),
        ({URL_KEY: URL}, f"{URL} is not allowed: list it in org.apache.kafka.sasl.oauthbearer."),
        ({URL_KEY: URL, ALLOWED_KEY: f"{URL}/others"}, "is not allowed"),
        ({URL_KEY: "http://127.0.0.1/keys"}, "is not allowed"),
        ({URL_KEY: "file:///nowhere/keys.json"}, "No such file"),
        ({"sasl_server_callback_handler_class": "my.Own"}, "sasl.server.callback.handler.class"),
    ],
)
def test_settings_that_cannot_work_are_named(given: dict[str, str], problem: str) -> None:
    with pytest.raises(BadConfig) as bad:
        configured(**given)
    assert problem in str(bad.value)


def test_a_url_that_is_listed_is_allowed() -> None:
    security = configured(**{URL_KEY: URL, ALLOWED_KEY: f"https://other.example, {URL}"})
    assert security.token_keys is not None


def test_without_the_packages_the_error_says_how_to_install_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener_security, "find_spec", lambda name: None)
    with pytest.raises(BadConfig, match=r"pip install 'suwi\[oauth\]'$"):
        configured(**{URL_KEY: URL, ALLOWED_KEY: URL})


def test_the_packages_are_not_imported_without_need() -> None:
    code = (
        "import sys, suwi.cli.main, suwi.broker.broker, suwi.client.security; "
        "print({'jwt', 'cryptography', 'urllib.request'} & set(sys.modules))"
    )
    said = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.modules['hypothesis'] = None; {code}"],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.strip() == "set()"
