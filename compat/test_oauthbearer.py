"""OAUTHBEARER: Kafka's own tools with a token from a file, and the answers to a refused token."""

import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compat.kafka import KafkaServer, ToolFailed, free_port, run_java
from compat.test_tools import CONSUME, PRODUCE, TOPICS
from suwi.security.oauthbearer import OAuthBearerClient
from tests.broker_process import unique_name
from tests.raw_client import RawClient
from tests.security.test_oauthbearer import ISSUER, TokenBroker
from tests.security.test_sasl_wire import authenticate, handshake

MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenBroker]:
    with TokenBroker(tmp_path_factory.mktemp("tokens")) as process:
        yield process
        assert "Traceback" not in process.log


def test_kafkas_tools_work_with_a_token(
    broker: TokenBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, file = tmp_path / "token", tmp_path / "client.properties"
    properties = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": f"{MODULE};",
        "sasl.login.callback.handler.class": HANDLER,
        "sasl.oauthbearer.token.endpoint.url": token.as_uri(),
    }
    file.write_text("\n".join(f"{key}={value}" for key, value in properties.items()))
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={token.as_uri()}"
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", allowed)
    options = ("--bootstrap-server", broker.at("TOKENS"), "--command-config", str(file))
    name = unique_name("java")
    token.write_text(ISSUER.token("alice"))
    run_java(TOPICS, *options, "--create", "--topic", name)
    run_java(PRODUCE, *options, "--topic", name, stdin="one\ntwo\n")
    wanted = ("--from-beginning", "--max-messages", "2")
    assert "one\ntwo" in run_java(CONSUME, *options, "--topic", name, *wanted)
    token.write_text(ISSUER.token("alice", aud="others"))
    with pytest.raises(ToolFailed, match="invalid_token"):
        run_java(TOPICS, *options, "--list")


def answers(address: str, token: str) -> list[Any]:
    """What a client with this token is told, until the connection is closed."""
    with RawClient(address) as client:
        chosen = handshake(client, "OAUTHBEARER")
        told = [
            authenticate(client, OAuthBearerClient(token).first()),
            authenticate(client, b"\x01"),
        ]
        assert client.is_closed_by_broker
    return [
        chosen.error_code,
        *((each.error_code, each.error_message, each.auth_bytes) for each in told),
    ]


def test_a_refused_token_is_answered_as_apache_kafka_does(
    broker: TokenBroker, tmp_path: Path
) -> None:
    server, port = KafkaServer(tmp_path, heap="512m"), free_port()
    controller = f"127.0.0.1:{free_port()}"
    served = f"PLAINTEXT://{server.address},TOKEN://127.0.0.1:{port}"
    server._settings |= {
        "listeners": f"{served},CONTROLLER://{controller}",
        "advertised.listeners": served,
        "controller.quorum.voters": f"0@{controller}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
        "TOKEN:SASL_PLAINTEXT",
        "listener.name.token.sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.token.oauthbearer.sasl.jaas.config": f"{MODULE} "
        'unsecuredLoginStringClaim_sub="broker";',
    }
    server.format()
    server.start()
    try:
        # Without a validator of signed tokens, Kafka accepts unsigned ones.
        claims = {"sub": "alice", "iat": time.time() - 200, "exp": time.time() - 100}
        parts = [json.dumps(part).encode() for part in ({"alg": "none"}, claims)]
        unsigned = ".".join(base64.urlsafe_b64encode(p).rstrip(b"=").decode() for p in parts)
        kafkas = answers(f"127.0.0.1:{port}", f"{unsigned}.")
    finally:
        server.stop()
    assert answers(broker.at("TOKENS"), ISSUER.token(lifetime_s=-100)) == kafkas
