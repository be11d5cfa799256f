"""The overview says what `suwi status` and `suwi doctor` say."""

import pytest

from suwi.console import overview
from tests.broker_process import unique_name
from tests.cli.support import Suwi
from tests.console.support import Browser
from tests.testing.clients import until


def test_it_says_what_the_command_line_says(browser: Browser, suwi: Suwi, topic: str) -> None:
    shown, told = browser.page("overview"), suwi.json("status")
    for key in ("cluster_id", "controller", "partitions", "topics"):
        assert shown[key] == told[key]
    assert shown["is_healthy"] == (told["health"] == "healthy")
    assert [b["node"] for b in shown["brokers"]] == [b["node"] for b in told["brokers"]]
    assert shown["command"] == f"suwi status --broker {suwi.broker}"


def test_a_group_that_is_far_behind_needs_attention(
    browser: Browser, suwi: Suwi, topic: str
) -> None:
    suwi.produce(topic, "x\n" * 1100)
    group = unique_name("group")
    suwi.ok("consume", topic, "--group", group, "--from-beginning", "--count", 1)
    # The console may not have heard of the new topic yet.
    until(lambda: group in [each["group"] for each in browser.page("overview")["groups_behind"]])
    shown = browser.page("overview")
    (finding,) = [each for each in shown["findings"] if each["about"] == f"group {group}"]
    assert finding["level"] == "warning"
    assert "records behind" in finding["problem"]


def test_findings_that_are_not_shown_are_counted(
    browser: Browser, suwi: Suwi, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    suwi.produce(topic, "x\n" * 1100)
    for number in range(3):
        group = f"{topic}-{number}"
        suwi.ok("consume", topic, "--group", group, "--from-beginning", "--count", 1)
    monkeypatch.setattr(overview, "_SHOWN_MAX", 2)
    until(lambda: browser.page("overview")["findings_count"] >= 3)
    assert len(browser.page("overview")["findings"]) == 2


def test_a_cluster_that_does_not_answer_is_unreachable(browser: Browser) -> None:
    assert browser.problem("overview", "away") == (503, "unreachable")


def test_it_is_followed_by_a_stream(browser: Browser, suwi: Suwi, topic: str) -> None:
    events = browser.events("overview")
    name, first = next(events)
    assert name == "page"
    suwi.ok("topics", "create", f"{topic}-more")
    assert any(page["topics"] > first["topics"] for _, page in events)
    events.close()


def test_the_stream_of_a_cluster_that_does_not_answer_says_so(browser: Browser) -> None:
    events = browser.events("overview", "away")
    name, problem = next(events)
    assert (name, problem["kind"]) == ("problem", "unreachable")
    events.close()
