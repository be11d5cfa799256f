"""Records as the console shows them: from anywhere, as they come, searched, and hostile ones."""

import asyncio
import base64
import io
import json
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from suwi.console import records as console_records
from suwi.console import search as console_search
from suwi.console.json_path import PathMatch
from suwi.console.record_values import PREVIEW_LENGTH, RecordValues
from suwi.model.ids import PartitionIndex
from suwi.model.ids import TopicPartition as TopicAndPartition
from suwi.records.record import Record
from tests.broker_process import BrokerProcess, unique_name
from tests.cli.support import Suwi
from tests.cli.transactional_producer import ABORT, COMMIT, transact
from tests.console.support import Browser, ConsoleThread, read_on, run_copied
from tests.decoders.fake_registry import running_registry
from tests.testing.clients import until


def produce(suwi: Suwi, topic: str, *records: dict[str, object]) -> None:
    lines = "".join(json.dumps(record) + "\n" for record in records)
    suwi.produce(topic, lines, "--json")


@pytest.fixture
def filled(suwi: Suwi, topic: str) -> str:
    """Two partitions: offsets 0 to 29 of the first, 0 to 4 of the second."""
    records = [
        {"key": f"k{n}", "value": f"v{n}", "partition": n % 7 == 0, "timestamp": 1000 + n}
        for n in range(35)
    ]
    produce(suwi, topic, *({**r, "partition": int(r["partition"])} for r in records))  # type: ignore[call-overload]
    return topic


def values(page: dict[str, object]) -> list[str]:
    return [record["value"]["text"] for record in page["records"]]  # type: ignore[attr-defined]


def test_the_newest_come_first_whatever_their_partition(browser: Browser, filled: str) -> None:
    page = browser.page("records", topic=filled, rows=4)
    assert values(page) == ["v34", "v33", "v32", "v31"]


def test_records_are_what_consume_prints(browser: Browser, suwi: Suwi, filled: str) -> None:
    page = browser.page("records", topic=filled, partition=0, **{"from": "start"})
    told = suwi.json_lines("consume", filled, "-p", 0, "--from-beginning", "--no-follow")
    assert [(r["offset"], r["timestamp"], r["key"]["text"]) for r in page["records"]] == [
        (r["offset"], r["timestamp"], r["key"]) for r in told
    ]


def test_a_page_says_where_the_next_one_begins(browser: Browser, filled: str) -> None:
    seen: list[str] = []
    query: dict[str, object] = {"from": "start"}
    while True:
        page = browser.page("records", topic=filled, rows=10, **query)
        seen += values(page)
        assert len(page["records"]) <= 10
        if all(r["next"] >= r["end"] for r in page["ranges"]):
            break
        at = ",".join(f"{r['partition']}:{r['next']}" for r in page["ranges"])
        query = {"from": "at", "at": at}
    assert sorted(seen) == sorted(f"v{n}" for n in range(35))


@pytest.fixture
def few_at_a_time(monkeypatch: pytest.MonkeyPatch, suwi: Suwi) -> str:
    """A topic with more partitions than are read together: two records in each of seven."""
    monkeypatch.setattr(console_records, "_PARTITIONS_MAX", 3)
    topic = unique_name("wide")
    suwi.ok("topics", "create", topic, "--partitions", 8)
    records = [{"value": f"v{n}", "partition": n % 8} for n in range(16) if n % 8 != 4]
    produce(suwi, topic, *records)
    return topic


@pytest.mark.parametrize("begins", [{"from": "start"}, {"from": "time", "time_ms": 1}])
def test_many_partitions_are_read_some_at_a_time_and_each_record_once(
    browser: Browser, few_at_a_time: str, begins: dict[str, object]
) -> None:
    found: list[str] = []
    query: dict[str, object] | None = {"topic": few_at_a_time, "rows": 4, **begins}
    while query is not None:
        page = browser.page("records", **query)
        found += values(page)
        query = read_on(query, page)
        assert str(query).count(":") < 12
    assert sorted(found) == sorted(f"v{n}" for n in range(16) if n % 8 != 4)


@pytest.mark.parametrize("begins", [{"from": "start"}, {}])
def test_a_search_goes_through_all_partitions_and_can_go_on_in_the_middle(
    browser: Browser,
    few_at_a_time: str,
    begins: dict[str, object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    query: dict[str, object] | None = {"topic": few_at_a_time, "text": "v", **begins}
    assert query is not None
    *_, (_, last) = browser.events("search", **query)
    assert (last["searched"], last["rest"], last["is_done"]) == (14, None, True)
    monkeypatch.setattr(console_search, "_MATCHES_MAX", 5)
    found: list[str] = []
    while query is not None:
        ranges: dict[int, Any] = {}
        for _, event in browser.events("search", **query):
            found += [record["value"]["text"] for record in event["matches"]]
            ranges |= {each["partition"]: each for each in event["ranges"]}
        query = read_on(query, {**event, "ranges": list(ranges.values())})
    assert sorted(found) == sorted(f"v{n}" for n in range(16) if n % 8 != 4)


def test_a_time_is_where_reading_begins(browser: Browser, filled: str) -> None:
    page = browser.page("records", topic=filled, partition=0, **{"from": "time"}, time_ms=1030)
    assert values(page)[0] == "v30"


def test_an_empty_topic_has_no_records(browser: Browser, topic: str) -> None:
    assert browser.page("records", topic=topic)["records"] == []


@pytest.mark.parametrize("query", [{"from": "x"}, {"from": "at", "at": "0:x"}, {"partition": "-1"}])
def test_a_position_that_makes_no_sense_is_refused(
    browser: Browser, topic: str, query: dict[str, str]
) -> None:
    assert browser.problem("records", topic=topic, **query) == (400, "bad")


def test_a_record_is_explained_as_explain_does(browser: Browser, suwi: Suwi, filled: str) -> None:
    page = browser.page("record", topic=filled, partition=0, offset=3)
    assert page["record"]["offset"] == 3
    assert f"3: {page['explanation']}\n" == suwi.ok("explain", filled, 0, 3)
    beyond = browser.page("record", topic=filled, partition=0, offset=99)
    assert beyond["record"] is None
    assert "never written" in beyond["explanation"]


def test_new_records_are_shown_as_they_come(browser: Browser, suwi: Suwi, topic: str) -> None:
    events = browser.events("tail", topic=topic)
    _, begun = next(events)
    assert (begun["records"], begun["skipped"]) == ([], 0)
    assert begun["command"] == f"suwi consume {topic} --verbose --broker {suwi.broker}"
    produce(suwi, topic, {"value": "new"})
    _, event = next(events)
    assert values(event) == ["new"]
    events.close()


def test_a_tail_says_how_many_it_does_not_show(browser: Browser, suwi: Suwi, topic: str) -> None:
    events = browser.events("tail", topic=topic)
    next(events)
    produce(suwi, topic, *({"value": f"{n}", "partition": 0} for n in range(3000)))
    shown = skipped = 0
    while shown + skipped < 3000:
        _, event = next(events)
        shown += len(event["records"])
        skipped += event["skipped"]
        assert len(event["records"]) <= 100
    assert shown + skipped == 3000
    assert skipped > 0
    events.close()


@pytest.mark.parametrize(
    ("where", "text", "found"),
    [("key", "k17", ["v17"]), ("value", "v17", ["v17"]), ("any", "17", ["v17"]), ("key", "v", [])],
)
def test_a_search_finds_what_has_the_text_and_says_how_far_it_looked(
    browser: Browser, filled: str, where: str, text: str, found: list[str]
) -> None:
    query = {"from": "start", "in": where, "text": text}
    events = [event for _, event in browser.events("search", topic=filled, **query)]
    assert [value for event in events for value in values({"records": event["matches"]})] == found
    assert events[-1]["is_done"]
    assert events[-1]["searched"] == 35
    ranges = {r["partition"]: r for event in events for r in event["ranges"]}
    assert all(r["next"] == r["end"] for r in ranges.values())


def test_a_search_tells_how_far_it_is_only_of_partitions_that_it_has_read(
    browser: Browser, suwi: Suwi
) -> None:
    topic = unique_name("wide")
    suwi.ok("topics", "create", topic, "--partitions", 20)
    produce(suwi, topic, *({"value": f"{n}", "partition": 7} for n in range(10)))
    query = {"from": "start", "text": "x"}
    first, *others = [event for _, event in browser.events("search", topic=topic, **query)]
    assert [r["partition"] for r in first["ranges"]] == list(range(20))
    assert {r["partition"] for event in others for r in event["ranges"]} == {7}
    assert (others[-1]["is_done"], others[-1]["searched"]) == (True, 10)


def test_a_search_finds_headers(browser: Browser, suwi: Suwi, topic: str) -> None:
    produce(suwi, topic, {"value": "a", "headers": {"trace": "x9"}}, {"value": "x9"})
    query = {"from": "start", "in": "header", "text": "x9"}
    events = [event for _, event in browser.events("search", topic=topic, **query)]
    assert [record["value"]["text"] for e in events for record in e["matches"]] == ["a"]


# -- by the value at a path -----------------------------------------------------------------------


def found_by_path(browser: Browser, topic: str, path: str, text: str) -> list[str]:
    query = {"from": "start", "in": "path", "path": path, "text": text}
    events = [event for _, event in browser.events("search", topic=topic, **query)]
    assert events[-1]["searched"] == 3
    return [record["key"]["text"] for event in events for record in event["matches"]]


def test_a_search_finds_the_value_at_a_path(browser: Browser, suwi: Suwi, topic: str) -> None:
    orders = [{"id": 7, "items": [{"sku": "a b"}]}, {"id": 77}, {"id": "7", "note": None}]
    produce(
        suwi,
        topic,
        *({"key": f"{n}", "value": json.dumps({"order": o})} for n, o in enumerate(orders)),
    )
    assert sorted(found_by_path(browser, topic, "$.order.id", "7")) == ["0", "2"]
    assert found_by_path(browser, topic, "$.order.items[0]['sku']", "a b") == ["0"]
    assert found_by_path(browser, topic, "$['order'].note", "null") == ["2"]
    assert found_by_path(browser, topic, "$.order.items[1].sku", "a b") == []
    assert copied_search(browser, topic, "path", "7", path="$.order.id") == ["0", "2"]
    assert copied_search(browser, topic, "path", "a b", path="$.order.items[0]['sku']") == ["0"]
    assert copied_search(browser, topic, "path", "null", path="$['order'].note") == ["2"]


def copied_search(browser: Browser, topic: str, where: str, text: str, path: str = "") -> list[str]:
    """The keys of what the command of a search finds."""
    if shutil.which("jq") is None:
        pytest.skip("there is no jq")
    query = {"from": "start", "in": where, "text": text, "path": path}
    _, event = next(iter(browser.events("search", topic=topic, **query)))
    found = [json.loads(line) for line in run_copied(event["command"]).splitlines()]
    return sorted(record["key"] for record in found)


def test_the_command_of_a_search_finds_what_the_search_does(
    browser: Browser, suwi: Suwi, topic: str
) -> None:
    quote = 'it\'s "17" \\ $x'
    records: list[dict[str, object]] = [
        {"key": "a", "value": f"<{quote}>"},
        {"key": "b", "value": "17", "headers": {"trace": quote}},
        {"key": "c", "value_base64": base64.b64encode(b"\xff" + quote.encode()).decode()},
        {"key": f"d {quote}", "value": None},
        {"key": "e", "value": "17"},
    ]
    produce(suwi, topic, *records)
    key = f"d {quote}"
    for where, found in {
        "any": ["a", "b", "c", key],
        "key": [key],
        "value": ["a", "c"],
        "header": ["b"],
    }.items():
        query = {"from": "start", "in": where, "text": quote}
        events = [event for _, event in browser.events("search", topic=topic, **query)]
        assert sorted(r["key"]["text"] for e in events for r in e["matches"]) == found
        assert copied_search(browser, topic, where, quote) == found


@pytest.mark.parametrize("path", ["", "order", "$order", "$.", "$[x]", "$.a[-1]", "$.a b"])
def test_a_path_that_makes_no_sense_is_refused(browser: Browser, topic: str, path: str) -> None:
    query = {"in": "path", "path": path, "text": "7"}
    ((name, problem),) = browser.events("search", topic=topic, **query)
    assert (name, problem["kind"]) == ("problem", "bad")


@pytest.mark.parametrize(
    ("value", "literal", "is_found"),
    [
        (1, "1", True),
        (1.0, "1", True),
        (True, "1", False),
        (1, "true", False),
        (True, "true", True),
        ("true", "true", True),
        (None, "null", True),
        ([1, 2], "[1, 2]", True),
        ("[1, 2]", "[1, 2]", True),
        (Decimal("1.50"), "1.50", True),
    ],
)
def test_a_value_is_compared_as_json_has_it(value: object, literal: str, is_found: bool) -> None:
    assert PathMatch("$.a", literal)({"a": value}) is is_found
    assert PathMatch("$", literal)(value) is is_found


# -- transactions and gaps -------------------------------------------------------------------------


@pytest.fixture
def transacted(broker: BrokerProcess, topic: str) -> tuple[str, str]:
    """A topic and a transactional id: committed, marker, aborted, marker, committed, marker."""
    transactional_id = unique_name("copier")
    transact(broker.address, transactional_id, topic, COMMIT, ABORT, COMMIT)
    until(lambda: explained(Suwi(broker.address), topic)["what"] == "transaction marker")
    return topic, transactional_id


def explained(suwi: Suwi, topic: str, offset: int = 5) -> dict[str, str]:
    (fields,) = suwi.json("explain", topic, 0, offset)
    return dict(fields)


def test_a_record_says_whether_it_was_committed_and_by_which_transaction(
    browser: Browser, suwi: Suwi, transacted: tuple[str, str]
) -> None:
    topic, transactional_id = transacted
    for offset, outcome in ((0, "committed"), (2, "aborted")):
        page = browser.page("record", topic=topic, partition=0, offset=offset)
        told = explained(suwi, topic, offset)
        assert page["transaction"] == told["transaction"] == outcome
        assert page["transactional_id"] == transactional_id
        assert page["producer_id"] == told["producer_id"]
    marker = browser.page("record", topic=topic, partition=0, offset=1)
    assert (marker["record"], marker["what"]) == (None, "transaction marker")


def test_a_gap_is_shown_and_explained(
    browser: Browser, suwi: Suwi, transacted: tuple[str, str]
) -> None:
    topic, transactional_id = transacted
    start = {"from": "start", "partition": 0}
    page = browser.page("records", topic=topic, **start)
    assert values(page) == ["commit", "abort", "commit"]
    assert [(g["first"], g["end"]) for g in page["gaps"]] == [(1, 2), (3, 4), (5, 6)]
    page = browser.page("records", topic=topic, committed="yes", **start)
    assert values(page) == ["commit", "commit"]
    assert [(g["first"], g["end"]) for g in page["gaps"]] == [(1, 4), (5, 6)]
    assert "--committed" in page["command"]
    gap = browser.page("gap", topic=topic, partition=0, first=1, end=4)
    told = suwi.ok("explain", topic, 0, 1, 2, 3).splitlines()
    assert [f"{part['first']}: {part['explanation']}" for part in gap["parts"]] == told
    assert {part["transactional_id"] for part in gap["parts"]} == {transactional_id}


def test_a_gap_below_the_log_start_says_what_removed_it(
    browser: Browser, broker: BrokerProcess, filled: str
) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    for deleted in admin.delete_records([TopicPartition(filled, 0, 10)]).values():
        deleted.result(60)
    page = browser.page("records", topic=filled, rows=2, **{"from": "at", "at": "0:4"})
    assert [record["offset"] for record in page["records"]] == [10, 11]
    (gap,) = page["gaps"]
    assert (gap["first"], gap["end"]) == (4, 10)
    why = browser.page("gap", topic=filled, partition=0, first=4, end=10)
    (part,) = why["parts"]
    assert (part["first"], part["last"], part["what"]) == (4, 9, "below the log start")


def test_compacted_offsets_are_one_part_of_a_gap(browser: Browser, suwi: Suwi) -> None:
    topic = unique_name("compacted")
    often = ["min.cleanable.dirty.ratio=0.01", "segment.ms=100", "cleanup.policy=compact"]
    configs = [word for config in often for word in ("--config", config)]
    suwi.ok("topics", "create", topic, *configs)
    produce(suwi, topic, *({"key": "same", "value": f"{n}"} for n in range(20)))
    produce(suwi, topic, {"key": "other", "value": "last"})

    def is_compacted() -> bool:
        produce(suwi, topic, {"key": "other", "value": "later"})
        return len(browser.page("records", topic=topic, **{"from": "start"})["gaps"]) > 0

    until(is_compacted)
    page = browser.page("records", topic=topic, **{"from": "start"})
    gap = page["gaps"][0]
    why = browser.page("gap", topic=topic, partition=0, first=gap["first"], end=gap["end"])
    assert [part["what"] for part in why["parts"]] == ["compacted away"]
    assert why["parts"][0]["last"] == gap["end"] - 1


# -- decoded ---------------------------------------------------------------------------------------


def test_values_are_decoded_with_the_schemas_of_a_registry(
    broker: BrokerProcess, suwi: Suwi, static: Path, topic: str
) -> None:
    pytest.importorskip("fastavro")
    import fastavro

    schema = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), {"id": 42})
    with running_registry() as registry:
        schema_id = registry.register("orders-value", json.dumps(schema))
        data = b"\0" + schema_id.to_bytes(4) + stream.getvalue()
        unknown = b"\0" + (9999).to_bytes(4) + stream.getvalue()
        for one in (data, unknown):
            encoded = base64.b64encode(one).decode()
            produce(suwi, topic, {"value_base64": encoded, "partition": 0})
        with ConsoleThread(static, registry=registry.url, local=broker.address) as console:
            browser = Browser(console).log_in(console)
            page = browser.page("records", topic=topic, **{"from": "start"})
            first, second = (record["value"] for record in page["records"])
            assert (first["form"], first["text"]) == ("avro", '{"id": 42}')
            assert first["schema"] == f"Order, schema {schema_id}"
            assert second["form"] == "hex"
            assert "no schema 9999" in second["problem"]
            assert f"--schema-registry {registry.url}" in page["command"]
            query = {"from": "start", "in": "path", "path": "$.id", "text": "42"}
            *_, (_, event) = browser.events("search", topic=topic, **query)
            assert (event["searched"], event["is_done"]) == (2, True)


# -- hostile records -------------------------------------------------------------------------------


def shown(data: bytes | None, length_max: int = PREVIEW_LENGTH) -> dict[str, object]:
    """A value as a list shows it."""
    placed = [(TopicAndPartition("t", PartitionIndex(0)), Record(value=data, offset=0))]
    (record,) = asyncio.run(RecordValues(None).shown(placed, length_max))
    return record.value._asdict()


@pytest.mark.parametrize(
    ("data", "form", "text"),
    [
        (None, "null", ""),
        (b"", "text", ""),
        (b'{"a": 1.10}', "json", '{"a": 1.10}'),
        (b"<script>alert(1)</script>", "text", "<script>alert(1)</script>"),
        (b"\xff\xfe\x00", "hex", "ff fe 00"),
        (b"a\x00\x1b[31m", "hex", "61 00 1b 5b 33 31 6d"),
        ("a\u0085\n".encode(), "text", "a\\u0085\n"),
        ("a\u202eb".encode(), "text", "a\\u202eb"),
        ('["\u202eb"]'.encode(), "json", '["\\u202eb"]'),
        ("a\u061cb\u200b\ufeff\u2028".encode(), "text", "a\\u061cb\\u200b\\ufeff\\u2028"),
        ("a\U000e0041".encode(), "text", "a\\U000e0041"),
        ("\U0001f469\u200d\U0001f4bb".encode(), "text", "\U0001f469\u200d\U0001f4bb"),
    ],
)
def test_bytes_are_shown_without_what_could_deceive(
    data: bytes | None, form: str, text: str
) -> None:
    value = shown(data)
    assert (value["form"], value["text"]) == (form, text)


def test_long_bytes_are_cut_between_characters() -> None:
    for shift in range(4):
        for count in (1000, 100_000):
            value = shown(b"a" * shift + "\ubb3c".encode() * count, 100)
            assert value["form"] == "text"
            assert value["is_cut"]
            assert set(str(value["text"])) <= {"a", "\ubb3c"}
    assert shown(b"\xff" * 2_000_000)["size_bytes"] == 2_000_000


def test_deep_json_is_text_with_the_problem() -> None:
    value = shown(b"[" * 10_000 + b"]" * 10_000)
    assert value["form"] == "text"
    assert "nested" in str(value["problem"])


def test_a_large_record_is_cut_in_a_list_and_whole_alone(
    browser: Browser, suwi: Suwi, topic: str
) -> None:
    produce(suwi, topic, {"value": "x" * 900_000, "partition": 0})
    (row,) = browser.page("records", topic=topic)["records"]
    assert row["value"]["is_cut"]
    assert row["value"]["size_bytes"] == 900_000
    assert len(row["value"]["text"]) <= PREVIEW_LENGTH
    alone = browser.page("record", topic=topic, partition=0, offset=0)["record"]
    assert alone["value"]["text"] == "x" * 900_000


def test_a_page_of_large_records_ends_early_and_says_so(
    browser: Browser, broker: BrokerProcess, topic: str
) -> None:
    producer = Producer({"bootstrap.servers": broker.address})
    for number in range(24):
        producer.produce(topic, b"x" * 900_000, str(number), partition=0)
        producer.flush()
    first = browser.page("records", topic=topic, partition=0, **{"from": "start"})
    assert 0 < len(first["records"]) < 24
    assert first["is_cut"]
    (reached,) = first["ranges"]
    rest = browser.page("records", topic=topic, **{"from": "at", "at": f"0:{reached['next']}"})
    assert len(first["records"]) + len(rest["records"]) == 24
    assert not rest["is_cut"]
    newest = browser.page("records", topic=topic)
    assert newest["records"][0]["key"]["text"] == "23"
    assert not newest["is_cut"]
