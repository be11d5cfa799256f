"""Replicas are moved in a real browser, on three brokers."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from playwright.sync_api import Browser, Page, expect

from suwi.console.server import STATIC
from tests.broker_process import BrokerProcess
from tests.browser.conftest import PATIENCE_MS, SuwiProcess
from tests.browser.support import go, serious_violations, take_picture
from tests.console.support import ConsoleThread

TOPIC = "water"


@pytest.fixture(scope="module")
def brokers(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """With a topic whose replication is so slow that a move does not end by itself."""
    data = tmp_path_factory.mktemp("brokers") / "data"
    with BrokerProcess(data, options=("--brokers", "3")) as process:
        suwi = SuwiProcess(process.address)
        suwi.ok("topics", "create", TOPIC, "--replication-factor", 2)
        producer = Producer({"bootstrap.servers": process.address})
        for _ in range(20):
            producer.produce(TOPIC, b"w" * 100_000)
        assert producer.flush(60) == 0
        for side in ("leader", "follower"):
            suwi.ok("configs", "set", "broker", "all", f"{side}.replication.throttled.rate=1000")
            suwi.ok("configs", "set", "topic", TOPIC, f"{side}.replication.throttled.replicas=*")
        yield process.address


@pytest.fixture
def editor(chromium: Browser, brokers: str) -> Iterator[Page]:
    with ConsoleThread(Path(STATIC), allow_changes=True, local=brokers) as console:
        page = chromium.new_page(viewport={"width": 1280, "height": 900}, locale="en-US")
        page.set_default_timeout(PATIENCE_MS)
        page.goto(console.address)
        page.wait_for_selector("nav")
        yield page
        page.close()


def replicas(brokers: str) -> list[int]:
    """As another client sees them."""
    metadata = AdminClient({"bootstrap.servers": brokers}).list_topics(TOPIC, timeout=60)
    return list(metadata.topics[TOPIC].partitions[0].replicas)


def test_a_move_is_shown_followed_and_cancelled(editor: Page, brokers: str) -> None:
    before = replicas(brokers)
    (other,) = {1, 2, 3} - set(before)
    go(editor, "topics", TOPIC)
    editor.click("[data-change=move-replicas]")
    editor.fill("dialog input[name=replicas]", f"{before[0]}, 9")
    expect(editor.locator("[data-refusal]")).to_contain_text("broker 9 is not running")
    editor.fill("dialog input[name=replicas]", f"{before[0]}, {other}")
    row = editor.locator(f"[data-plan-row='{TOPIC}-0'] td")
    expect(row.nth(2)).to_have_text(f"{before[0]}, {other}")
    take_picture(editor, "change-move", is_whole=False)
    editor.click("[data-apply]")
    expect(editor.locator("[data-done]")).to_have_text("moving 1 partition")
    editor.keyboard.press("Escape")
    go(editor, "brokers")
    running = editor.locator("[data-reassignments]")
    expect(running).to_contain_text(f"{TOPIC}-0")
    take_picture(editor, "change-running")
    assert serious_violations(editor) == []
    assert set(replicas(brokers)) == {1, 2, 3}
    editor.click(f"[data-change='cancel {TOPIC}-0']")
    expect(editor.locator("[data-apply]")).to_be_enabled()
    editor.click("[data-apply]")
    expect(editor.locator("[data-done]")).to_be_visible()
    editor.keyboard.press("Escape")
    expect(running).to_have_count(0)
    assert sorted(replicas(brokers)) == sorted(before)


def test_the_plan_of_a_drain_is_shown_before_anything_moves(editor: Page, brokers: str) -> None:
    before = replicas(brokers)
    (other,) = {1, 2, 3} - set(before)
    go(editor, "brokers")
    editor.click("[data-change=drain-broker]")
    editor.select_option("select[name=broker]", str(before[1]))
    row = editor.locator(f"[data-plan-row='{TOPIC}-0'] td")
    expect(row.nth(2)).to_contain_text(str(other))
    take_picture(editor, "change-drain", is_whole=False)
    assert replicas(brokers) == before
