"""The console on Apache Kafka: every reading page is there, and says what only Suwi can tell."""

import json
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from compat.kafka import KafkaServer
from tests.console.support import Browser, ConsoleThread

TOPIC, GROUP = "orders", "billing"
COUNT = 30
PATIENCE_S = 120


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    server = KafkaServer(tmp_path_factory.mktemp("kafka"), heap="512m")
    server.format()
    server.start()
    try:
        fill(server.address)
        yield server
    finally:
        server.stop()


def fill(address: str) -> None:
    """A topic with committed records, an aborted transaction, and a group that has read some."""
    servers = {"bootstrap.servers": address}
    admin = AdminClient(servers)
    admin.create_topics([NewTopic(TOPIC, 2, 1)])[TOPIC].result(PATIENCE_S)
    producer = Producer({**servers, "transactional.id": "till"})
    producer.init_transactions(PATIENCE_S)
    for is_committed in (True, False):
        producer.begin_transaction()
        for number in range(COUNT):
            order = json.dumps({"order": number}).encode()
            producer.produce(TOPIC, order, f"k{number}", partition=number % 2)
        assert producer.flush(PATIENCE_S) == 0
        (producer.commit_transaction if is_committed else producer.abort_transaction)(PATIENCE_S)
    consumer = Consumer({**servers, "group.id": GROUP, "auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])
    read = 0
    limit_s = time.monotonic() + PATIENCE_S
    while read < COUNT and time.monotonic() < limit_s:
        read += consumer.poll(1) is not None
    consumer.close()
    assert read == COUNT


@pytest.fixture(scope="module")
def browser(server: KafkaServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    static = tmp_path_factory.mktemp("static")
    (static / "assets").mkdir()
    (static / "index.html").write_text("<!doctype html><title>Suwi</title>")
    with ConsoleThread(static, local=server.address) as console:
        yield Browser(console).log_in(console)


def test_the_overview_is_healthy_and_says_what_is_not_known(browser: Browser) -> None:
    page = browser.page("overview")
    assert page["is_healthy"], page
    assert page["controller"] == 0
    assert [broker["state"] for broker in page["brokers"]] == ["alive"]
    assert any(text.startswith("events: ") for text in page["unknown"])


def test_topics_and_one_topic(browser: Browser) -> None:
    (row,) = browser.page("topics")["rows"]
    assert (row["topic"], row["partition_count"]) == (TOPIC, 2)
    assert row["size_bytes"] > 0
    page = browser.page("topic", topic=TOPIC)
    assert len(page["partitions"]) == 2
    assert {partition["problem"] for partition in page["partitions"]} == {None}
    assert "retention.ms" in {config["key"] for config in page["configs"]}


def test_records_a_record_and_a_search(browser: Browser) -> None:
    records = browser.page("records", topic=TOPIC, partition=0, **{"from": "start"})["records"]
    assert json.loads(records[0]["value"]["text"]) == {"order": 0}
    one = browser.page("record", topic=TOPIC, partition=0, offset=0)
    assert one["record"]["offset"] == 0
    assert one["explanation"]
    query = {"topic": TOPIC, "text": '"order": 8', "from": "start"}
    found = [match for _, event in browser.events("search", **query) for match in event["matches"]]
    assert found


def test_new_records_are_followed(browser: Browser, server: KafkaServer) -> None:
    events = browser.events("tail", topic=TOPIC)
    assert next(events)[0] == "tail"
    producer = Producer({"bootstrap.servers": server.address})
    producer.produce(TOPIC, b"a new one", partition=1)
    assert producer.flush(PATIENCE_S) == 0
    texts = (record["value"]["text"] for _, event in events for record in event["records"])
    assert next(texts) == "a new one"
    events.close()


def test_groups_and_one_group_whose_history_is_not_known(browser: Browser) -> None:
    (row,) = browser.page("groups")["rows"]
    assert (row["group"], row["problem"]) == (GROUP, None)
    page = browser.page("group", group=GROUP)
    assert page["partitions"]
    assert "only Suwi's brokers keep the history of groups" in page["no_history"]


def test_brokers(browser: Browser) -> None:
    (broker,) = browser.page("brokers")["brokers"]
    assert (broker["state"], broker["problem"]) == ("alive", None)
    assert broker["disks"]


def test_access_quotas_and_audit_log_say_what_is_off_or_not_known(browser: Browser) -> None:
    access = browser.page("acls")
    assert (access["is_on"], access["users"], access["users_problem"]) == (False, [], None)
    quotas = browser.page("quotas")
    assert (quotas["rows"], quotas["usages"]) == ([], [])
    audit = browser.page("audit")
    assert (audit["files"], audit["off"], audit["lines"]) == ([], [], [])
    for page in (quotas, audit):
        (silent,) = page["silent"]
        assert silent.startswith("broker 0: it closed the connection: it is not Suwi's")


def test_figures_are_sampled(browser: Browser, server: KafkaServer) -> None:
    producer = Producer({"bootstrap.servers": server.address})
    limit_s = time.monotonic() + PATIENCE_S
    while not any(browser.page("series", topic=TOPIC)["records_per_s"]):
        assert time.monotonic() < limit_s
        producer.produce(TOPIC, b"x")
        producer.flush(PATIENCE_S)
        time.sleep(0.5)
    assert browser.page("series", topic=TOPIC)["bytes_per_s"] == []
    assert browser.page("series", broker=0)["times_ms"]
    assert browser.page("series", group=GROUP)["times_ms"]
