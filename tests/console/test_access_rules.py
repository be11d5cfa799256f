"""Access rules, users, quotas and the audit log: what the command line says, and their changes."""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from suwi.admin.access_rules import Access, AccessSettings, read_pattern, read_rules
from suwi.cli.console_process import cluster_address
from suwi.cli.session import Target
from suwi.client.acls import Acls
from suwi.client.addresses import Address
from suwi.client.admin import Admin
from suwi.console.acl_changes import _closed, _lost
from suwi.console.acls import _rules
from suwi.console.clusters import ClusterAddress, ShownCluster
from suwi.env import local_env
from suwi.model.broker_config import AUTHORIZERS
from suwi.records.builder import build_batch
from suwi.records.record import Record
from suwi.security.acls import AclBinding, Operation, PatternType, Permission, ResourceType
from suwi.security.authorizer import NO_RULES
from suwi.sim import Simulation
from suwi.sim.cluster import PORT, SimCluster
from tests.cli.support import Suwi
from tests.console.support import Browser, ConsoleThread, run_copied
from tests.raw_client import RawClient
from tests.security.access import PASSWORDS, GuardedBroker
from tests.security.conftest import add_scram_users

PATIENCE_S = 120
BATCH = build_batch([Record(0, 1000, None, bytes(20_000))], base_offset=0)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedBroker]:
    folder = tmp_path_factory.mktemp("guarded")
    with GuardedBroker(folder, **{"audit.log.dir": str(folder / "audit")}) as broker:
        yield broker


@pytest.fixture(scope="module")
def guarded_console(
    guarded: GuardedBroker, static: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ConsoleThread]:
    """For a super user, and as the cluster `alice` for a user who may do nothing."""
    file = tmp_path_factory.mktemp("alice") / "alice.properties"
    file.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        "sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'username="alice" password="{PASSWORDS["alice"]}";\n'
    )
    alice = cluster_address(Target(guarded.outside, str(file)), "alice")
    with ConsoleThread(static, [alice], allow_changes=True, local=guarded.address) as console:
        yield console


@pytest.fixture
def admin(guarded_console: ConsoleThread) -> Browser:
    return Browser(guarded_console).log_in(guarded_console)


@pytest.fixture
def closed(guarded: GuardedBroker) -> Suwi:
    """The command line of a super user."""
    return Suwi(guarded.address)


def until(is_so: Callable[[], Any]) -> Any:
    limit_s = time.monotonic() + PATIENCE_S
    while not (found := is_so()):
        assert time.monotonic() < limit_s
        time.sleep(0.1)
    return found


def rule(**values: object) -> dict[str, object]:
    usual = {"resource": "topic:orders", "principal": "alice", "operations": "read", "host": ""}
    return {**usual, "is_denial": False, "is_literal": False, **values}


# -- pages -----------------------------------------------------------------------------------------


def test_rules_are_those_of_the_command_line(admin: Browser, closed: Suwi) -> None:
    closed.ok("acls", "add", "carol", "read,write", "topic:listed-*", "--from", "10.0.0.0/8")
    closed.ok("acls", "add", "carol", "read", "group:listed*", "--literal", "--deny")
    page = admin.page("acls", search="User:carol")
    told = closed.json("acls", "list", "--principal", "carol")
    texts = [
        f"{row['resource']} (literal)" if row["is_literal"] else row["resource"]
        for row in page["rows"]
    ]
    assert texts == [each["resource"] for each in told]
    keys = ("permission", "principal", "operation", "host")
    assert [[row[key] for key in keys] for row in page["rows"]] == [
        [each[key] for key in keys] for each in told
    ]
    assert page["is_on"]
    assert page["settings"]["super_users"] == ["User:ANONYMOUS", "User:root"]
    assert "carol" in run_copied(page["command"])
    assert admin.page("acls", search="listed-", rows=1)["part"]["total"] == 2


def test_rules_are_read_again_when_they_have_changed(
    admin: Browser, closed: Suwi, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []
    describe = Acls.describe

    async def counted(acls: Acls, *wanted: Any) -> Any:
        read.append(wanted)
        return await describe(acls, *wanted)

    monkeypatch.setattr(Acls, "describe", counted)
    for number in range(1, 3):
        closed.ok("acls", "add", "judy", "read", f"topic:changed-{number}")
        for _ in range(3):
            assert admin.page("acls", search="changed-")["part"]["total"] == number
        assert len(read) == number


def test_rules_are_those_that_the_broker_says_they_are_while_an_image_waits() -> None:
    simulation = Simulation(1)
    rule = AclBinding(
        ResourceType.TOPIC,
        PatternType.LITERAL,
        "orders",
        "User:bob",
        "*",
        Operation.READ,
        Permission.ALLOW,
    )

    async def main() -> None:
        settings = {"authorizer.class.name": AUTHORIZERS[0], "super.users": "User:ANONYMOUS"}
        cluster = SimCluster(simulation, brokers=1, settings=settings)
        await cluster.start()
        broker = cluster[1].broker
        assert broker is not None
        shown = ShownCluster(ClusterAddress("sim", [Address("b1", PORT)], None, ()), local_env())
        async with shown.client, cluster.client("admin") as client:
            assert await _rules(shown) == []
            async with broker.replicas.applying:  # as while a broker registers again
                adding = asyncio.ensure_future(Acls(client).create([rule]))
                await asyncio.sleep(1)
                assert not adding.done()
                assert await _rules(shown) == []
            await adding
            assert await _rules(shown) == [rule]

    simulation.run(main())


def test_users_are_those_of_the_command_line(admin: Browser, closed: Suwi) -> None:
    with RawClient(closed.broker) as client:
        add_scram_users(client, {"erin": "secret-of-erin"})
    page = until(lambda: _with_users(admin.page("acls")))
    told = closed.json("users", "list")
    assert [row["user"] for row in page["users"]] == [each["user"] for each in told]
    assert "SCRAM-SHA-256 (4096)" in page["users"][0]["mechanisms"]
    assert admin.page("acls", user_search="nobody")["users"] == []


def _with_users(page: Any) -> Any:
    return page if page["users"] else None


def test_check_says_what_the_command_line_says(admin: Browser, closed: Suwi) -> None:
    closed.ok("acls", "add", "dave", "write", "topic:checked")
    for operation, is_allowed in (("write", True), ("describe", True), ("read", False)):
        asked = {"principal": "dave", "operation": operation, "resource": "topic:checked"}
        found = admin.page("acl-check", **asked)
        result = closed("acls", "check", "--json", "dave", operation, "topic:checked")
        assert found["is_allowed"] is is_allowed
        assert found["reason"] in result.stdout
        assert result.exit_code == (0 if is_allowed else 1)
    assert "allowed:" in run_copied(
        admin.page("acl-check", **asked | {"operation": "write"})["command"]
    )


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"resource": "orders"}, "is not a resource"),
        ({"resource": "topic:orders-*"}, "is a pattern"),
        ({"operation": "reed"}, "did you mean"),
        ({"principal": ":"}, "is not a principal"),
    ],
)
def test_a_check_that_makes_no_sense_says_why(
    admin: Browser, values: dict[str, str], text: str
) -> None:
    asked = {"principal": "a", "operation": "read", "resource": "topic:a", **values}
    answer = admin.get(
        f"/api/clusters/local/acl-check?{'&'.join(f'{k}={v}' for k, v in asked.items())}"
    )
    assert (answer.status, answer.json()["kind"]) == (400, "bad")
    assert text in answer.json()["text"]


def test_a_cluster_without_rules_and_audit_log_says_so(browser: Browser) -> None:
    page = browser.page("acls")
    assert (page["is_on"], page["rows"], page["settings"]) == (False, [], None)
    assert (
        browser.problem("acl-check", principal="a", operation="read", resource="topic:a")[0] != 200
    )
    audit = browser.page("audit")
    assert len(audit["off"]) == 1
    assert (audit["files"], audit["silent"], audit["command"]) == ([], [], "")


def test_settings_that_brokers_do_not_tell_are_not_guessed(
    admin: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def untold(*_: object, **__: object) -> list[object]:
        return []

    monkeypatch.setattr(Admin, "describe_configs", untold)
    assert admin.page("acls")["settings"] is None
    found = admin.page("acl-check", principal="root", operation="read", resource="topic:a")
    assert not found["is_allowed"]
    assert "do not tell whether super.users" in found["reason"]


@pytest.mark.parametrize("page", ["acls", "quotas", "audit"])
def test_who_may_not_describe_the_cluster_is_told_so(admin: Browser, page: str) -> None:
    assert admin.problem(page, "alice") == (403, "forbidden")


@pytest.mark.parametrize("page", ["acls", "quotas", "audit"])
def test_a_cluster_that_does_not_answer_is_unreachable(browser: Browser, page: str) -> None:
    assert browser.problem(page, "away") == (503, "unreachable")


def test_the_newest_audit_lines_have_changes_and_refusals(
    admin: Browser, guarded: GuardedBroker
) -> None:
    with RawClient(guarded.address) as root, guarded.log_in("alice") as alice:
        root.create_topic("audited")
        until(lambda: alice.produce("audited", BATCH).error and _refused(admin))
    found = admin.page("audit", search="topic:audited")
    assert {line["is_refused"] for line in found["lines"]} == {True, False}
    (created,) = (line for line in found["lines"] if line["request"] == "CreateTopics")
    assert (created["principal"], created["outcome"]) == ("User:ANONYMOUS", {"ok": 1})
    refused = admin.page("audit", search="topic:audited", only="refused")["lines"]
    assert {(line["principal"], line["why"]) for line in refused} == {
        ("User:alice", "write: no rule allows it")
    }
    times_ms = [line["at_ms"] for line in admin.page("audit")["lines"]]
    assert times_ms == sorted(times_ms, reverse=True)
    assert "topic:audited" in run_copied(found["command"])


def _refused(admin: Browser) -> Any:
    return admin.page("audit", search="topic:audited", only="refused")["lines"]


# -- changes ---------------------------------------------------------------------------------------


def test_a_rule_is_added_and_removed(admin: Browser, closed: Suwi) -> None:
    asked = rule(principal="frank", operations="read,describe", host="10.0.0.7")
    shown = admin.preview("add-acl", **asked)
    assert (shown["confirm"], len(shown["rows"])) == ("", 2)
    assert admin.change("add-acl", **asked) == "added 2 rules"
    listed = closed.json("acls", "list", "--principal", "frank")
    assert {(each["operation"], each["host"]) for each in listed} == {
        ("read", "10.0.0.7"),
        ("describe", "10.0.0.7"),
    }
    shown = admin.preview("remove-acl", **asked)
    assert "User:frank loses the right to read on topic:orders." in shown["notes"]
    assert admin.change("remove-acl", **asked) == "removed 2 rules"
    assert closed.json("acls", "list", "--principal", "frank") == []
    assert "no such rule" in admin.refusal("remove-acl", **asked)[0]
    run_copied(shown["command"].replace("remove", "add"))
    run_copied(shown["command"])


def test_a_rule_that_denies_is_confirmed(admin: Browser, closed: Suwi) -> None:
    asked = rule(principal="grace", is_denial=True)
    shown = admin.preview("add-acl", **asked)
    assert shown["confirm"] == "User:grace"
    refused = admin.order("add-acl", {"values": asked, "is_preview": False})
    assert (refused.status, refused.json()["field"]) == (400, "confirm")
    assert closed.json("acls", "list", "--principal", "grace") == []
    admin.change("add-acl", **asked)
    assert admin.preview("remove-acl", **asked)["confirm"] == ""
    admin.change("remove-acl", **asked)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"resource": "orders"}, "resource"),
        ({"principal": ":"}, "principal"),
        ({"operations": "reed"}, "operations"),
        ({"host": "10.0.0.0/99"}, "host"),
    ],
)
def test_what_is_wrong_with_a_rule_is_said_at_its_field(
    admin: Browser, values: dict[str, str], field: str
) -> None:
    assert admin.refusal("add-acl", **rule(**values))[1] == field


def test_without_an_authorizer_no_rule_is_added(editor: Browser) -> None:
    assert "No Authorizer" in editor.refusal("add-acl", **rule())[0]


def made(text: str, *, denies: bool = False) -> AclBinding:
    who, operation, resource = text.split()
    (one,) = read_rules([who], operation, read_pattern(resource), ["*"], denies=denies)
    return one


def access(*rules: AclBinding, is_open: bool = False) -> Access:
    settings = AccessSettings(["User:root"], is_open, is_known=True)
    return Access(NO_RULES.replaced((), rules), settings)


def test_to_remove_the_last_rule_that_gives_the_user_a_right_is_confirmed() -> None:
    own, everyone = made("alice read topic:a"), made("User:* read topic:*")
    assert _lost(access(own), [own], "alice")[0]
    assert not _lost(access(own), [own], "bob")[0]
    assert not _lost(access(own, everyone), [own], "alice")[0]
    assert _lost(access(everyone), [everyone], "alice")[0]
    assert not _lost(access(everyone), [everyone], "root")[0]
    prefix = made("alice read topic:a*")
    assert _lost(access(own, prefix), [prefix], "alice")[0]


def test_to_take_somebody_the_right_to_change_rules_is_confirmed() -> None:
    alter, everything = made("alice alter cluster"), made("alice all cluster")
    for one in (alter, everything):
        assert _lost(access(one), [one], None)[0] == [
            "User:alice can change no access rules any more."
        ]
    assert not _lost(access(alter, everything), [alter], None)[0]
    assert not _lost(access(alter), [made("alice describe cluster")], None)[0]


def test_the_first_and_the_last_rule_about_something_that_is_open_say_so() -> None:
    one, prefix = made("alice read topic:a"), made("alice read topic:a*")
    assert _closed(access(is_open=True), one)
    assert not _closed(access(), one)
    assert not _closed(access(prefix, is_open=True), one)
    assert _closed(access(one, is_open=True), prefix)
    locked_out, notes = _lost(access(one, is_open=True), [one], "alice")
    assert locked_out == []
    assert any("everybody may use it" in note for note in notes)


def test_a_quota_is_set_shown_with_how_close_its_client_is_and_removed(
    admin: Browser, closed: Suwi
) -> None:
    entity = {"client-id": "hungry"}
    assert admin.change("set-quota", entity=entity, key="producer_byte_rate", value="500") == (
        "set producer_byte_rate=500 of client-id:hungry"
    )
    (told,) = closed.json("quotas", "list", "--client-id", "hungry")
    assert told["quotas"] == {"producer_byte_rate": 500}
    with RawClient(closed.broker) as root, RawClient(closed.broker, "hungry") as client:
        root.create_topic("eaten")
        client.produce("eaten", BATCH)
    page = until(lambda: _with_usages(admin.page("quotas", usage_search="hungry", search="hungry")))
    (row,), (usage,) = page["rows"], page["usages"]
    assert (row["names"], row["key"], row["limit"]) == (entity, "producer_byte_rate", 500)
    assert (usage["entity"], usage["limit"]) == ("client-id:hungry", 500)
    assert usage["used"] > 0
    assert usage["throttle_ms"] > 0
    assert page["silent"] == []
    shown = admin.preview("remove-quota", entity=entity, key="producer_byte_rate")
    assert shown["rows"] == [
        {"what": "client-id:hungry producer_byte_rate", "before": "500", "after": ""}
    ]
    run_copied(shown["command"])
    assert "has no" in admin.refusal("remove-quota", entity=entity, key="producer_byte_rate")[0]


def test_quotas_whose_names_read_alike_are_two(admin: Browser) -> None:
    entities = [{"client-id": "a user:b"}, {"client-id": "a", "user": "b"}]
    for entity in entities:
        admin.change("set-quota", entity=entity, key="producer_byte_rate", value="1000000")
    rows = admin.page("quotas", search="client-id:a user:b")["rows"]
    assert sorted(len(row["names"]) for row in rows) == [1, 2]
    for entity in entities:
        admin.change("remove-quota", entity=entity, key="producer_byte_rate")


def _with_usages(page: Any) -> Any:
    return page if page["usages"] else None


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"entity": {}}, "entity"),
        ({"entity": {"topic": "a"}}, "entity"),
        ({"entity": {"ip": "*", "user": "a"}}, "entity"),
        ({"key": "producer_byte"}, "key"),
        ({"value": "much"}, "value"),
        ({"value": "-1"}, "value"),
        ({"value": "1", "key": "connection_creation_rate"}, "value"),
    ],
)
def test_what_is_wrong_with_a_quota_is_said_at_its_field(
    admin: Browser, values: dict[str, object], field: str
) -> None:
    asked = {"entity": {"user": "a"}, "key": "producer_byte_rate", "value": "1", **values}
    assert admin.refusal("set-quota", **asked)[1] == field
