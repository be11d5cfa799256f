"""Every page while there is nothing to show: loading, forbidden, unreachable, empty."""

import json

import pytest
from playwright.sync_api import Page, Route, expect

from tests.broker_process import BrokerProcess
from tests.browser.conftest import SuwiProcess
from tests.browser.support import go, serious_violations, take_picture

PAGES = [
    ["overview"],
    ["topics"],
    ["topics", "t"],
    ["records", "t"],
    ["groups"],
    ["groups", "g"],
    ["transactions"],
    ["transactions", "t"],
    ["producers", "t"],
    ["pipelines"],
    ["brokers"],
    ["brokers", "1"],
    ["access"],
    ["quotas"],
    ["audit"],
]
API = "**/api/clusters/local/**"

every_page = pytest.mark.parametrize("path", PAGES, ids="-".join)


@every_page
def test_a_page_of_a_cluster_that_does_not_answer_says_so(page: Page, path: list[str]) -> None:
    go(page, *path, cluster="away")
    expect(page.locator("[data-state=unreachable]")).to_contain_text("does not answer")


@every_page
def test_a_page_that_the_user_may_not_see_says_so(page: Page, path: list[str]) -> None:
    problem = json.dumps({"kind": "forbidden", "text": "topic authorization failed"})
    page.route(API, lambda route: route.fulfill(status=403, body=problem))
    go(page, "topics", cluster="away")
    go(page, *path)
    expect(page.locator("[data-state=forbidden]")).to_contain_text("topic authorization failed")


@every_page
def test_a_page_says_that_it_is_loading(page: Page, path: list[str]) -> None:
    held: list[Route] = []
    go(page, "topics", cluster="away")
    page.route(API, lambda route: held.append(route))
    page.evaluate("hash => { location.hash = hash }", f"#/local/{'/'.join(path)}")
    page.wait_for_selector("[data-state=loading]")
    for route in held:
        route.abort()


@pytest.mark.parametrize("name", ["topics", "groups", "transactions", "pipelines"])
def test_a_list_without_anything_says_so(page: Page, name: str) -> None:
    go(page, name, cluster="empty")
    said = "No pipeline publishes" if name == "pipelines" else "There are no"
    expect(page.locator("[data-state=empty]")).to_contain_text(said)
    take_picture(page, f"empty-{name}")
    assert serious_violations(page) == []


def test_a_topic_without_records_or_producers_says_so(
    page: Page, suwi: SuwiProcess, broker: BrokerProcess
) -> None:
    suwi.ok("topics", "create", "bare")
    go(page, "records", "bare")
    expect(page.locator("[data-state=empty]")).to_contain_text("There are no records here.")
    go(page, "producers", "bare")
    expect(page.locator("[data-state=empty]")).to_contain_text("No idempotent")


def test_a_page_that_does_not_exist_is_missing(page: Page) -> None:
    go(page, "nothing")
    expect(page.locator("[data-state=missing]")).to_contain_text("nothing")
