"""Kafka's tools for rules and quotas, and Kafka Streams with no other rights than it needs."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from compat.kafka import ToolFailed, run_java
from compat.test_streams import (
    APPLICATION,
    COUNTS,
    INPUT,
    LINES,
    OUTPUT,
    until_counted,
    word_count,
    write,
)
from compat.test_tools import CONFIGS, OFFSETS, PRODUCE, TOPICS, create, kafka
from tests.broker_process import unique_name
from tests.raw_client import RawClient
from tests.security.access import GuardedBroker, delete_rules

ACLS = "org.apache.kafka.tools.AclCommand"
ALICE = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="alice" password="alice";',
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedBroker]:
    with GuardedBroker(tmp_path_factory.mktemp("guarded")) as process:
        yield process
        assert "Traceback" not in process.log


@pytest.fixture
def guarded(broker: GuardedBroker) -> GuardedBroker:
    """Without rules."""
    with RawClient(broker.address) as root:
        delete_rules(root)
    return broker


@pytest.fixture
def alice(guarded: GuardedBroker, tmp_path: Path) -> tuple[str, ...]:
    """The options of a tool that alice starts."""
    file = tmp_path / "alice.properties"
    file.write_text("\n".join(f"{key}={value}" for key, value in ALICE.items()))
    return ("--bootstrap-server", guarded.outside, "--command-config", str(file))


def allow(guarded: GuardedBroker, *rights: str) -> None:
    kafka(guarded, ACLS, "--add", "--allow-principal", "User:alice", *rights)


def test_kafka_acls_adds_lists_and_removes_rules(
    guarded: GuardedBroker, alice: tuple[str, ...]
) -> None:
    name = unique_name("topic")
    create(guarded, name)
    run_java(PRODUCE, *alice, "--topic", name, stdin="refused\n")
    assert kafka(guarded, OFFSETS, "--topic", name) == f"{name}:0:0\n"
    allow(guarded, "--producer", "--topic", name, "--resource-pattern-type", "prefixed")
    run_java(PRODUCE, *alice, "--topic", name, stdin="one\n")
    assert kafka(guarded, OFFSETS, "--topic", name) == f"{name}:0:1\n"
    assert name in run_java(TOPICS, *alice, "--list").splitlines()
    listed = kafka(
        guarded, ACLS, "--list", "--topic", f"{name}-eu", "--resource-pattern-type", "match"
    )
    assert f"ResourcePattern(resourceType=TOPIC, name={name}, patternType=PREFIXED)" in listed
    rules = re.findall(
        r"principal=(\S+), host=(\S+), operation=(\S+), permissionType=(\w+)", listed
    )
    expected = {
        ("User:alice", "*", operation, "ALLOW") for operation in ("WRITE", "CREATE", "DESCRIBE")
    }
    assert set(rules) == expected
    of_topic = ("--topic", name, "--resource-pattern-type", "prefixed")
    kafka(guarded, ACLS, "--remove", "--force", *of_topic)
    assert "principal=" not in kafka(guarded, ACLS, "--list")
    with pytest.raises(
        ToolFailed, match=r"CLUSTER_AUTHORIZATION_FAILED|Cluster authorization|no right to"
    ):
        run_java(ACLS, *alice, "--list")


QUOTAS = [
    ("users", "bob", "producer_byte_rate=1000000", "user-principal 'bob'"),
    ("clients", "app", "consumer_byte_rate=500000", "client-id 'app'"),
    ("ips", "127.0.0.9", "connection_creation_rate=10", "ip '127.0.0.9'"),
]


@pytest.mark.parametrize(("kind", "name", "quota", "told"), QUOTAS)
def test_kafka_configs_sets_describes_and_removes_quotas(
    guarded: GuardedBroker, kind: str, name: str, quota: str, told: str
) -> None:
    key, _, value = quota.partition("=")
    for entity, shown in (
        (("--entity-name", name), told),
        (("--entity-default",), f"the default {told.split()[0]}"),
    ):
        which = ("--entity-type", kind, *entity)
        kafka(guarded, CONFIGS, "--alter", *which, "--add-config", quota)
        described = kafka(guarded, CONFIGS, "--describe", *which)
        assert re.search(rf"{shown} are {key}={value}(\.0)?$", described.strip())
        kafka(guarded, CONFIGS, "--alter", *which, "--delete-config", key)
        assert key not in kafka(guarded, CONFIGS, "--describe", *which)


def test_kafka_streams_needs_its_topics_its_group_and_its_own_prefix(
    guarded: GuardedBroker, tmp_path: Path
) -> None:
    create(guarded, INPUT, "--partitions", "2")
    create(guarded, OUTPUT)
    write(guarded, LINES)
    allow(guarded, "--operation", "Read", "--topic", INPUT, "--group", APPLICATION)
    allow(guarded, "--operation", "Write", "--topic", OUTPUT)
    own = ("--topic", f"{APPLICATION}-", "--resource-pattern-type", "prefixed")
    allow(guarded, *(f"--operation={each}" for each in _OF_ITS_TOPICS), *own)
    with word_count(guarded.outside, tmp_path, **ALICE) as running:
        until_counted(guarded, COUNTS, running)


_OF_ITS_TOPICS = ("Create", "Read", "Write", "Delete", "Describe", "DescribeConfigs")
