"""Writes docs/images: pictures of the console's best pages, on a cluster with something to see.

    .venv/bin/python tools/console_pictures.py [DIRECTORY]

Three brokers, orders that arrive all the time, a group that keeps up, one that falls behind, and a
broker that was killed and came back. Needs chromium, and takes two minutes.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Consumer, Producer
from playwright.sync_api import Page, sync_playwright

from suwi.testing import Cluster

ROOT = Path(__file__).parent.parent
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
TOPIC, OTHER = "orders", "payments"
GROUPS = {"billing": 1.0, "shipping": 0.6}
"""The groups, and which part of the records they keep up with."""
RECORDS_PER_S = 240
WARM_UP_S = 90
ITEMS = ("apples", "bread", "coffee", "dates", "eggs", "figs")
WIDTH, HEIGHT = 1280, 800
PICTURES = {
    "console-overview": "#/cluster/overview",
    "console-topic": f"#/cluster/topics/{TOPIC}",
    "console-records": f"#/cluster/records/{TOPIC}?partition=1&from=end",
    "console-group": "#/cluster/groups/shipping",
}


def write_orders(servers: str, ends: threading.Event) -> None:
    producer = Producer(
        {"bootstrap.servers": servers, "acks": "all", "linger.ms": 5, "log_level": 0}
    )
    number = 0
    while not ends.wait(0.1):
        swing = 1 + 0.5 * ((time.monotonic() // 12) % 2)
        for _ in range(round(RECORDS_PER_S * swing / 10)):
            number += 1
            item = ITEMS[number % len(ITEMS)]
            order = {"order": number, "item": item, "amount": number * 7 % 90 + 1}
            key = f"customer-{number * 13 % 211}"
            headers = [("trace", b"%08x" % (number * 2654435761 % 2**32))]
            producer.produce(TOPIC, json.dumps(order).encode(), key, headers=headers)
            if number % 4 == 0:
                producer.produce(OTHER, json.dumps({"order": number}).encode(), key)
        producer.poll(0)
    producer.flush(60)


def read_orders(servers: str, group: str, share: float, ends: threading.Event) -> None:
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": group, "client.id": group, "log_level": 0}
    )
    consumer.subscribe([TOPIC])
    while not ends.is_set():
        for _ in consumer.consume(round(RECORDS_PER_S * share / 5), 0.2):
            pass
        ends.wait(0.2 if share < 1 else 0)
    consumer.close()


@contextmanager
def busy(servers: str) -> Iterator[None]:
    ends = threading.Event()
    threads = [threading.Thread(target=write_orders, args=(servers, ends))]
    for group, share in GROUPS.items():
        threads.append(threading.Thread(target=read_orders, args=(servers, group, share, ends)))
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ends.set()
        for thread in threads:
            thread.join()


@contextmanager
def console(servers: str) -> Iterator[str]:
    command = [sys.executable, "-m", "suwi", "console", "--broker", servers, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[-1]
        finally:
            process.terminate()


def take(page: Page, directory: Path) -> None:
    for name, place in PICTURES.items():
        page.evaluate("hash => { location.hash = hash }", place)
        page.wait_for_function("() => !document.querySelector('[data-state=loading]')")
        page.wait_for_selector("h1")
        if page.locator("[data-hour]").count():
            page.wait_for_function(
                "() => +document.querySelector('[data-hour]').dataset.points > 9"
            )
        page.wait_for_timeout(1000)
        path = directory / f"{name}.png"
        page.screenshot(path=path)
        print(f"wrote {path}, {path.stat().st_size // 1000} kB")


def main() -> None:
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs/images"
    directory.mkdir(parents=True, exist_ok=True)
    with Cluster(brokers=3) as cluster:
        for topic in (TOPIC, OTHER):
            cluster.create_topic(
                topic, 3, replication_factor=3, configs={"min.insync.replicas": "2"}
            )
        servers = cluster.bootstrap_servers
        with busy(servers), console(servers) as address, sync_playwright() as playwright:
            time.sleep(WARM_UP_S / 3)
            cluster.kill(2)
            time.sleep(5)
            cluster.restart(2)
            time.sleep(WARM_UP_S * 2 / 3)
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            page = browser.new_page(
                viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light", locale="en-US"
            )
            page.set_default_timeout(300_000)
            page.goto(address)
            take(page, directory)
            browser.close()


if __name__ == "__main__":
    main()
