"""What each API asks for, and what it answers without: the same requests to Apache Kafka. And what
its authorizer decides by the same rules.
"""

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from compat.kafka import KafkaServer, free_port, run_java
from suwi.security.acls import AclBinding, Operation, PatternType, Permission, ResourceType
from suwi.security.authorizer import AclIndex, Authorizer
from suwi.security.principal import parse_principal
from tests.raw_client import RawClient
from tests.security.access import (
    AUTHORIZER,
    PASSWORDS,
    TRANSACTION_REFUSED,
    create_rules,
    delete_rules,
    log_in,
)
from tests.security.secure_broker import jaas
from tests.security.test_access import (
    CASES,
    Case,
    label,
    prepare,
    told,
    without_transactional_id,
)

_PROPAGATION_S = 30


class GuardedKafka(KafkaServer):
    """As `GuardedBroker`, of Apache Kafka."""

    def __init__(self, directory: Path) -> None:
        self.outside = f"127.0.0.1:{free_port()}"
        port, controller = free_port(), free_port()
        inside = f"PLAINTEXT://127.0.0.1:{port}"
        settings = {
            "controller.quorum.voters": f"0@127.0.0.1:{controller}",
            "listeners": f"{inside},OUTSIDE://{self.outside},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"{inside},OUTSIDE://{self.outside}",
            "listener.security.protocol.map": (
                "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,OUTSIDE:SASL_PLAINTEXT"
            ),
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.outside.plain.sasl.jaas.config": jaas(PASSWORDS),
            "authorizer.class.name": AUTHORIZER,
            "super.users": "User:ANONYMOUS",
        }
        super().__init__(directory, heap="512m", port=port, **settings)


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedKafka]:
    server = GuardedKafka(tmp_path_factory.mktemp("kafka"))
    server.format()
    server.start()
    try:
        with RawClient(server.address) as root:
            prepare(root)
        yield server
    finally:
        server.stop()


def test_apache_kafka_refuses_a_transactional_batch_without_a_transactional_id(
    kafka: GuardedKafka,
) -> None:
    with RawClient(kafka.address) as root:
        assert without_transactional_id(root) == {TRANSACTION_REFUSED}


@pytest.mark.parametrize("case", CASES, ids=label)
def test_apache_kafka_asks_for_the_same_rights(kafka: GuardedKafka, case: Case) -> None:
    with RawClient(kafka.address) as root, log_in(kafka.outside, "alice") as alice:

        def eventually(expected: bool) -> set[int]:
            """Rules are answered before all of the broker has them."""
            end_s = time.monotonic() + _PROPAGATION_S
            while bool(codes := told(alice, case)) is not expected and time.monotonic() < end_s:
                time.sleep(0.05)
            return codes

        delete_rules(root)
        assert eventually(True) == {case.refusal}
        for missing in case.rights:
            others = [right.rule() for right in case.rights if right is not missing]
            assert set(create_rules(root, [*others, missing.rule("User:bob")])) == {0}
            time.sleep(0.2)
            assert told(alice, case) == {case.refusal_without(missing)}, f"without {missing}"
            delete_rules(root)
        create_rules(root, [right.rule() for right in case.rights])
        assert eventually(False) == set()
        for denied in case.rights:
            create_rules(root, [denied.rule("User:*", deny=True)])
            assert eventually(True) == {case.refusal_without(denied)}, f"with {denied} denied"
            delete_rules(root, permission_type=2)
            assert eventually(False) == set()


# -- the authorizer alone --------------------------------------------------------------------------

_ROUNDS, _RULES_MAX, _QUESTIONS = 300, 12, 100
_NAMES = ("a", "ab", "abc", "b", "ba", "*")
_CLIENTS = ("User:alice", "User:bob", "Group:alice")
_HOSTS = ("10.0.0.7", "10.9.9.9")
_KINDS = (ResourceType.TOPIC, ResourceType.GROUP)
_OPERATIONS = [each for each in Operation if each > Operation.ANY]
_SUPER_USER = "User:root"


def test_apache_kafkas_authorizer_decides_the_same() -> None:
    chance, lines, decided = random.Random(31), list[str](), list[str]()
    for _ in range(_ROUNDS):
        rules = [some_rule(chance) for _ in range(chance.randint(0, _RULES_MAX))]
        is_open = chance.random() < 0.5
        authorizer = authorizer_with(rules, is_open=is_open)
        lines.append(f"new\t{_SUPER_USER}\t{str(is_open).lower()}")
        lines += ["\t".join(("rule", *map(text_of, rule))) for rule in dict.fromkeys(rules)]
        for _ in range(_QUESTIONS):
            who = chance.choice((*_CLIENTS, _SUPER_USER))
            host, asked = chance.choice(_HOSTS), chance.choice(_OPERATIONS)
            kind, name = chance.choice(_KINDS), chance.choice((*_NAMES, "c", None))
            lines.append("\t".join(("ask", who, host, text_of(asked), text_of(kind), name or "")))
            is_allowed = authorizer.may(parse_principal(who), host, asked, kind, name)
            decided.append("ALLOWED" if is_allowed else "DENIED")
    source = str(Path(__file__).with_name("Decisions.java"))
    assert run_java(source, stdin="\n".join(lines)).splitlines() == decided


def authorizer_with(rules: list[AclBinding], *, is_open: bool) -> Authorizer:
    index = AclIndex().replaced((), rules)
    return Authorizer(index, [_SUPER_USER], allows_without_rules=is_open)


def some_rule(chance: random.Random) -> AclBinding:
    return AclBinding(
        chance.choice(_KINDS),
        chance.choice((PatternType.LITERAL, PatternType.PREFIXED)),
        chance.choice(_NAMES),
        chance.choice((*_CLIENTS, "User:*")),
        chance.choice((*_HOSTS, "*")),
        chance.choice(_OPERATIONS),
        chance.choice((Permission.ALLOW, Permission.ALLOW, Permission.DENY)),
    )


def text_of(value: object) -> str:
    return str(int(value)) if isinstance(value, int) else str(value)
