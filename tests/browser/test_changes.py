"""Changes in a real browser, and what another client sees of them."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from playwright.sync_api import Browser, Page, expect

from suwi.console.server import STATIC
from tests.broker_process import BrokerProcess
from tests.browser.conftest import SuwiProcess
from tests.browser.support import cells, go, serious_violations, take_picture, watched_page
from tests.console.support import ConsoleThread

STOCK = "stock"
GROUP = "packers"


@pytest.fixture(scope="module", autouse=True)
def records(suwi: SuwiProcess, broker: BrokerProcess) -> None:
    suwi.ok("topics", "create", STOCK, "--partitions", 2)
    producer = Producer({"bootstrap.servers": broker.address})
    for number in range(20):
        value = json.dumps({"item": number}).encode() if number else b"\xff\x00\xfe"
        producer.produce(STOCK, value, f"item-{number}", partition=0, headers=[("trace", b"t")])
    assert producer.flush(60) == 0
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": GROUP})
    consumer.commit(offsets=[TopicPartition(STOCK, 0, 12)], asynchronous=False)
    consumer.close()


@pytest.fixture(scope="module")
def changing(broker: BrokerProcess) -> Iterator[ConsoleThread]:
    with ConsoleThread(Path(STATIC), allow_changes=True, local=broker.address) as console:
        yield console


@pytest.fixture
def editor(chromium: Browser, changing: ConsoleThread) -> Iterator[Page]:
    """A page of a console that may change something."""
    own, viewport = f"http://127.0.0.1:{changing.port}/", {"width": 1280, "height": 900}
    options = {"viewport": viewport, "locale": "en-US"}
    with watched_page(chromium, own, may_be_refused=True, **options) as page:
        page.goto(changing.address)
        page.wait_for_selector("nav")
        yield page


@pytest.fixture
def outside(broker: BrokerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.address})


def open_dialog(page: Page, change: str) -> None:
    page.click(f"[data-change='{change}']")
    expect(page.locator("dialog")).to_be_visible()


def apply(page: Page) -> str:
    """Do it, as soon as what it does is shown; what the console says was done."""
    expect(page.locator("[data-apply]")).to_be_enabled()
    page.click("[data-apply]")
    done = page.locator("[data-done]")
    expect(done).to_be_visible()
    return done.inner_text()


def test_a_console_that_only_reads_has_no_buttons_for_changes(page: Page) -> None:
    for path in (["topics"], ["topics", STOCK], ["groups", GROUP], ["brokers"]):
        go(page, *path)
        page.wait_for_selector("h1")
        assert page.locator("[data-change]").count() == 0


def test_a_topic_is_created_and_a_wrong_value_is_shown_at_its_field(
    editor: Page, outside: AdminClient
) -> None:
    go(editor, "topics")
    open_dialog(editor, "create-topic")
    editor.fill("input[name=topic]", "parcels")
    editor.fill("input[name=partitions]", "3")
    editor.fill("textarea[name=configs]", "retention.ms=soon")
    expect(editor.locator("[data-wrong=configs]")).to_contain_text("retention.ms")
    assert editor.locator("[data-apply]").is_disabled()
    take_picture(editor, "change-create-wrong", is_whole=False)
    assert serious_violations(editor) == []
    editor.fill("textarea[name=configs]", "retention.ms=86400000")
    expect(editor.locator("[data-shown-command]")).to_contain_text("suwi topics create parcels")
    take_picture(editor, "change-create", is_whole=False)
    assert apply(editor) == "created parcels"
    editor.keyboard.press("Escape")
    expect(editor.locator("h1")).to_have_text("parcels")
    assert len(outside.list_topics(timeout=60).topics["parcels"].partitions) == 3


def test_a_dialog_keeps_the_focus_and_closes_with_escape(editor: Page) -> None:
    go(editor, "topics")
    open_dialog(editor, "create-topic")
    for _ in range(12):
        editor.keyboard.press("Tab")
        inside = "() => ['DIALOG', 'BODY'].includes(document.activeElement.tagName)"
        assert editor.evaluate(
            f"() => document.activeElement.closest('dialog') !== null || ({inside})()"
        )
    editor.keyboard.press("Escape")
    expect(editor.locator("dialog")).to_have_count(0)
    focused = "() => document.activeElement.dataset.change"
    assert editor.evaluate(focused) == "create-topic"


def test_a_topic_is_deleted_when_its_name_is_typed(
    editor: Page, suwi: SuwiProcess, outside: AdminClient
) -> None:
    suwi.ok("topics", "create", "waste")
    go(editor, "topics", "waste")
    take_picture(editor, "change-topic-page")
    open_dialog(editor, "delete-topic")
    expect(editor.locator("[data-plan]")).to_be_visible()
    assert editor.locator("[data-apply]").is_disabled()
    editor.fill("input[name=confirm]", "wast")
    assert editor.locator("[data-apply]").is_disabled()
    editor.fill("input[name=confirm]", "waste")
    take_picture(editor, "change-delete", is_whole=False)
    assert serious_violations(editor) == []
    assert apply(editor) == "deleted waste"
    editor.keyboard.press("Escape")
    expect(editor.locator("h1")).to_have_text("Topics")
    assert "waste" not in outside.list_topics(timeout=60).topics


def test_a_setting_is_changed(editor: Page, suwi: SuwiProcess) -> None:
    go(editor, "topics", STOCK)
    open_dialog(editor, "config retention.ms")
    editor.fill("input[name=configs]", "5000000")
    take_picture(editor, "change-config", is_whole=False)
    apply(editor)
    editor.keyboard.press("Escape")
    expect(editor.locator("tr[data-row='retention.ms'] .tag")).to_have_text("topic")
    (told,) = suwi.json("topics", "describe", STOCK)
    assert told["configs"]["retention.ms"] == "5000000"


def test_a_record_is_edited_and_sent_again(editor: Page, broker: BrokerProcess) -> None:
    go(editor, "records", STOCK, query="?from=start&partition=0&record=0:0")
    editor.wait_for_selector("[data-record] [data-change=send-record]")
    editor.click("[data-record] [data-change=send-record]")
    expect(editor.locator("dialog input[name=partition]")).to_have_value("0")
    assert editor.locator("dialog textarea").nth(1).input_value() == "/wD+"
    editor.fill("dialog input[name=partition]", "1")
    expect(editor.locator("dialog input[name=partition]")).to_have_value("1")
    editor.locator("dialog textarea").nth(0).fill("edited")
    take_picture(editor, "change-send", is_whole=False)
    assert serious_violations(editor) == []
    assert apply(editor) == f"wrote {STOCK}-1, offset 0"
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "outside"})
    consumer.assign([TopicPartition(STOCK, 1, 0)])
    message = consumer.poll(60)
    assert message is not None
    assert (message.key(), message.value()) == (b"edited", b"\xff\x00\xfe")
    assert message.headers() == [("trace", b"t")]
    consumer.close()


def test_a_group_is_reset_as_it_was_shown(editor: Page, broker: BrokerProcess) -> None:
    go(editor, "groups", GROUP)
    open_dialog(editor, "reset-group")
    editor.select_option("select[name=topic]", STOCK)
    editor.fill("dialog input[name=partition]", "0")
    editor.select_option("select[name=to]", "to-offset")
    editor.fill("input[name=value]", "3")
    row = editor.locator(f"[data-plan-row='{STOCK}-0'] td")
    expect(row.nth(2)).to_have_text("3")
    assert row.all_inner_texts() == [f"{STOCK}-0", "12", "3"]
    take_picture(editor, "change-reset", is_whole=False)
    assert serious_violations(editor) == []
    apply(editor)
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": GROUP})
    (place,) = consumer.committed([TopicPartition(STOCK, 0)], timeout=60)
    assert place.offset == 3
    consumer.close()


def test_a_broker_that_cannot_be_drained_says_why(editor: Page, suwi: SuwiProcess) -> None:
    (told,) = suwi.json("status")["brokers"]
    go(editor, "brokers")
    open_dialog(editor, "drain-broker")
    editor.select_option("select[name=broker]", str(told["node"]))
    expect(editor.locator("[data-refusal]")).to_contain_text("too few other brokers")
    take_picture(editor, "change-drain-refused", is_whole=False)


def test_shown_records_are_exported(editor: Page) -> None:
    go(editor, "records", STOCK, query="?from=start&partition=0")
    editor.wait_for_selector("[data-export]")
    with editor.expect_download() as downloading:
        editor.click("[data-export] a:first-of-type")
    path = downloading.value.path()
    offsets = [json.loads(line)["offset"] for line in path.read_text().splitlines()]
    assert offsets == list(range(20))
    assert downloading.value.suggested_filename == f"{STOCK}.jsonl"


def test_changes_speak_korean_and_fit_a_narrow_screen(editor: Page) -> None:
    editor.set_viewport_size({"width": 360, "height": 740})
    go(editor, "topics", STOCK)
    editor.select_option("select[aria-label=Language]", "ko")
    open_dialog(editor, "send-record")
    expect(editor.locator("dialog h2")).to_have_text(f"{STOCK}에 레코드 보내기")
    take_picture(editor, "change-narrow-korean", is_whole=False)
    assert editor.evaluate("() => document.documentElement.scrollWidth") <= 360
    assert editor.evaluate("() => document.querySelector('dialog').scrollWidth") <= 360


def test_a_setting_of_a_topic_is_unset(editor: Page, suwi: SuwiProcess) -> None:
    suwi.ok("topics", "alter", STOCK, "--config", "max.message.bytes=1000000")
    go(editor, "topics", STOCK)
    expect(editor.locator("tr[data-row='max.message.bytes'] .tag")).to_have_text("topic")
    open_dialog(editor, "config max.message.bytes")
    editor.select_option("select[name=way]", "unset")
    apply(editor)
    (told,) = suwi.json("topics", "describe", STOCK)
    assert "max.message.bytes" not in told["configs"]
    assert cells(editor, "max.message.bytes")[0] == "max.message.bytes"
