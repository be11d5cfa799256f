"""Records as a file."""

import csv
import io
import json

import pytest
from confluent_kafka import Producer

from suwi.console import export
from tests.broker_process import BrokerProcess
from tests.cli.support import Suwi
from tests.console.support import CLUSTER, Browser, page_path

FORMULAS = ("=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1")


def produce(broker: BrokerProcess, topic: str, *values: bytes | None) -> None:
    producer = Producer({"bootstrap.servers": broker.address})
    for value in values:
        producer.produce(topic, value, b"key", partition=0, headers=[("h", b"\xff")])
    assert producer.flush(60) == 0


def exported(browser: Browser, topic: str, **query: object) -> str:
    answer = browser.get(page_path("export", CLUSTER, topic=topic, **query))
    assert answer.status == 200, answer.body
    assert f"{topic}." in answer.headers["content-disposition"]
    assert answer.headers["content-disposition"].startswith("attachment")
    return answer.body.decode()


def test_json_lines_are_what_consume_prints(
    browser: Browser, topic: str, broker: BrokerProcess, suwi: Suwi
) -> None:
    produce(broker, topic, b"a", b"\xff\x00", None, "김".encode())
    printed = suwi.ok("consume", topic, "--from-beginning", "--no-follow", "--json")
    assert exported(browser, topic, **{"from": "start"}) == printed


def test_found_records_are_exported_from_where_it_is_said(
    browser: Browser, topic: str, broker: BrokerProcess
) -> None:
    produce(broker, topic, b"apple", b"pear", b"apples", b"apple pie")
    lines = exported(browser, topic, **{"from": "at", "at": "0:1", "text": "apple", "in": "value"})
    assert [json.loads(line)["offset"] for line in lines.splitlines()] == [2, 3]
    assert len(exported(browser, topic, rows=2, **{"from": "start"}).splitlines()) == 2


def test_an_export_of_a_search_from_the_newest_has_the_newest_first(
    browser: Browser, topic: str, broker: BrokerProcess
) -> None:
    produce(broker, topic, b"apple", b"pear", b"apples", b"apple pie")
    lines = exported(browser, topic, text="apple", rows=2).splitlines()
    assert [json.loads(line)["offset"] for line in lines] == [3, 2]
    lines = exported(browser, topic, text="apple", **{"from": "before", "at": "0:2"}).splitlines()
    assert [json.loads(line)["offset"] for line in lines] == [0]


def test_an_export_of_a_search_does_not_look_for_ever(
    browser: Browser, topic: str, suwi: Suwi, monkeypatch: pytest.MonkeyPatch
) -> None:
    for partition in (0, 1):
        line = json.dumps({"value": "apple", "partition": partition})
        suwi.produce(topic, line, "--json")
    found = {"from": "start", "text": "apple"}
    assert len(exported(browser, topic, **found).splitlines()) == 2
    monkeypatch.setattr(export, "_SEARCHED_BYTES_MAX", 1)
    assert len(exported(browser, topic, **found).splitlines()) == 1


def test_no_cell_of_a_csv_file_is_a_formula(
    browser: Browser, topic: str, broker: BrokerProcess
) -> None:
    plain = ("text", 'quote " and , comma', "two\nlines")
    produce(broker, topic, *(text.encode() for text in (*FORMULAS, *plain)), b"\xff", None)
    text = exported(browser, topic, format="csv", **{"from": "start"})
    head, *rows = csv.reader(io.StringIO(text))
    assert head[:5] == ["topic", "partition", "offset", "time", "key"]
    values = [row[head.index("value")] for row in rows]
    assert values == [*(f"'{formula}" for formula in FORMULAS), *plain, "", ""]
    assert rows[-2][head.index("value_base64")] == "/w=="
    assert json.loads(rows[0][head.index("headers")]) == [{"name": "h", "value_base64": "/w=="}]


def test_what_cannot_be_exported_is_a_problem(browser: Browser, topic: str) -> None:
    assert browser.problem("export", topic="nothing") == (404, "missing")
    assert browser.problem("export", topic=topic, format="xls") == (400, "bad")
