"""Whether brokers can log in to each other, checked before any listener is opened."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from suwi.broker.broker import Broker
from suwi.broker.peer_security import (
    check_peers_can_log_in,
    find_inter_broker_listener,
    peer_log_in,
)
from suwi.env import LocalDisk, local_env
from suwi.metadata.memory import MemoryStore, MemoryView
from suwi.model.broker_config import BrokerConfig, parse_broker_config
from suwi.model.config_kinds import BadConfig
from suwi.model.listener_config import parse_listeners
from suwi.security.principal import user
from suwi.security.sasl_session import PeerLogIn
from suwi.sim.random import SimRandom
from tests.security.issuer import Issuer

MECHANISM = "sasl.mechanism.inter.broker.protocol"
JAAS = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
USERS = 'PlainLoginModule required user_alice="a" user_broker="b"'


def config_of(given: Mapping[str, str] | None = None) -> BrokerConfig:
    properties = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        JAAS: f"{USERS};",
        **(given or {}),
    }
    return parse_broker_config(properties).config


def make(config: BrokerConfig, *, brokers_in_process: int = 1, is_shared: bool = False) -> Broker:
    class View(MemoryView):
        pass

    View.is_shared = is_shared
    return Broker(
        local_env(), config, View(MemoryStore(SimRandom(0))), brokers_in_process=brokers_in_process
    )


def logging_in(mechanism: str = "PLAIN") -> BrokerConfig:
    jaas = f'{USERS} username="broker" password="b";'
    return config_of({MECHANISM: mechanism, JAAS: jaas})


def test_a_single_broker_needs_no_inter_broker_login() -> None:
    make(config_of())


@pytest.mark.parametrize("how", [{"brokers_in_process": 3}, {"is_shared": True}])
def test_a_cluster_without_a_working_inter_broker_login_does_not_start(how: dict[str, int]) -> None:
    with pytest.raises(BadConfig, match=f"listener SASL_PLAINTEXT: .* set {MECHANISM}"):
        make(config_of(), **how)  # type: ignore[arg-type]
    with pytest.raises(BadConfig, match=r"cannot log in: sasl.jaas.config: username"):
        make(config_of({MECHANISM: "PLAIN"}), **how)  # type: ignore[arg-type]
    with pytest.raises(BadConfig, match=r"cannot log in: sasl.mechanism=GSSAPI: allowed: PLAIN"):
        make(config_of({MECHANISM: "GSSAPI"}), **how)  # type: ignore[arg-type]
    make(logging_in(), **how)  # type: ignore[arg-type]


@pytest.mark.parametrize("how", [{"brokers_in_process": 3}, {"is_shared": True}])
def test_only_the_inter_broker_listener_is_checked(how: dict[str, int]) -> None:
    listeners = "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0"
    make(config_of({"listeners": listeners}), **how)  # type: ignore[arg-type]
    with pytest.raises(BadConfig, match=f"set {MECHANISM}"):
        make(
            config_of({"listeners": listeners, "inter.broker.listener.name": "SASL_PLAINTEXT"}),
            **how,  # type: ignore[arg-type]
        )


def test_brokers_are_identified_by_user_and_mechanism() -> None:
    config = logging_in()
    (spec,) = parse_listeners(config)
    assert find_inter_broker_listener(config, [spec]) == spec
    disk = LocalDisk()
    assert peer_log_in(config, spec, disk) == PeerLogIn("PLAIN", user("broker"))
    assert peer_log_in(config_of(), spec, disk) is None
    assert peer_log_in(config, spec._replace(protocol="SSL"), disk) is None


def with_token(url: str) -> BrokerConfig:
    how = {MECHANISM: "OAUTHBEARER", "sasl.oauthbearer.sub.claim.name": "name"}
    return config_of({**how, "sasl.oauthbearer.token.endpoint.url": url})


def test_brokers_with_tokens_are_identified_by_whom_their_own_is_for(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(Issuer().token("sub", name="broker") + "\n")
    config = with_token(token.as_uri())
    (spec,) = parse_listeners(config)
    assert peer_log_in(config, spec, LocalDisk()) == PeerLogIn("OAUTHBEARER", user("broker"))
    check_peers_can_log_in(config, spec, LocalDisk())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "no token in .*: No such file"),
        ("secret", "there is no signed token"),
        ("e30.e30.", "the claim name of the token has no user"),
    ],
)
def test_a_broker_without_a_token_does_not_start(
    tmp_path: Path, text: str | None, problem: str
) -> None:
    token = tmp_path / "token"
    if text is not None:
        token.write_text(text)
    config = with_token(token.as_uri())
    (spec,) = parse_listeners(config)
    with pytest.raises(BadConfig, match=f"cannot log in: .*{problem}"):
        check_peers_can_log_in(config, spec, LocalDisk())
    with pytest.raises(BadConfig, match="brokers have their token in a file"):
        check_peers_can_log_in(with_token("https://issuer.example"), spec, LocalDisk())
