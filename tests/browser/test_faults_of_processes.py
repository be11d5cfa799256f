"""Processes of `suwi cluster` are killed, frozen and cut off by click, in a real browser."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from suwi.console.server import STATIC
from suwi.local_cluster import zookeeper
from suwi.local_cluster.cluster import LocalCluster
from suwi.local_cluster.layout import Layout, broker_name
from suwi.local_cluster.process import ProcessState
from tests.browser.conftest import SuwiProcess
from tests.browser.support import go, take_picture
from tests.console.support import RunningConsole
from tests.console.test_command import started
from tests.local_cluster.ports import free_ports
from tests.testing.clients import send, until

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.zookeeper,
    pytest.mark.slow,
    pytest.mark.skipif(zookeeper.why_unavailable() is not None, reason="no ZooKeeper here"),
]
TOPIC = "orders"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    if not Path(STATIC, "index.html").exists():
        pytest.skip("the pages of the console are not built: make setup")
    running = LocalCluster(str(tmp_path_factory.mktemp("cluster")))
    settings = {"replica.lag.time.max.ms": "4000"}
    layout = Layout(3, 1, "", free_ports(), has_links=True, settings=settings)
    with ThreadPoolExecutor(1) as thread:  # In this one Playwright has its event loop.
        try:
            thread.submit(running.start, layout).result()
            suwi = SuwiProcess(running.bootstrap_servers)
            suwi.ok("topics", "create", TOPIC, "--replication-factor", 3)
            thread.submit(running.wait_in_sync).result()
            yield running
        finally:
            thread.submit(running.stop).result()


@pytest.fixture(scope="module")
def console(cluster: LocalCluster) -> Iterator[RunningConsole]:
    """`suwi console --faults DIR`."""
    suwi = SuwiProcess(cluster.bootstrap_servers)
    with started(suwi, "console", "--port", 0, "--faults", cluster.directory) as (_, address):
        yield RunningConsole(address)


def in_sync(cluster: LocalCluster, seen_by: int) -> set[int]:
    """As a client of one broker sees them."""
    suwi = SuwiProcess(str(cluster.layout.client_address(seen_by)))
    (described,) = json.loads(suwi.ok("topics", "describe", TOPIC, "--json"))
    return set(described["partitions"][0]["isr"])


def test_processes_are_broken_by_click(page: Page, cluster: LocalCluster) -> None:
    go(page, "live", TOPIC, cluster="cluster", query="?partition=0")
    expect(page.locator("[data-broker]")).to_have_count(3)
    rows = {broker: page.locator(f"[data-broker='{broker}'] .role") for broker in (1, 2, 3)}
    (victim,) = [broker for broker, row in rows.items() if row.text_content() == "leader"]
    first, second = [broker for broker in rows if broker != victim]
    status, log = page.locator("[data-faults] [role=status]"), page.locator("[role=log]")

    def click(fault: str, of: object, done: str) -> None:
        page.locator(f"[data-faults-of='{of}'] [data-fault={fault}]").click()
        shows(status, done)

    def shows(element: Locator, text: str) -> None:
        expect(element).to_have_text(text)

    click("kill", victim, f"killed broker-{victim}")
    shows(rows[victim], "down")
    assert cluster.process_state(broker_name(victim)) is ProcessState.DEAD
    expect(log).to_contain_text("leads (epoch 1)")
    until(lambda: in_sync(cluster, first) == {first, second})
    assert send(cluster.bootstrap_servers, TOPIC, "while one is dead") == []
    take_picture(page, "console-live-processes")
    click("restart", victim, f"broker-{victim} serves")
    shows(rows[victim], "in sync")
    until(lambda: in_sync(cluster, first) == {1, 2, 3})

    click("pause", victim, f"paused broker-{victim}")
    shows(rows[victim], "down")
    assert cluster.process_state(broker_name(victim)) is ProcessState.PAUSED
    click("resume", victim, f"resumed broker-{victim}")
    shows(rows[victim], "in sync")

    click("isolate", victim, f"broker-{victim} is cut off")
    shows(rows[victim], "behind")
    until(lambda: in_sync(cluster, first) == {first, second})
    click("heal", "links", "all links are restored")
    shows(rows[victim], "in sync")
    assert send(cluster.bootstrap_servers, TOPIC, "at the end") == []
