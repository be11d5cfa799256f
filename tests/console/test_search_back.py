"""A search from the newest goes backward, the newest matches first, to the start of the log."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from suwi.console import search
from suwi.console.records import read_bounds
from suwi.model.ids import Offset
from tests.broker_process import BrokerProcess, unique_name
from tests.cli.support import Suwi
from tests.cli.transactional_producer import ABORT, COMMIT, transact
from tests.console.support import Browser, read_on
from tests.testing.clients import until


def produce(suwi: Suwi, topic: str, *records: dict[str, object]) -> None:
    suwi.produce(topic, "".join(json.dumps(record) + "\n" for record in records), "--json")


def numbered(suwi: Suwi, topic: str, count: int, *, partitions: int = 2) -> None:
    """Each third one is an apple."""
    produce(
        suwi,
        topic,
        *(
            {
                "key": "apple" if n % 3 == 0 else "pear",
                "value": f"{n}",
                "partition": n % partitions,
                "timestamp": 1000 + n,
            }
            for n in range(count)
        ),
    )


def searched(browser: Browser, topic: str, **query: object) -> list[dict[str, Any]]:
    return [event for _, event in browser.events("search", topic=topic, **query)]


def found(events: list[dict[str, Any]]) -> list[str]:
    return [record["value"]["text"] for event in events for record in event["matches"]]


def ranges(events: list[dict[str, Any]]) -> dict[int, dict[str, int]]:
    return {each["partition"]: each for event in events for each in event["ranges"]}


def pages(browser: Browser, topic: str, **query: object) -> Iterator[list[dict[str, Any]]]:
    """The events of one search after the other, as "Search on" leads to them."""
    asked: dict[str, object] | None = dict(query)
    while asked is not None:
        events = searched(browser, topic, **asked)
        assert events[-1]["is_done"]
        yield events
        asked = read_on(asked, {**events[-1], "ranges": list(ranges(events).values())})


@pytest.mark.parametrize("offsets", [1, 10, 256])
def test_the_newest_matches_come_first_and_a_search_goes_on_to_the_start(
    browser: Browser, suwi: Suwi, topic: str, offsets: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_PIECE_OFFSETS", offsets)
    numbered(suwi, topic, 700)
    newest_first = [f"{n}" for n in range(699, -1, -1) if n % 3 == 0]
    seen = list(pages(browser, topic, text="apple"))
    assert [len(found(events)) for events in seen] == [100, 100, 34]
    assert [value for events in seen for value in found(events)] == newest_first
    assert sum(events[-1]["searched"] for events in seen) == 700


def test_a_search_says_how_far_back_it_has_looked(
    browser: Browser, suwi: Suwi, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_PIECE_OFFSETS", 2)
    numbered(suwi, topic, 80)
    begun, *others, ended = searched(browser, topic, text="plum")
    assert [(r["start"], r["first"], r["next"], r["end"]) for r in begun["ranges"]] == [
        (0, 40, 40, 40),
        (0, 40, 40, 40),
    ]
    assert [[r["first"] for r in event["ranges"]] for event in others] == [
        [38, 38],
        [30, 30],
        [0, 0],
    ]
    assert [event["searched"] for event in others] == [4, 20, 80]
    assert {r["next"] for event in others for r in event["ranges"]} == {40}
    assert (ended["searched"], ended["is_done"], ended["ranges"]) == (80, True, [])
    assert "--offset -50000" in ended["command"]


def test_no_match_is_lost_or_doubled_where_times_have_another_order(
    browser: Browser, suwi: Suwi, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_MATCHES_MAX", 3)
    times = [1000 + 37 * n % 20 for n in range(20)]
    produce(
        suwi,
        topic,
        *(
            {"value": f"apple {n}", "partition": n % 2, "timestamp": at}
            for n, at in enumerate(times)
        ),
    )
    seen = [value for events in pages(browser, topic, text="apple") for value in found(events)]
    assert sorted(seen) == sorted(f"apple {n}" for n in range(20))
    for partition in (0, 1):
        own = [int(value.split()[1]) for value in seen if int(value.split()[1]) % 2 == partition]
        assert own == sorted(own, reverse=True)


def test_what_comes_meanwhile_does_not_move_where_a_search_goes_on(
    browser: Browser, suwi: Suwi, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_MATCHES_MAX", 2)
    numbered(suwi, topic, 12)
    seen = []
    for events in pages(browser, topic, text="apple"):
        seen += found(events)
        produce(suwi, topic, {"key": "apple", "value": "new", "partition": 0})
    assert seen == ["9", "6", "3", "0"]


def test_one_partition_is_searched_alone(browser: Browser, suwi: Suwi, topic: str) -> None:
    numbered(suwi, topic, 12)
    assert found(searched(browser, topic, text="apple", partition=1)) == ["9", "3"]


def test_an_empty_topic_is_searched_at_once(browser: Browser, topic: str) -> None:
    begun, ended = searched(browser, topic, text="apple")
    assert (found([begun, ended]), ended["is_done"], ended["rest"]) == ([], True, None)


# -- gaps ------------------------------------------------------------------------------------------


def test_pieces_without_a_record_that_is_shown_do_not_end_a_search(
    browser: Browser, broker: BrokerProcess, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_PIECE_OFFSETS", 1)
    transact(broker.address, unique_name("copier"), topic, COMMIT, ABORT, COMMIT)
    committed = {"partition": 0, "text": "o", "committed": "yes"}

    def is_whole() -> bool:
        return found(searched(browser, topic, **committed)) == ["commit", "commit"]

    until(is_whole)
    events = searched(browser, topic, **committed)
    assert ranges(events)[0]["first"] == 0
    assert events[-1]["searched"] == 2


def test_a_search_goes_on_below_what_was_compacted_away(
    browser: Browser, suwi: Suwi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_PIECE_OFFSETS", 1)
    monkeypatch.setattr(search, "_PIECE_BYTES_MIN", 1)
    monkeypatch.setattr(search, "_PIECES_BYTES", 1)
    topic = unique_name("compacted")
    often = ["min.cleanable.dirty.ratio=0.01", "segment.ms=100", "cleanup.policy=compact"]
    configs = [word for config in often for word in ("--config", config)]
    suwi.ok("topics", "create", topic, *configs)
    produce(suwi, topic, {"key": "first", "value": "apple"})
    produce(suwi, topic, *({"key": "same", "value": f"{n}"} for n in range(40)))

    def is_compacted() -> bool:
        produce(suwi, topic, {"key": "other", "value": "later"})
        page = browser.page("records", topic=topic, **{"from": "start"})
        return any(gap["end"] - gap["first"] > 30 for gap in page["gaps"])

    until(is_compacted)
    events = searched(browser, topic, text="apple")
    assert found(events) == ["apple"]
    assert ranges(events)[0]["first"] == 0


def test_a_search_ends_where_the_log_begins_now(
    browser: Browser,
    broker: BrokerProcess,
    suwi: Suwi,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    numbered(suwi, topic, 40)
    admin = AdminClient({"bootstrap.servers": broker.address})
    deleted = admin.delete_records([TopicPartition(topic, 0, 7), TopicPartition(topic, 1, 20)])
    for future in deleted.values():
        future.result(60)

    async def bounds_of_before(*given: Any) -> Any:
        bounds = await read_bounds(*given)
        return bounds._replace(starts=dict.fromkeys(bounds.starts, Offset(0)))

    monkeypatch.setattr(search, "read_bounds", bounds_of_before)
    events = searched(browser, topic, text="apple")
    assert found(events) == [f"{n}" for n in range(38, 13, -2) if n % 3 == 0]
    assert events[-1]["is_done"]
    assert {p: (r["start"], r["first"]) for p, r in ranges(events).items()} == {
        0: (7, 7),
        1: (20, 20),
    }


# -- large ones, and nonsense ----------------------------------------------------------------------


def test_a_piece_of_large_records_becomes_smaller(
    browser: Browser, broker: BrokerProcess, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_PIECE_BYTES_MIN", 200_000)
    monkeypatch.setattr(search, "_PIECES_BYTES", 200_000)
    producer = Producer({"bootstrap.servers": broker.address})
    for n in range(12):
        producer.produce(topic, b"x" * 300_000, f"{n}", partition=0)
        assert producer.flush(60) == 0
    events = searched(browser, topic, text="x")
    keys = [record["key"]["text"] for event in events for record in event["matches"]]
    assert keys == [f"{n}" for n in range(11, -1, -1)]
    assert max(len(event["matches"]) for event in events) < 12
    assert events[-1]["searched"] == 12


@pytest.mark.parametrize("at", ["0:x", "9:1"])
def test_an_upper_offset_that_makes_no_sense_is_refused(
    browser: Browser, topic: str, at: str
) -> None:
    (problem,) = searched(browser, topic, text="x", at=at, **{"from": "before"})
    assert problem["kind"] == "bad"


def test_only_a_search_goes_back_from_an_offset(browser: Browser, topic: str) -> None:
    query = {"from": "before", "at": "0:1"}
    assert browser.problem("records", topic=topic, **query) == (400, "bad")
    assert browser.problem("export", topic=topic, **query) == (400, "bad")
