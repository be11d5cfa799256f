"""Secrets are not shown in responses, errors, representations and logs."""

import pytest

from suwi.broker.broker import Broker
from suwi.env import local_env
from suwi.model.broker_config import parse_broker_config
from suwi.model.config_kinds import BadConfig
from suwi.wire.versions import ApiKey
from tests.raw_client import RawClient
from tests.security.secure_broker import PASSWORDS, SecureBroker, jaas

BROKER, PASSWORD_TYPE = 4, 9
SECRET = "hush-hush"


def test_describe_configs_shows_that_secrets_are_set_but_not_what_they_are(
    broker: SecureBroker,
) -> None:
    with RawClient(broker.address) as client:
        asked = {"resource_type": BROKER, "resource_name": "0", "configuration_keys": None}
        answer = client.ask(
            ApiKey.DESCRIBE_CONFIGS,
            4,
            {"resources": [asked], "include_synonyms": True, "include_documentation": True},
        )
        (result,) = answer.results
        configs = {config.name: config for config in result.configs}
        key = "listener.name.sasl_ssl.plain.sasl.jaas.config"
        for name in (key, "ssl.keystore.key", "ssl.key.password", "sasl.jaas.config"):
            assert configs[name].is_sensitive
            assert configs[name].value is None
            assert configs[name].config_type == PASSWORD_TYPE
            assert all(synonym.value is None for synonym in configs[name].synonyms)
        assert configs["listener.name.mtls.ssl.client.auth"].value == "required"
        assert not configs["ssl.keystore.location"].is_sensitive
        assert not any(password in str(answer) for password in PASSWORDS.values())


def test_secrets_cannot_be_set_while_running(broker: SecureBroker) -> None:
    with RawClient(broker.address) as client:
        config = {"name": "ssl.key.password", "config_operation": 0, "value": SECRET}
        resource = {"resource_type": BROKER, "resource_name": "0", "configs": [config]}
        answer = client.ask(
            ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource], "validate_only": False}
        )
        assert answer.responses[0].error_code != 0
        assert SECRET not in str(answer)
    assert SECRET not in broker.log


def test_a_configuration_does_not_show_its_secrets() -> None:
    config = parse_broker_config(
        {
            "ssl.key.password": SECRET,
            "ssl.keystore.key": SECRET,
            "listener.name.plaintext.plain.sasl.jaas.config": SECRET,
        }
    ).config
    assert config.ssl_key_password.secret == SECRET
    assert config.security_of("PLAINTEXT", "PLAIN").sasl_jaas_config.secret == SECRET
    shown = f"{config!r} {config} {config.security_of('PLAINTEXT', 'PLAIN')!r}"
    assert SECRET not in shown
    assert str(config.ssl_key_password) == "[hidden]"


JAAS_KEY = "listener.name.sasl_plaintext.plain.sasl.jaas.config"


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({}, "set for example sasl.enabled.mechanisms="),
        ({"sasl.enabled.mechanisms": "PLAIN"}, f"PLAIN has no users: set {JAAS_KEY}="),
        ({JAAS_KEY: f'PlainLoginModule user_a="{SECRET}";'}, f"{JAAS_KEY}: it must start with"),
        ({JAAS_KEY: f'ScramLoginModule required user_a="{SECRET}";'}, "must be PlainLoginModule"),
        ({JAAS_KEY: f'PlainLoginModule required password="{SECRET}";'}, "list the users"),
        ({JAAS_KEY: 'PlainLoginModule required user_a="";'}, "must not be empty"),
        ({JAAS_KEY: jaas({"": SECRET})}, "must not be empty"),
        ({"sasl.jaas.config": jaas({"a": SECRET})}, "PLAIN has no users"),
    ],
)
def test_invalid_sasl_settings_are_refused_with_a_reason(
    properties: dict[str, str], message: str
) -> None:
    given = {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", **properties}
    if properties:
        given.setdefault("sasl.enabled.mechanisms", "PLAIN")
    config = parse_broker_config(given).config
    with pytest.raises(BadConfig, match=message) as refused:
        Broker(local_env(), config, store=None)  # type: ignore[arg-type]
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("sasl.enabled.mechanisms", "GSSAPI", "a list of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        ("ssl.enabled.protocols", "TLSv1.1,TLSv1.2", "a list of TLSv1.2, TLSv1.3"),
        ("ssl.client.auth", "maybe", "one of none, requested, required"),
        ("listener.name.x.ssl.client.auth", "maybe", "one of none, requested, required"),
        ("listener.name.x.gssapi.sasl.jaas.config", SECRET, "unknown configuration"),
        ("ssl.keystore.password", SECRET, "PEM files have no store password .*openssl pkcs12"),
        ("listener.name.x.ssl.truststore.password", SECRET, "PEM files have no store password"),
    ],
)
def test_invalid_security_settings_are_refused_with_a_reason(
    key: str, value: str, message: str
) -> None:
    with pytest.raises(BadConfig, match=message) as refused:
        parse_broker_config({key: value})
    assert SECRET not in str(refused.value)
