"""`suwi acls`."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker_process import BrokerProcess
from tests.cli.support import Suwi
from tests.security.access import GuardedBroker


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedBroker]:
    with GuardedBroker(tmp_path_factory.mktemp("guarded")) as process:
        yield process


@pytest.fixture
def root(guarded: GuardedBroker) -> Suwi:
    return Suwi(guarded.address)


@pytest.fixture
def alice(guarded: GuardedBroker, tmp_path: Path) -> list[object]:
    """The options of a command that alice gives."""
    config = tmp_path / "alice.properties"
    config.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        'sasl.jaas.config=PlainLoginModule required username="alice" password="alice";\n'
    )
    return ["--command-config", config, "--broker", guarded.outside]


def test_a_rule_is_added_listed_checked_and_removed(root: Suwi) -> None:
    rule = ("alice", "read", "topic:orders-*")
    said = root.ok("acls", "add", *rule, "--from", "127.0.0.0/8")
    assert said == "added: allow User:alice read on topic orders-* from 127.0.0.0/8\n"
    listed = root.ok("acls", "list", "--resource", "topic:orders-eu")
    assert re.search(r"^allow +User:alice +read +topic:orders-\* +127\.0\.0\.0/8$", listed, re.M)
    assert root.json("acls", "list", "--principal", "alice") == [
        {
            "permission": "allow",
            "principal": "User:alice",
            "operation": "read",
            "resource": "topic:orders-*",
            "host": "127.0.0.0/8",
        }
    ]
    assert "no rules" in root.ok("acls", "list", "--resource", "topic:payments")
    allowed = root.ok("acls", "check", "alice", "describe", "topic:orders-eu")
    assert allowed.startswith("allowed: User:alice describe topic:orders-eu (allow User:alice read")
    refused = root("acls", "check", "alice", "write", "topic:orders-eu")
    assert (refused.exit_code, refused.stderr) == (1, "")
    assert refused.stdout == ("not allowed: User:alice write topic:orders-eu (no rule allows it)\n")
    elsewhere = root("acls", "check", "alice", "read", "topic:orders-eu", "--from", "10.0.0.1")
    assert elsewhere.exit_code == 1
    assert root.ok("acls", "check", "root", "alter", "cluster").startswith("allowed")
    assert "removed: allow" in root.ok("acls", "remove", *rule, "--from", "127.0.0.0/8")
    assert "there is no such rule" in root.refusal("acls", "remove", *rule)


def test_a_denial_is_the_rule_that_decides(root: Suwi) -> None:
    root.ok("acls", "add", "User:*", "all", "topic:*")
    root.ok("acls", "add", "bob", "write,delete", "topic:secret", "--deny")
    checked = root("acls", "check", "bob", "write", "topic:secret")
    assert checked.exit_code == 1
    assert "(deny User:bob write on topic secret from *)" in checked.stdout
    root.ok("acls", "remove", "bob", "write,delete", "topic:secret", "--deny")
    root.ok("acls", "remove", "User:*", "all", "topic:*")


def test_a_literal_name_that_ends_in_a_star_is_told_from_a_prefix(root: Suwi) -> None:
    said = root.ok("acls", "add", "alice", "read", "group:eu*", "--literal")
    assert said == "added: allow User:alice read on group eu* (literal) from *\n"
    root.ok("acls", "add", "alice", "read", "group:eu*")
    listed = root.json("acls", "list", "--resource", "group:eu*", "--literal")
    assert {rule["resource"] for rule in listed} == {"group:eu* (literal)", "group:eu*"}
    root.ok("acls", "remove", "alice", "read", "group:eu*", "--literal")
    (left,) = root.json("acls", "list", "--resource", "group:eu1")
    assert left["resource"] == "group:eu*"
    root.ok("acls", "remove", "alice", "read", "group:eu*")


def test_rules_are_for_each_principal_operation_and_host(root: Suwi) -> None:
    rules = ("User:CN=a,O=b", "read,write", "topic:many", "--principal", "bob")
    hosts = ("--from", "10.0.0.1", "--host", "10.0.0.2")
    assert root.ok("acls", "add", *rules, *hosts).count("added: ") == 8
    listed = root.json("acls", "list", "--resource", "topic:many")
    assert {rule["principal"] for rule in listed} == {"User:CN=a,O=b", "User:bob"}
    assert {rule["host"] for rule in listed} == {"10.0.0.1", "10.0.0.2"}
    asked = ("bob", "write", "topic:many", "--host")
    assert root("acls", "check", *asked, "10.0.0.2").exit_code == 0
    assert root("acls", "check", *asked, "10.0.0.3").exit_code == 1
    assert root.ok("acls", "remove", *rules, *hosts).count("removed: ") == 8


def test_what_a_user_may_not_do_is_refused_with_the_right_that_is_missing(
    root: Suwi, alice: list[object]
) -> None:
    said = root.refusal("acls", "list", *alice)
    assert "User:alice has no right to describe on the cluster" in said
    said = root.refusal("topics", "create", "hers", *alice)
    assert "User:alice has no right to create on topic hers" in said
    root.ok("acls", "add", "alice", "create,read", "topic:hers")
    root.ok("topics", "create", "hers", *alice)
    assert "hers" in root.ok("topics", "list", *alice)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("alice", "reed", "topic:a"), "did you mean 'read'?"),
        (("alice", "read", "topics:a"), "is not a resource"),
        (("alice", "read", "topic"), "is not a resource"),
        (("alice", "read", "cluster:other"), "only valid name"),
        (("alice", "read", "topic:a", "--from", "10.0.0.1/8"), "has host bits set"),
        ((":x", "read", "topic:a"), "is not a principal"),
        (("system:pods:app", "read", "topic:a"), "a colon is User:system:pods:app"),
    ],
)
def test_a_mistake_is_named(root: Suwi, arguments: tuple[str, ...], problem: str) -> None:
    assert problem in root.refusal("acls", "add", *arguments)


def test_without_an_authorizer_there_are_no_rules(suwi: Suwi, broker: BrokerProcess) -> None:
    del broker
    for arguments in (("list",), ("add", "alice", "read", "topic:a")):
        assert "No Authorizer is configured" in suwi.refusal("acls", *arguments)
