"""Users of the cluster log in, see what they may, and log out."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from suwi.console.server import STATIC
from tests.broker_process import BrokerProcess
from tests.browser.conftest import PATIENCE_MS
from tests.browser.support import serious_violations, take_picture
from tests.console.public_console import public_console, secure_broker
from tests.console.support import ConsoleThread
from tests.security.secure_broker import SCRAM_PASSWORDS


@pytest.fixture(scope="module")
def public(
    broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ConsoleThread]:
    """Skipped where the other console is."""
    folder = tmp_path_factory.mktemp("public")
    with secure_broker(folder) as secure, public_console(folder, secure, Path(STATIC)) as console:
        yield console


@pytest.fixture
def visitor(chromium: Browser, public: ConsoleThread) -> Iterator[Page]:
    """At the log-in."""
    context = chromium.new_context(ignore_https_errors=True, locale="en-US")
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(f"{public.address}#/first/topics")
    page.wait_for_selector("[data-state=login]")
    yield page
    context.close()


def log_in(page: Page, password: str) -> None:
    page.fill("input[name=user]", "dave")
    page.fill("input[name=password]", password)
    page.press("input[name=password]", "Enter")


def test_a_user_logs_in_and_comes_to_the_page_that_was_asked_for(visitor: Page) -> None:
    take_picture(visitor, "log-in")
    assert serious_violations(visitor) == []
    log_in(visitor, SCRAM_PASSWORDS["dave"])
    expect(visitor.locator("h1")).to_have_text("Topics")
    visitor.click("text=Log out dave")
    visitor.wait_for_selector("[data-state=login]")
    visitor.reload()
    visitor.wait_for_selector("[data-state=login]")


def test_who_could_not_be_logged_out_is_told_so(visitor: Page) -> None:
    log_in(visitor, SCRAM_PASSWORDS["dave"])
    expect(visitor.locator("h1")).to_have_text("Topics")
    visitor.route("**/api/logout", lambda route: route.abort())
    visitor.click("text=Log out dave")
    expect(visitor.locator("[role=alert]")).to_contain_text("still logged in")
    expect(visitor.locator("h1")).to_have_text("Topics")
    visitor.unroute("**/api/logout")
    visitor.click("text=Log out dave")
    visitor.wait_for_selector("[data-state=login]")


def test_a_wrong_password_is_told_and_can_be_corrected(visitor: Page) -> None:
    log_in(visitor, "a wrong one")
    expect(visitor.locator("[role=alert]")).to_contain_text("no cluster has this user")
    assert serious_violations(visitor) == []
    visitor.wait_for_timeout(1500)  # the next attempt has to wait
    log_in(visitor, SCRAM_PASSWORDS["dave"])
    expect(visitor.locator("h1")).to_have_text("Topics")


def test_who_is_logged_out_elsewhere_has_to_log_in_again(visitor: Page) -> None:
    log_in(visitor, SCRAM_PASSWORDS["dave"])
    expect(visitor.locator("h1")).to_have_text("Topics")
    other = visitor.context.new_page()
    other.goto(visitor.url)
    other.set_default_timeout(PATIENCE_MS)
    other.click("text=Log out dave")
    visitor.wait_for_selector("[data-state=login]")
