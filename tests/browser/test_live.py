"""The page of one partition, live, in a real browser: three brokers, load, a leader that dies."""

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from playwright.sync_api import Page, expect

from suwi.client.addresses import parse_addresses
from suwi.console.clusters import Breakable, ClusterAddress
from suwi.console.server import STATIC
from suwi.lab.events import Replicas, read
from suwi.lab.site_server import Pages, serving
from suwi.local_cluster.cluster import ClusterError
from suwi.local_cluster.layout import Cut
from suwi.testing import Cluster
from tests.browser.conftest import PATIENCE_MS
from tests.browser.support import AXE, go, serious_violations, take_picture
from tests.console.support import ConsoleThread

TOPIC = "orders"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Three brokers; a producer sends a little all the time."""
    if not Path(STATIC, "index.html").exists():
        pytest.skip("the pages of the console are not built: make setup")
    with Cluster(brokers=3) as running:
        running.create_topic(TOPIC)
        running.wait_leader(TOPIC)
        producer = Producer(
            {
                "bootstrap.servers": running.bootstrap_servers,
                "client.id": "shop",
                "enable.idempotence": True,
                "log_level": 0,
            }
        )
        ends = threading.Event()

        def send() -> None:
            while not ends.wait(0.02):
                producer.produce(TOPIC, b"x" * 50, partition=0)
                producer.poll(0)

        sender = threading.Thread(target=send)
        sender.start()
        yield running
        ends.set()
        sender.join()
        producer.flush(PATIENCE_MS / 1000)


class KitFaults:
    """The faults of a cluster of the test kit."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def kill(self, name: str) -> None:
        self._cluster.kill(_number(name))

    def restart(self, name: str) -> None:
        self._cluster.restart(_number(name))

    def pause(self, name: str) -> None:
        try:
            self._cluster.pause(_number(name))
        except RuntimeError as error:
            raise ClusterError(str(error)) from None

    def resume(self, name: str) -> None:
        self._cluster.resume(_number(name))

    def isolate(self, broker: int) -> None:
        others = [each for each in self._cluster.brokers if each != broker]
        self._cluster.partition([broker], others)

    def cut(self, pairs: Iterable[Cut], *, one_way: bool = False) -> None:
        for start, to in pairs:
            self._cluster.partition([int(start)], [int(to)])

    def slow(self, broker: int) -> None:
        self._cluster.slow(broker, 100)

    def heal(self) -> None:
        self._cluster.heal()


def _number(name: str) -> int:
    return int(name.removeprefix("broker-"))


@pytest.fixture(scope="module")
def console(cluster: Cluster) -> Iterator[ConsoleThread]:
    servers = cluster.bootstrap_servers
    local = ClusterAddress(
        "local",
        parse_addresses(servers),
        None,
        ("--broker", servers),
        breakable=Breakable(KitFaults(cluster), "suwi-data"),
    )
    with ConsoleThread(Path(STATIC), [local], safe=servers) as console:
        yield console


def members(page: Page) -> list[str]:
    return page.locator(".controller span.chip").all_inner_texts()


def test_a_partition_is_drawn_as_it_is_replicated(page: Page, cluster: Cluster) -> None:
    go(page, "topics", TOPIC)
    page.get_by_role("link", name="Watch").first.click()
    expect(page.locator("[data-broker]")).to_have_count(3)
    leader = cluster.wait_leader(TOPIC)
    expect(page.locator(f"[data-broker='{leader}'] .role")).to_have_text("leader")
    expect(page.locator(".controller span.chip")).to_have_count(3)
    expect(page.locator(f"[data-broker='{leader}'] .cell").first).to_be_visible()
    expect(page.locator(".message").first).to_be_visible()
    expect(page.locator(".clients")).to_contain_text("shop")
    expect(page.locator(".clients .acknowledged").first).to_contain_text("acks=all ✓ offset")
    take_picture(page, "console-live-running")

    cluster.kill(leader)
    expect(page.locator(f"[data-broker='{leader}'] .role")).to_have_text("down")
    new = cluster.wait_leader(TOPIC)
    expect(page.locator("[role=log]")).to_contain_text(f"{TOPIC}-0: b{new} leads (epoch 1)")
    expect(page.locator("[role=log]")).to_contain_text(f"b{leader}: the broker does not answer")
    expect(page.locator(f"[data-broker='{new}'] .role")).to_have_text("leader")
    expect(page.locator(".controller span.chip")).to_have_count(2)
    expect(page.locator(f"[data-broker='{new}'] .cell.e1").first).to_be_visible()
    page.wait_for_timeout(1000)
    take_picture(page, "console-live")

    cluster.restart(leader)
    expect(page.locator(".controller span.chip")).to_have_count(3)
    expect(page.locator(f"[data-broker='{leader}'] .role")).to_have_text("in sync")


def test_what_is_recorded_is_played_by_the_lab(
    page: Page, cluster: Cluster, tmp_path: Path
) -> None:
    go(page, "live", TOPIC, query="?partition=0")
    page.locator("[data-record=off]").click()
    button = page.locator("[data-record=on]")
    page.wait_for_function(
        "() => Number(document.querySelector('[data-record=on]')"
        "?.textContent.replace(/\\D/g, '')) > 100"
    )
    with page.expect_download() as saved:
        button.click()
    assert saved.value.suggested_filename == f"{TOPIC}-0.jsonl"
    path = tmp_path / "live.jsonl"
    saved.value.save_as(path)
    expect(page.locator("[data-record=off]")).to_be_visible()
    recording = read(path.read_text().splitlines())
    total = Replicas()
    for event in recording.events:
        total.add(event)
    assert {broker for _, broker in total.replicas} == set(cluster.brokers)
    assert all(view.end > 0 for view in total.replicas.values())
    with serving(Pages({"live": recording})) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        player = page.context.new_page()
        player.goto(f"http://127.0.0.1:{server.server_port}/live.play.html#event=100000")
        expect(player.locator("[data-broker] .cell").first).to_be_visible()
        expect(player.locator(".clients")).to_contain_text("shop")
        take_picture(player, "lab-play-live")
        player.close()
        server.shutdown()
        thread.join()


def test_brokers_and_links_are_broken_by_click(page: Page, cluster: Cluster) -> None:
    go(page, "live", TOPIC, query="?partition=0")
    expect(page.locator("[data-broker]")).to_have_count(3)
    leader = cluster.wait_leader(TOPIC)
    victim = next(broker for broker in cluster.brokers if broker != leader)
    status = page.locator("[data-faults] [role=status]")

    def click(of: object, fault: str) -> None:
        page.locator(f"[data-faults-of='{of}'] [data-fault={fault}]").click()

    click(victim, "kill")
    expect(status).to_have_text(f"killed broker-{victim}")
    expect(page.locator(f"[data-broker='{victim}'] .role")).to_have_text("down")
    click(victim, "pause")
    expect(status).to_contain_text(f"broker {victim} is not running")
    click(victim, "restart")
    expect(status).to_have_text(f"broker-{victim} serves")
    expect(page.locator(f"[data-broker='{victim}'] .role")).to_have_text("in sync")
    page.get_by_label("What a broker sends").select_option(str(leader))
    expect(page.locator("[data-fault=cut]")).to_be_disabled()
    page.get_by_label("to another").select_option(str(victim))
    click("links", "cut")
    expect(page.locator(".controller del.chip, [role=log] .in-sync").first).to_be_visible()
    expect(page.locator(f"[data-broker='{victim}'] .role")).to_have_text("behind")
    take_picture(page, "console-live-faults")
    click("links", "heal")
    expect(page.locator(f"[data-broker='{victim}'] .role")).to_have_text("in sync")
    go(page, "live", TOPIC, cluster="safe", query="?partition=0")
    expect(page.locator("[data-broker]")).to_have_count(3)
    expect(page.locator("[data-faults]")).to_have_count(0)


def test_it_is_stopped_and_goes_on(page: Page, cluster: Cluster) -> None:
    go(page, "live", TOPIC, query="?partition=0")
    expect(page.locator("[data-broker]")).to_have_count(3)
    page.get_by_role("button", name="Stop").click()
    label = page.locator(".partition svg").get_attribute("aria-label")
    page.wait_for_timeout(500)
    assert page.locator(".partition svg").get_attribute("aria-label") == label
    page.get_by_role("button", name="Go on").click()
    page.wait_for_function(
        "label => document.querySelector('.partition svg')?.getAttribute('aria-label') !== label",
        arg=label,
    )


def test_it_is_in_korean_and_fits_a_narrow_screen(page: Page, cluster: Cluster) -> None:
    page.get_by_label("Language").select_option("ko")
    go(page, "live", TOPIC, query="?partition=0")
    expect(page.locator("[data-broker]")).to_have_count(3)
    expect(page.locator(".controller")).to_contain_text("확정된 ISR")
    page.set_viewport_size({"width": 360, "height": 740})
    page.wait_for_timeout(500)
    take_picture(page, "console-live-narrow")
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 360
    page.get_by_label("언어").select_option("en")


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed: make setup")
def test_it_is_accessible(page: Page, cluster: Cluster) -> None:
    go(page, "live", TOPIC, query="?partition=0")
    expect(page.locator("[data-broker]")).to_have_count(3)
    page.get_by_role("button", name="Stop").click()
    assert serious_violations(page) == []
