"""What surrounds the pages: the session, the navigation, language, colors, narrow screens."""

import gzip
import re
from pathlib import Path

from playwright.sync_api import Browser, Page, Route, expect

from suwi.console.server import STATIC
from tests.browser.support import go, serious_violations, take_picture, tile
from tests.cli.support import Suwi
from tests.console.support import ConsoleThread

FIRST_LOAD_BYTES_MAX = 150_000


def test_the_token_is_not_in_the_address(page: Page, console: ConsoleThread) -> None:
    assert page.url == f"http://127.0.0.1:{console.port}/#/local/overview"


def test_without_a_session_the_page_says_how_to_get_one(
    chromium: Browser, console: ConsoleThread
) -> None:
    page = chromium.new_page()
    page.goto(f"http://127.0.0.1:{console.port}/#/local/topics")
    expect(page.locator("[data-state=forbidden]")).to_contain_text("suwi console printed")
    take_picture(page, "forbidden")
    page.close()


def test_the_first_load_is_small(page: Page) -> None:
    files = [file for file in Path(STATIC).rglob("*") if file.is_file()]
    assert sum(len(gzip.compress(file.read_bytes())) for file in files) <= FIRST_LOAD_BYTES_MAX


def test_the_overview_shows_what_status_says(page: Page, suwi: Suwi) -> None:
    told = suwi.json("status")
    go(page, "overview")
    assert tile(page, "brokers") == "1/1"
    assert tile(page, "topics") == str(told["topics"])
    assert tile(page, "partitions") == str(told["partitions"])
    assert tile(page, "controller") == f"broker {told['controller']}"
    assert page.locator("[data-health]").inner_text() == told["health"]
    take_picture(page, "overview")
    assert serious_violations(page) == []


def test_the_charts_show_what_the_console_has_sampled(page: Page, suwi: Suwi) -> None:
    suwi.ok("topics", "create", "sampled")
    suwi.ok("produce", "sampled", stdin=b"a\n" * 50)
    (broker,) = suwi.json("status")["brokers"]
    for path in (["overview"], ["topics", "sampled"], ["brokers", str(broker["node"])]):
        go(page, *path)
        page.wait_for_function(
            "() => +(document.querySelector('[data-hour]')?.dataset.points ?? 0) > 1"
        )
        if "sampled" in path:
            expect(page.locator("[data-hour=bytes_per_s] h2")).to_contain_text("B/s")
            take_picture(page, "topic-charts")
    assert serious_violations(page) == []


def test_a_command_can_be_copied(page: Page, suwi: Suwi) -> None:
    go(page, "overview")
    page.click(".copy")
    expect(page.locator(".copy")).to_have_text("Copied")
    copied = page.evaluate("() => navigator.clipboard.readText()")
    assert copied == f"suwi status --broker {suwi.broker}"


def test_a_command_that_the_browser_does_not_copy_says_so(page: Page) -> None:
    go(page, "overview")
    page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject() }")
    page.click(".copy")
    expect(page.locator(".copy")).to_have_text("The browser does not let it be copied")


def test_a_finding_leads_to_the_page_of_its_group(page: Page) -> None:
    finding = {"level": "warning", "about": "group a b", "problem": "p", "advice": "a"}

    def answer(route: Route) -> None:
        if "event-stream" in route.request.headers["accept"]:
            route.abort()
        else:
            route.fulfill(json=route.fetch().json() | {"findings": [finding]})

    page.route("**/overview", answer)
    go(page, "topics")
    go(page, "overview")
    page.click("[data-attention] a")
    assert page.url.endswith("#/local/groups/a%20b")


def test_a_cluster_that_does_not_answer_says_so(page: Page) -> None:
    go(page, "overview", cluster="away")
    expect(page.locator("[data-state=unreachable]")).to_contain_text("does not answer")
    take_picture(page, "unreachable")


def test_language_and_colors_can_be_chosen_and_are_remembered(page: Page) -> None:
    go(page, "overview")
    page.select_option("select[aria-label=Colors]", "dark")
    page.select_option("select[aria-label=Language]", "ko")
    expect(page.locator("h1")).to_have_text("개요")
    page.reload()
    expect(page.locator("h1")).to_have_text("개요")
    assert page.locator("html").get_attribute("lang") == "ko"
    assert page.locator("html").get_attribute("data-theme") == "dark"
    take_picture(page, "overview-korean-dark")


def test_a_narrow_screen_scrolls_in_one_direction_only(page: Page) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    go(page, "overview")
    take_picture(page, "overview-narrow")
    width = page.evaluate("() => document.documentElement.scrollWidth")
    assert width <= 360


def test_every_text_has_a_korean_one() -> None:
    source = Path(__file__).parents[2] / "console/src"
    korean = (source / "korean.ts").read_text()
    known = set(re.findall(r'^  (?:"((?:[^"\\]|\\.)*)"|(\w+)):', korean, re.MULTILINE))
    keys = {quoted or word for quoted, word in known}
    used = set()
    for file in source.rglob("*.tsx"):
        used |= set(re.findall(r'\bt\(\s*"((?:[^"\\]|\\.)*)"', file.read_text()))
        # Of tables of texts, too: they are told from other literals by their first letter.
        used |= set(re.findall(r'"([A-Z][^"\n]{2,})"', file.read_text()))
    names = {"Suwi", "User:alice", "ZooKeeper"}
    assert used - keys == names
