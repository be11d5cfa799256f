"""Access rules, users, quotas and the audit log in a real browser, and what others see of them."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from playwright.sync_api import Browser, Page, expect

from suwi.console.server import STATIC
from suwi.records.builder import build_batch
from suwi.records.record import Record
from tests.broker_process import BrokerProcess
from tests.browser.conftest import SuwiProcess
from tests.browser.support import cells, go, serious_violations, take_picture, watched_page
from tests.browser.test_changes import apply, open_dialog
from tests.console.support import ConsoleThread
from tests.raw_client import RawClient
from tests.security.access import GuardedBroker
from tests.security.conftest import add_scram_users

BATCH = build_batch([Record(0, 1000, None, bytes(20_000))], base_offset=0)
RULES = (
    ("billing", "read", "topic:orders"),
    ("billing", "read", "group:billing"),
    ("shop", "write", "topic:orders*", "--from", "10.0.0.0/8"),
    ("User:*", "describe", "topic:*"),
    ("intern", "all", "topic:salaries", "--deny"),
    ("operator", "alter", "cluster"),
)


@pytest.fixture(scope="module")
def guarded(
    broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GuardedBroker]:
    """With rules, users, quotas that are used, changes and refusals."""
    folder = tmp_path_factory.mktemp("guarded")
    with GuardedBroker(folder, **{"audit.log.dir": str(folder / "audit")}) as process:
        suwi = SuwiProcess(process.address)
        for rule in RULES:
            suwi.ok("acls", "add", *rule)
        suwi.ok("quotas", "set", "producer_byte_rate=2500", "--client-id", "importer")
        suwi.ok("quotas", "set", "producer_byte_rate=1000000", "--client-id", "shop")
        suwi.ok("quotas", "set", "request_percentage=20", "--user", "*")
        with RawClient(process.address) as root, process.log_in("alice") as alice:
            root.create_topic("orders")
            root.create_topic("salaries")
            add_scram_users(root, {"billing": "b", "operator": "o", "shop": "s"})
            for _ in range(3):
                assert alice.produce("salaries", BATCH).error
        for client_id in ("importer", "shop"):
            with RawClient(process.address, client_id) as client:
                assert client.produce("orders", BATCH).error == 0
        yield process


@pytest.fixture(scope="module")
def administered(guarded: GuardedBroker) -> Iterator[ConsoleThread]:
    with ConsoleThread(Path(STATIC), allow_changes=True, local=guarded.address) as console:
        yield console


@pytest.fixture
def admin(chromium: Browser, administered: ConsoleThread) -> Iterator[Page]:
    """A page of a console that may change something."""
    own, viewport = f"http://127.0.0.1:{administered.port}/", {"width": 1280, "height": 900}
    options = {"viewport": viewport, "locale": "en-US"}
    with watched_page(chromium, own, may_be_refused=True, **options) as page:
        page.goto(administered.address)
        page.wait_for_selector("nav")
        yield page


@pytest.fixture
def closed(guarded: GuardedBroker) -> SuwiProcess:
    return SuwiProcess(guarded.address)


def rules_of(broker: str, principal: str) -> list[str]:
    """As another client sees them."""
    wanted = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, principal, None, AclOperation.ANY,
        AclPermissionType.ANY,
    )  # fmt: skip
    outside = AdminClient({"bootstrap.servers": broker})
    found = outside.describe_acls(wanted).result(60)
    return [f"{each.permission_type.name} {each.operation.name} {each.name}" for each in found]


def test_rules_and_users_are_those_of_the_command_line(admin: Page, closed: SuwiProcess) -> None:
    go(admin, "access")
    told = closed.json("acls", "list")
    expect(admin.locator("[data-rules] tbody tr")).to_have_count(len(told))
    assert cells(admin, "allow User:shop write topic:orders* 10.0.0.0/8")[1:5] == [
        "User:shop",
        "write",
        "topic:orders*",
        "10.0.0.0/8",
    ]
    users = [each["user"] for each in closed.json("users", "list")]
    shown = admin.locator("[data-users] tbody tr")
    assert [row.get_attribute("data-row") for row in shown.all()] == users
    take_picture(admin, "access")
    assert serious_violations(admin) == []


def test_rules_are_searched_and_lead_from_a_user_to_its_own(admin: Page) -> None:
    go(admin, "access")
    admin.fill("[data-rules] input[name=search]", "nothing")
    admin.press("[data-rules] input[name=search]", "Enter")
    expect(admin.locator("[data-rules] [data-state=empty]")).to_have_text("No rule is like that.")
    admin.click("tr[data-row=billing] >> text=Show the rules")
    expect(admin.locator("[data-rules] tbody tr")).to_have_count(2)


def test_it_is_said_who_would_be_allowed_and_why(admin: Page) -> None:
    go(admin, "access")
    verdict = admin.locator("[data-verdict]")
    for who, what in (
        ("shop", "Not allowed: no rule allows it"),
        ("billing", "Allowed: allow User:billing read on topic orders from *"),
        ("intern", "Not allowed"),
    ):
        admin.fill("[data-check] input[name=principal]", who)
        admin.fill("[data-check] input[name=resource]", "topic:orders")
        admin.keyboard.press("Enter")
        expect(verdict).to_contain_text(what)
    admin.fill("[data-check] input[name=resource]", "orders")
    admin.keyboard.press("Enter")
    expect(admin.locator("[data-check] [role=alert]")).to_contain_text("is not a resource")


def test_it_is_shown_how_close_clients_are_to_their_quotas(admin: Page) -> None:
    go(admin, "access")
    admin.click("nav.tabs >> text=Quotas")
    row = admin.locator("tr[data-row='client-id:importer producer_byte_rate']").first
    expect(row).to_contain_text("2.4 KiB/s")
    expect(admin.locator("[data-quotas] tbody tr")).to_have_count(3)
    take_picture(admin, "quotas")
    assert serious_violations(admin) == []


def test_the_audit_log_marks_refusals(admin: Page) -> None:
    go(admin, "audit")
    refused = admin.locator("[data-refused=true]")
    # A second may end among the three.
    expect(refused.filter(has_text=re.compile("refused × [23]")).first).to_be_visible()
    expect(admin.locator("[data-audit]")).to_contain_text("topic:salaries")
    take_picture(admin, "audit")
    assert serious_violations(admin) == []
    admin.click("text=Only refusals")
    expect(admin.locator("[data-refused=false]")).to_have_count(0)
    expect(refused.first).to_be_visible()


def test_a_rule_is_added_and_one_that_denies_is_confirmed(
    admin: Page, guarded: GuardedBroker
) -> None:
    go(admin, "access")
    open_dialog(admin, "add-acl")
    admin.fill("dialog input[name=principal]", "User:carol")
    admin.fill("dialog input[name=resource]", "topic:orders-*")
    admin.fill("dialog input[name=host]", "10.0.0.0/99")
    expect(admin.locator("[data-wrong=host]")).to_contain_text("10.0.0.0/99")
    admin.fill("dialog input[name=host]", "")
    expect(admin.locator("[data-shown-command]")).to_contain_text(
        "suwi acls add User:carol read 'topic:orders-*'"
    )
    take_picture(admin, "change-add-rule", is_whole=False)
    assert serious_violations(admin) == []
    assert apply(admin) == "added 1 rule"
    admin.keyboard.press("Escape")
    assert rules_of(guarded.address, "User:carol") == ["ALLOW READ orders-"]
    expect(admin.locator("tr[data-row='allow User:carol read topic:orders-* *']")).to_be_visible()
    open_dialog(admin, "add-acl")
    admin.select_option("dialog select[name=permission]", "deny")
    admin.fill("dialog input[name=principal]", "User:carol")
    admin.fill("dialog input[name=resource]", "topic:orders-*")
    expect(admin.locator("dialog")).to_contain_text("can lock somebody out")
    assert admin.locator("[data-apply]").is_disabled()
    admin.fill("input[name=confirm]", "User:carol")
    take_picture(admin, "change-deny", is_whole=False)
    assert serious_violations(admin) == []
    apply(admin)
    assert "DENY READ orders-" in rules_of(guarded.address, "User:carol")


def test_the_last_rule_that_lets_somebody_change_rules_is_removed_only_if_confirmed(
    admin: Page, guarded: GuardedBroker
) -> None:
    go(admin, "access")
    open_dialog(admin, "remove-acl allow User:operator alter cluster *")
    expect(admin.locator("[data-plan]")).to_contain_text("can change no access rules any more")
    assert admin.locator("[data-apply]").is_disabled()
    admin.fill("input[name=confirm]", "User:operator")
    take_picture(admin, "change-remove-rule", is_whole=False)
    assert apply(admin) == "removed 1 rule"
    assert rules_of(guarded.address, "User:operator") == []


def test_a_quota_is_set_changed_and_removed(admin: Page, closed: SuwiProcess) -> None:
    go(admin, "quotas")
    open_dialog(admin, "set-quota")
    admin.select_option("dialog select[name=key]", "consumer_byte_rate")
    admin.fill("dialog input[name=user]", "billing")
    admin.fill("dialog input[name=client_id]", "*")
    admin.fill("dialog input[name=value]", "5000")
    take_picture(admin, "change-set-quota", is_whole=False)
    assert serious_violations(admin) == []
    apply(admin)
    admin.keyboard.press("Escape")
    name = "client-id:* user:billing consumer_byte_rate"
    (told,) = closed.json("quotas", "list", "--user", "billing")
    assert told["quotas"] == {"consumer_byte_rate": 5000}
    open_dialog(admin, f"set-quota {name}")
    admin.fill("dialog input[name=value]", "6000")
    expect(admin.locator("[data-plan]")).to_contain_text("5000")
    apply(admin)
    admin.keyboard.press("Escape")
    open_dialog(admin, f"remove-quota {name}")
    apply(admin)
    assert closed.json("quotas", "list", "--user", "billing") == []


def test_a_cluster_without_rules_and_audit_log_says_what_to_do(page: Page) -> None:
    go(page, "access")
    expect(page.locator("[data-state=off]")).to_contain_text("authorizer.class.name")
    assert page.locator("[data-change]").count() == 0
    take_picture(page, "access-off")
    assert serious_violations(page) == []
    go(page, "audit")
    expect(page.locator("[data-state=off]")).to_contain_text("audit.log.dir")
    take_picture(page, "audit-off")
    go(page, "quotas", cluster="empty")
    expect(page.locator("[data-quotas] [data-state=empty]")).to_contain_text("There are no quotas.")
    expect(page.locator("[data-usages] [data-state=empty]")).to_be_visible()
    take_picture(page, "empty-quotas")


@pytest.mark.parametrize("name", ["access", "quotas", "audit"])
def test_the_pages_speak_korean_and_fit_a_narrow_screen(admin: Page, name: str) -> None:
    admin.set_viewport_size({"width": 360, "height": 740})
    go(admin, name)
    admin.select_option("select[aria-label=Colors]", "dark")
    admin.select_option("select[aria-label=Language]", "ko")
    titles = {"access": "접근 권한", "quotas": "쿼터", "audit": "감사 로그"}
    expect(admin.locator("h1")).to_have_text(titles[name])
    take_picture(admin, f"{name}-narrow-korean")
    assert admin.evaluate("() => document.documentElement.scrollWidth") <= 360
