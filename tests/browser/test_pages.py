"""What each page shows is what an outside client says."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from playwright.sync_api import Browser, Page, Route, expect

from suwi.console.server import STATIC
from suwi.testing import Cluster
from tests.broker_process import BrokerProcess
from tests.browser.conftest import PATIENCE_MS, SuwiProcess
from tests.browser.support import cells, go, serious_violations, take_picture, tile
from tests.console.support import ConsoleThread
from tests.pipeline_status import QUERY, named, publish
from tests.testing.clients import until

ORDERS = "orders"
HOSTILE = "hostile"
PAYMENTS = "payments"
COPIER = "copier"
GROUP = "billing"
ORDERS_COUNT = 120
SCRIPT = b"<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


@pytest.fixture(scope="module", autouse=True)
def records(suwi: SuwiProcess, broker: BrokerProcess) -> None:
    """Written and read by another client."""
    suwi.ok("topics", "create", ORDERS, "--partitions", 3)
    suwi.ok("topics", "create", HOSTILE)
    servers = {"bootstrap.servers": broker.address}
    producer = Producer(servers)
    for number in range(ORDERS_COUNT):
        order = json.dumps({"order": number, "item": "apples", "amount": number * 3}).encode()
        headers = [("trace", b"t-%d" % number)]
        producer.produce(
            ORDERS, order, f"customer-{number % 17}", partition=number % 3, headers=headers
        )
    for value in (SCRIPT, b"\xff\x00\xfe", b"\x1b[2J\x07", b"[" * 5000, b"x" * 900_000, None):
        producer.produce(HOSTILE, value, key=SCRIPT, headers=[(SCRIPT.decode(), SCRIPT)])
    assert producer.flush(60) == 0
    consumer = Consumer({**servers, "group.id": GROUP, "enable.auto.commit": False})
    ends = [TopicPartition(ORDERS, partition, 10) for partition in range(3)]
    consumer.commit(offsets=ends, asynchronous=False)
    consumer.close()


def test_topics_are_those_of_the_command_line(page: Page, suwi: SuwiProcess) -> None:
    go(page, "topics")
    names = [topic["topic"] for topic in suwi.json("topics", "list")]
    expect(page.locator("tbody tr")).to_have_count(len(names))
    name, partitions, replicas, offsets, *_ = cells(page, ORDERS)
    assert (name, partitions, replicas, offsets) == (ORDERS, "3", "1", str(ORDERS_COUNT))
    take_picture(page, "topics")
    assert serious_violations(page) == []


def test_topics_are_searched(page: Page) -> None:
    go(page, "topics")
    page.fill("input[name=search]", "ord")
    page.press("input[name=search]", "Enter")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.fill("input[name=search]", "nothing")
    page.press("input[name=search]", "Enter")
    expect(page.locator("[data-state=empty]")).to_be_visible()


def test_a_topic_shows_its_partitions_and_settings(page: Page, suwi: SuwiProcess) -> None:
    suwi.ok("topics", "alter", ORDERS, "--config", "retention.ms=86400000")
    go(page, "topics", ORDERS)
    (told,) = suwi.json("topics", "describe", ORDERS)
    assert tile(page, "offsets") == str(ORDERS_COUNT)
    for partition in told["partitions"]:
        row = cells(page, partition["partition"])
        assert row[1] == str(partition["leader"])
        assert row[5] == str(partition["end_offset"])
    assert cells(page, "retention.ms")[1:] == ["86400000 1.0 d", "topic"]
    take_picture(page, "topic")
    assert serious_violations(page) == []


def test_a_topic_that_does_not_exist_is_missing(page: Page) -> None:
    go(page, "topics", "nothing")
    expect(page.locator("[data-state=missing]")).to_contain_text("nothing")


def test_records_are_what_another_client_wrote(page: Page) -> None:
    go(page, "records", ORDERS, query="?partition=1&from=start")
    row = cells(page, "1:0")
    assert row[3:] == ["customer-1", '{"order": 1, "item": "apples", "amount": 3}', "1"]
    expect(page.locator("tbody tr")).to_have_count(ORDERS_COUNT // 3)
    page.click("tr[data-row='1:0'] a")
    expect(page.locator("[data-explanation]")).to_contain_text("record")
    expect(page.locator("[data-whole]").nth(1)).to_contain_text('"apples"')
    take_picture(page, "records")
    assert serious_violations(page) == []


def test_an_answer_that_comes_late_is_not_shown_on_another_page(page: Page) -> None:
    held: list[Route] = []
    of_first = re.compile(r"/records\?.*partition=0")
    page.route(of_first, lambda route: held.append(route))
    with page.expect_request(of_first):
        page.evaluate(f"() => {{ location.hash = '#/local/records/{ORDERS}?partition=0' }}")
    page.evaluate(f"() => {{ location.hash = '#/local/records/{ORDERS}?partition=1' }}")
    last = f"1:{ORDERS_COUNT // 3 - 1}"
    page.wait_for_selector(f"tr[data-row='{last}']")
    with page.expect_response(of_first) as late:
        held[0].continue_()
    late.value.finished()
    page.evaluate("() => new Promise(done => setTimeout(() => requestAnimationFrame(done)))")
    expect(page.locator(f"tr[data-row='{last}']")).to_be_visible()


def test_records_are_searched(page: Page) -> None:
    go(
        page,
        "records",
        ORDERS,
        query="?from=start&mode=search&in=value&text=%22order%22%3A%2077%2C",
    )
    expect(page.locator(f"[data-searched='{ORDERS_COUNT}']")).to_contain_text("1 found")
    assert cells(page, f"{77 % 3}:{77 // 3}")[3] == f"customer-{77 % 17}"
    take_picture(page, "search")


def test_a_search_from_the_newest_goes_back_to_the_start(page: Page) -> None:
    def found() -> list[tuple[int, int]]:
        rows = page.locator("tr[data-row]").evaluate_all("rows => rows.map(r => r.dataset.row)")
        return [(int(p), int(offset)) for p, offset in (row.split(":") for row in rows)]

    go(page, "records", ORDERS)
    page.fill("input[name=text]", "apples")
    page.press("input[name=text]", "Enter")
    expect(page.locator("[data-searched='100']")).to_contain_text("100 found")
    newest = found()
    take_picture(page, "search-newest")
    page.click("text=Search on")
    expect(page.locator("[data-searched='20']")).to_contain_text("20 found")
    expect(page.locator("text=Search on")).to_have_count(0)
    expect(page.locator("select[name=from]")).to_have_value("end")
    for partition in range(3):
        offsets = [offset for own, offset in newest + found() if own == partition]
        assert offsets == list(range(39, -1, -1))


def test_new_records_are_followed(page: Page, suwi: SuwiProcess) -> None:
    suwi.ok("topics", "create", "followed")
    go(page, "records", "followed", query="?mode=tail")
    page.wait_for_selector("[data-tail=true]")
    suwi.ok("produce", "followed", stdin=b"a new one\n")
    expect(page.locator("tr[data-row='0:0']")).to_contain_text("a new one")
    take_picture(page, "tail")


def set_hidden(page: Page, *, is_hidden: bool) -> None:
    """As if another tab were chosen."""
    page.evaluate(
        """isHidden => {
            Object.defineProperty(document, "hidden", { configurable: true, get: () => isHidden });
            document.dispatchEvent(new Event("visibilitychange"));
        }""",
        is_hidden,
    )


def test_a_page_that_is_hidden_follows_nothing_and_says_so(page: Page, suwi: SuwiProcess) -> None:
    suwi.ok("topics", "create", "unseen")
    go(page, "records", "unseen", query="?mode=tail")
    page.wait_for_selector("[data-tail=true]")
    with page.expect_event("requestfailed", lambda request: "/tail?" in request.url):
        set_hidden(page, is_hidden=True)
    with page.expect_request("**/tail?*"):
        set_hidden(page, is_hidden=False)
    expect(page.locator("[data-missed]")).to_contain_text("hidden")


def test_a_search_goes_on_when_its_page_is_seen_again(page: Page) -> None:
    page.route("**/search?*", lambda _: None)  # it does not come far
    with page.expect_request("**/search?*"):
        go(page, "records", ORDERS, query="?from=start&mode=search&text=apples&in=key")
    with page.expect_event("requestfailed", lambda request: "/search?" in request.url):
        set_hidden(page, is_hidden=True)
    page.unroute("**/search?*")
    set_hidden(page, is_hidden=False)
    page.wait_for_selector(f"[data-searched='{ORDERS_COUNT}']")


@pytest.mark.parametrize(
    ("begins", "first", "reached", "goes_on"),
    [("start", 0, 10, "at"), ("end", 5, 5, "before")],
)
def test_a_search_that_is_interrupted_says_so_and_does_not_begin_anew(
    page: Page, begins: str, first: int, reached: int, goes_on: str
) -> None:
    ranges = [{"partition": 0, "start": 0, "first": first, "next": 10, "end": 40}]
    event = {"matches": [], "searched": 10, "ranges": ranges, "rest": None}
    event |= {"is_done": False, "command": "suwi"}
    body = f"event: search\ndata: {json.dumps(event)}\n\n"
    asked: list[str] = []

    def answer(route: Route) -> None:
        asked.append(route.request.url)
        route.fulfill(body=body, content_type="text/event-stream")

    page.route("**/search?*", answer)
    go(page, "records", ORDERS, query=f"?from={begins}&mode=search&text=apples")
    expect(page.locator("[data-state=interrupted]")).to_be_visible()
    expect(page.locator("[data-searched='10']")).to_be_visible()
    onward = page.locator("text=Search on")
    expect(onward).to_have_attribute("href", re.compile(rf"from={goes_on}\b.*at=0%3A{reached}"))
    assert len(asked) == 1


def test_a_name_cannot_disguise_itself(page: Page, suwi: SuwiProcess) -> None:
    name = "payroll\u202e\x07gnp"
    options = ("--from-beginning", "--count", 1)
    suwi.ok("consume", ORDERS, "--group", name, *options)
    go(page, "groups")
    shown = "payroll\\u202e\\u0007gnp"
    page.click(f"text={shown}")
    expect(page.locator("h1")).to_have_text(shown)
    assert page.title().startswith(shown)
    take_picture(page, "group-hostile")


def test_hostile_records_are_only_text(page: Page) -> None:
    go(page, "records", HOSTILE, query="?from=start")
    expect(page.locator("tbody tr")).to_have_count(6)
    assert cells(page, "0:0")[4] == SCRIPT.decode()
    assert cells(page, "0:1")[4] == "ff 00 fe"
    assert cells(page, "0:2")[4] == "1b 5b 32 4a 07"
    assert cells(page, "0:5")[4] == "null"
    for offset in range(6):
        page.click(f"tr[data-row='0:{offset}'] a")
        expect(page.locator(f"[data-record='0:{offset}'] [data-explanation]")).to_be_visible()
    assert page.locator("main img, main script").count() == 0
    assert "owned" not in page.title()
    take_picture(page, "hostile")


def test_a_group_shows_its_lag_and_leads_to_what_it_has_not_read(
    page: Page, suwi: SuwiProcess
) -> None:
    (told,) = suwi.json("groups", "describe", GROUP)
    go(page, "groups")
    assert cells(page, GROUP)[-1] == str(told["lag"])
    take_picture(page, "groups")
    assert serious_violations(page) == []
    page.click(f"tr[data-row='{GROUP}'] a")
    page.wait_for_selector("[data-tile=lag]")
    assert tile(page, "lag") == str(told["lag"]) == str(ORDERS_COUNT - 30)
    take_picture(page, "group")
    assert serious_violations(page) == []
    page.click(f"tr[data-row='{ORDERS}-2'] td:last-child a")
    page.wait_for_selector("tr[data-row='2:10']")


def test_a_group_shows_its_members_and_why_it_rebalanced(
    page: Page, suwi: SuwiProcess, broker: BrokerProcess
) -> None:
    group = "juicers"
    settings = {"bootstrap.servers": broker.address, "group.id": group}
    members = [Consumer({**settings, "client.id": f"press-{number}"}) for number in (1, 2)]
    for count, member in enumerate(members, start=1):
        member.subscribe([ORDERS])
        until(lambda: all(read_some(each) for each in members[:count]))  # noqa: B023 - at once
    (told,) = suwi.json("groups", "describe", group)
    go(page, "groups", group)
    assert tile(page, "members") == "2"
    for each in told["members"]:
        row = cells(page, each["member_id"])
        assert row[0] == each["client_id"]
        partitions = [f"{tp['topic']}-{tp['partition']}" for tp in each["partitions"]]
        assert row[3] == ", ".join(partitions)
    newest = suwi.json("groups", "history", group)["history"][-1]
    row = cells(page, f"{newest['at_ms']} {newest['trigger']}")
    assert row[1:3] == [newest["trigger"], newest["client_id"]]
    assert row[4] == f"{newest['from_generation']} → {newest['to_generation']}"
    take_picture(page, "group-members")
    assert serious_violations(page) == []
    for member in members:
        member.close()


def read_some(member: Consumer) -> bool:
    """Whether it has partitions."""
    member.poll(0.1)
    return len(member.assignment()) > 0


def test_what_a_group_has_not_read_of_a_topic_is_one_page(page: Page) -> None:
    go(page, "groups", GROUP)
    page.click(f"[data-unread='{ORDERS}']")
    page.wait_for_selector("tr[data-row='0:10']")
    assert page.locator("tr[data-row='0:9']").count() == 0
    left = page.locator("[data-left]").get_attribute("data-left")
    shown = page.locator("tbody tr[data-row*=':']").count()
    assert shown + int(left or 0) == ORDERS_COUNT - 30


def test_brokers_are_those_of_status(page: Page, suwi: SuwiProcess) -> None:
    (told,) = suwi.json("status")["brokers"]
    go(page, "brokers")
    row = cells(page, told["node"])
    assert told["address"] in row
    expect(page.locator("main")).to_contain_text(told["disks"][0]["directory"])
    take_picture(page, "brokers")
    assert serious_violations(page) == []
    page.click(f"tr[data-row='{told['node']}'] a")
    page.wait_for_selector("[data-tile=leaders]")
    assert tile(page, "leaders") == str(told["leaders"])
    expect(page.locator(f"tr[data-row='{HOSTILE}-0']")).to_contain_text("KiB")
    take_picture(page, "broker")
    assert serious_violations(page) == []


# -- pipelines -------------------------------------------------------------------------------------


def test_pipelines_show_what_they_publish(page: Page, broker: BrokerProcess) -> None:
    now_ms = int(time.time() * 1000)
    running = named("orders-to-lake")
    waiting = named("clicks")._replace(
        state="waiting", error="<img src=x>: no such topic", error_ms=now_ms, restarts=3
    )
    later_ms = now_ms + 600_000  # It is not silent, however long the page takes.
    told_now = [
        status._replace(started_ms=now_ms, published_ms=later_ms) for status in (running, waiting)
    ]
    publish(broker.address, *told_now)
    go(page, "pipelines")
    page.wait_for_selector("tr[data-row='clicks/clicks']")
    row = cells(page, "orders-to-lake/orders-to-lake")
    assert row[:7] == ["orders-to-lake", "running", QUERY.about, "80", "2", "40", "3"]
    assert cells(page, "clicks/clicks")[1] == "waiting"
    expect(page.locator(".card.warning")).to_contain_text("<img src=x>: no such topic")
    take_picture(page, "pipelines")
    assert serious_violations(page) == []


# -- transactions ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def transactions(suwi: SuwiProcess, broker: BrokerProcess) -> Iterator[None]:
    """Committed, aborted, committed, open: records at 0, 2, 4 and 6, markers between them."""
    suwi.ok("topics", "create", PAYMENTS)
    settings: dict[str, str | int] = {
        "bootstrap.servers": broker.address,
        "transactional.id": COPIER,
        "transaction.timeout.ms": 600_000,
    }
    producer = Producer(settings)
    producer.init_transactions(60)
    for number, is_committed in enumerate((True, False, True, None)):
        producer.begin_transaction()
        value = json.dumps({"payment": {"id": f"p-{number}", "amount": 10.5 * number}})
        producer.produce(PAYMENTS, value, key=f"p-{number}")
        assert producer.flush(60) == 0
        if is_committed is not None:
            (producer.commit_transaction if is_committed else producer.abort_transaction)(60)
    yield
    del producer


@pytest.mark.usefixtures("transactions")
def test_transactions_are_those_of_the_command_line(page: Page, suwi: SuwiProcess) -> None:
    (told,) = suwi.json("transactions", "describe", COPIER)
    go(page, "transactions")
    row = cells(page, COPIER)
    assert (row[0], row[1]) == (COPIER, told["state"]) == (COPIER, "Ongoing")
    assert (row[-2], row[-1]) == (str(told["producer_id"]), str(told["coordinator"]))
    assert tile(page, "open") == "1"
    page.click("[data-hanging] button[type=submit]")
    expect(page.locator("[data-hanging=true]")).to_contain_text("No transaction hangs.")
    take_picture(page, "transactions")
    assert serious_violations(page) == []
    page.click(f"tr[data-row='{COPIER}'] a")
    page.wait_for_selector(f"tr[data-row='{PAYMENTS}-0']")
    assert cells(page, f"{PAYMENTS}-0")[1] == "6"
    take_picture(page, "transaction")
    assert serious_violations(page) == []
    page.click(f"tr[data-row='{PAYMENTS}-0'] td:last-child a")
    page.wait_for_selector(f"tr[data-row='{told['producer_id']}']")
    assert cells(page, told["producer_id"])[2:4] == [COPIER, "from offset 6 on"]
    take_picture(page, "producers")
    assert serious_violations(page) == []


@pytest.mark.usefixtures("transactions")
def test_a_record_says_whether_it_was_committed(page: Page) -> None:
    for offset, outcome in ((0, "committed"), (2, "aborted"), (6, "open")):
        go(page, "records", PAYMENTS, query=f"?from=start&record=0:{offset}")
        expect(page.locator(f"[data-record='0:{offset}'] [data-outcome]")).to_have_text(outcome)
        expect(page.locator(f"[data-record='0:{offset}'] dl")).to_contain_text(COPIER)
    take_picture(page, "record")
    assert serious_violations(page) == []


@pytest.mark.usefixtures("transactions")
def test_a_gap_is_explained(page: Page, suwi: SuwiProcess) -> None:
    go(page, "records", PAYMENTS)
    page.select_option("select[name=from]", "start")
    page.select_option("select[name=committed]", "yes")
    page.click("form button.main")
    page.wait_for_selector("[data-gap='0:1']")
    assert page.locator("tbody tr[data-row^='0:']").count() == 2
    page.click("[data-gap='0:1'] button")
    page.wait_for_selector("[data-explained]")
    told = suwi.ok("explain", PAYMENTS, 0, 1, 2, 3).splitlines()
    for line in told:
        expect(page.locator("[data-explained]")).to_contain_text(line.split(": ", 1)[1])
    take_picture(page, "gap")
    assert serious_violations(page) == []


@pytest.mark.usefixtures("transactions")
def test_records_are_searched_by_a_json_path(page: Page) -> None:
    go(page, "records", PAYMENTS)
    page.select_option("select[name=from]", "start")
    page.select_option("select[name=in]", "path")
    page.fill("input[name=path]", "$.payment.id")
    page.fill("input[name=text]", "p-2")
    page.click("form button.main")
    expect(page.locator("[data-searched]")).to_contain_text("1 found in 4 records")
    assert cells(page, "0:4")[3] == "p-2"
    page.click("details summary")
    take_picture(page, "search-path")
    assert serious_violations(page) == []


# -- several brokers -------------------------------------------------------------------------------


def test_a_topic_says_who_is_missing_since_when_and_why(chromium: Browser) -> None:
    with Cluster() as cluster:
        cluster.create_topic(ORDERS, partitions=4, replication_factor=3)
        with ConsoleThread(Path(STATIC), local=cluster.bootstrap_servers) as console:
            page = chromium.new_page(viewport={"width": 1280, "height": 900}, locale="en-US")
            page.set_default_timeout(PATIENCE_MS)
            page.goto(console.address)
            go(page, "topics", ORDERS)
            page.wait_for_selector("tr[data-row='0']")
            gone = int(cells(page, 0)[1])
            cluster.kill(gone)
            page.wait_for_selector(f"tr[data-row='missing-0-{gone}']")
            row = cells(page, f"missing-0-{gone}")
            assert row[1] == f"broker {gone}"
            expect(page.locator("main")).to_contain_text(f"Broker {gone} left: {row[-1]}")
            take_picture(page, "topic-missing")
            assert serious_violations(page) == []
            go(page, "overview")
            expect(page.locator("[data-attention]")).to_contain_text(f"broker {gone}")
            take_picture(page, "overview-degraded")
            page.close()


@pytest.mark.usefixtures("transactions")
def test_a_narrow_screen_has_no_page_that_scrolls_sideways(page: Page, suwi: SuwiProcess) -> None:
    (broker,) = suwi.json("status")["brokers"]
    page.set_viewport_size({"width": 360, "height": 740})
    for path in (
        ["topics"],
        ["topics", ORDERS],
        ["records", ORDERS],
        ["groups", GROUP],
        ["transactions"],
        ["transactions", COPIER],
        ["producers", PAYMENTS],
        ["pipelines"],
        ["brokers"],
        ["brokers", str(broker["node"])],
    ):
        go(page, *path)
        page.wait_for_selector("h1")
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 360, path
