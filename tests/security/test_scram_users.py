"""SCRAM users in the metadata: describing and changing them, and what is stored."""

from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from confluent_kafka.admin import ScramMechanism as ConfluentMechanism

from suwi.security.acls import Operation
from suwi.security.scram import ScramMechanism
from suwi.wire.versions import ApiKey
from tests.broker_process import unique_name
from tests.raw_client import RawClient
from tests.security.access import CLUSTER_REFUSED, GuardedBroker, cluster, create_rules
from tests.security.clients import PATIENCE_S, Access, AioKafka
from tests.security.secure_broker import SCRAM_PASSWORDS, SecureBroker

UNSUPPORTED_MECHANISM, NOT_FOUND, DUPLICATE, UNACCEPTABLE = 33, 91, 92, 93
SHA_256 = ScramMechanism.SHA_256.number


@pytest.fixture
def client(broker: SecureBroker) -> Iterator[RawClient]:
    with RawClient(broker.address) as client:
        yield client


def upsertion(name: str, **other: Any) -> dict[str, Any]:
    return {
        "name": name,
        "mechanism": SHA_256,
        "iterations": 4096,
        "salt": b"salt",
        "salted_password": bytes(32),
        **other,
    }


def alter(
    client: RawClient,
    *upsertions: dict[str, Any],
    deletions: list[tuple[str, int]] | None = None,
) -> dict[str, int]:
    asked = {
        "deletions": [{"name": n, "mechanism": m} for n, m in deletions or []],
        "upsertions": list(upsertions),
    }
    answer = client.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, asked)
    return {result.user: int(result.error_code) for result in answer.results}


def describe(client: RawClient, *names: str) -> dict[str, Any]:
    users = [{"name": name} for name in names] or None
    answer = client.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, {"users": users})
    assert answer.error_code == 0
    return {result.user: result for result in answer.results}


def test_describing_users_shows_only_their_mechanisms(client: RawClient) -> None:
    users = describe(client)
    assert set(SCRAM_PASSWORDS) <= users.keys()
    infos = users["carol"].credential_infos
    assert [(info.mechanism, info.iterations) for info in infos] == [(1, 4096), (2, 4096)]


def test_a_user_that_does_not_exist_is_not_described(client: RawClient) -> None:
    described = describe(client, "nobody", "carol")
    assert described["nobody"].error_code == NOT_FOUND
    assert described["nobody"].credential_infos == ()
    assert described["carol"].error_code == 0


def test_a_user_requested_twice_is_described_once(client: RawClient) -> None:
    described = describe(client, "carol", "carol")
    assert described["carol"].error_code == DUPLICATE


@pytest.mark.parametrize(
    ("broken", "code"),
    [
        ({"iterations": 4095}, UNACCEPTABLE),
        ({"iterations": 16385}, UNACCEPTABLE),
        ({"iterations": -1}, UNACCEPTABLE),
        ({"salt": b""}, UNACCEPTABLE),
        ({"salt": bytes(2000)}, UNACCEPTABLE),
        ({"salted_password": b""}, UNACCEPTABLE),
        ({"salted_password": bytes(64)}, UNACCEPTABLE),
        ({"mechanism": 0}, UNSUPPORTED_MECHANISM),
        ({"mechanism": 3}, UNSUPPORTED_MECHANISM),
        ({"mechanism": -1}, UNSUPPORTED_MECHANISM),
    ],
)
def test_unsafe_credentials_are_refused(
    client: RawClient, broken: dict[str, Any], code: int
) -> None:
    name = unique_name("user")
    assert alter(client, upsertion(name, **broken)) == {name: code}
    assert describe(client, name)[name].error_code == NOT_FOUND


@pytest.mark.parametrize("name", ["", "x" * 1025])
def test_invalid_user_names_are_refused(client: RawClient, name: str) -> None:
    assert alter(client, upsertion(name)) == {name: UNACCEPTABLE}


@pytest.mark.parametrize("name", ["a/b", "..", "수위", "a b", "%2F", "a,b=c", "\x00"])
def test_unusual_user_names_are_accepted(client: RawClient, name: str) -> None:
    assert alter(client, upsertion(name)) == {name: 0}
    assert describe(client, name)[name].error_code == 0
    assert name in describe(client)
    assert alter(client, deletions=[(name, SHA_256)]) == {name: 0}
    assert name not in describe(client)


def test_one_refusal_does_not_stop_the_others(client: RawClient) -> None:
    good, bad, twice = (unique_name("user") for _ in range(3))
    answers = alter(
        client, upsertion(good), upsertion(bad, iterations=1), upsertion(twice), upsertion(twice)
    )
    assert answers == {good: 0, bad: UNACCEPTABLE, twice: DUPLICATE}
    described = describe(client)
    assert good in described
    assert not {bad, twice} & described.keys()


def test_a_missing_credential_cannot_be_deleted(client: RawClient) -> None:
    name = unique_name("user")
    assert alter(client, deletions=[(name, SHA_256)]) == {name: NOT_FOUND}
    alter(client, upsertion(name))
    assert alter(client, deletions=[(name, 2)]) == {name: NOT_FOUND}
    assert alter(client, upsertion(name), deletions=[(name, SHA_256)]) == {name: DUPLICATE}
    assert alter(client, deletions=[(name, SHA_256)]) == {name: 0}


def test_an_added_user_can_log_in_until_it_is_removed(
    broker: SecureBroker,
) -> None:
    name, password = unique_name("user"), "for now"
    admin = AdminClient({"bootstrap.servers": broker.address})
    mechanism = ConfluentMechanism.SCRAM_SHA_256
    info = ScramCredentialInfo(mechanism, 8192)
    added = UserScramCredentialUpsertion(name, info, password.encode())
    admin.alter_user_scram_credentials([added])[name].result(PATIENCE_S)
    described = admin.describe_user_scram_credentials([name])[name].result(PATIENCE_S)
    assert [i.iterations for i in described.scram_credential_infos] == [8192]

    access = Access("SASL_PLAINTEXT", None, None, "SCRAM-SHA-256", name, password)
    topic = unique_name("topic")
    with RawClient(broker.address) as raw:
        raw.create_topic(topic)
    AioKafka().produce(broker.at("SASL_PLAINTEXT"), access, topic, [b"value"])

    removed = UserScramCredentialDeletion(name, mechanism)
    admin.alter_user_scram_credentials([removed])[name].result(PATIENCE_S)
    assert "SaslAuthenticationFailed" in AioKafka().failure(broker.at("SASL_PLAINTEXT"), access)


def test_the_store_has_neither_passwords_nor_salted_passwords(broker: SecureBroker) -> None:
    raw = b"".join(file.read_bytes() for file in broker.data.glob("*.sqlite*"))
    assert b"stored_key" in raw
    for password in SCRAM_PASSWORDS.values():
        assert password.encode() not in raw
        for mechanism in ScramMechanism:
            salted = mechanism.salted_password(password, b"as random as any", 4096)
            client_key = mechanism.hmac(salted, b"Client Key")
            for secret in (salted, client_key):
                assert secret.hex().encode() not in raw.lower()
                assert b64encode(secret) not in raw
                assert secret not in raw


def test_with_access_rules_only_a_super_user_changes_the_user_of_the_brokers(
    tmp_path: Path,
) -> None:
    settings = {
        "inter.broker.listener.name": "OUTSIDE",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256",
        "listener.name.outside.scram-sha-256.sasl.jaas.config": (
            'ScramLoginModule required username="broker" password="secret";'
        ),
    }
    with GuardedBroker(tmp_path, **settings) as guarded, RawClient(guarded.address) as root:
        create_rules(root, [cluster(Operation.ALTER).rule()])
        both = [upsertion("broker"), upsertion("carol")]
        with guarded.log_in("alice") as alice:
            assert alter(alice, *both) == {"broker": CLUSTER_REFUSED, "carol": 0}
            assert alter(root, *both) == {"broker": 0, "carol": 0}
            gone = [("broker", SHA_256)]
            assert alter(alice, deletions=gone) == {"broker": CLUSTER_REFUSED}
            assert alter(root, deletions=gone) == {"broker": 0}
