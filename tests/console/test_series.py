"""Figures over an hour: bounded, and only for who may know them."""

import asyncio
import time

import pytest

from suwi.client.addresses import parse_addresses
from suwi.client.cluster import PartitionInfo, TopicInfo
from suwi.client.versioned_connection import connect_plain
from suwi.console import hour as hour_module
from suwi.console.clusters import ClusterAddress, ShownCluster
from suwi.console.hour import Hour, Subject
from suwi.console.page import Query
from suwi.console.series import Sampler, Series, read_series
from suwi.env import local_env
from suwi.model.ids import NO_TOPIC_ID, NodeId, PartitionIndex
from tests.broker_process import BrokerProcess, unique_name
from tests.cli.support import Suwi
from tests.console.support import Browser

PATIENCE_S = 250
WATER, FIRE = Subject("topic", "water"), Subject("topic", "fire")
READERS = Subject("group", "readers")


def test_a_topic_without_records_takes_no_memory_and_is_shown_as_zero() -> None:
    hour = Hour()
    hour.add(1, {WATER: 0, FIRE: 0})
    hour.add(2, {WATER: 5, FIRE: 0})
    assert hour.subjects("topic") == [WATER]
    assert hour.total([WATER]) == [0, 5]
    assert hour.total([FIRE]) == [0, 0]
    assert hour.total([WATER, FIRE]) == [0, 5]


def test_what_was_not_known_is_a_gap() -> None:
    hour = Hour()
    hour.add(1, {WATER: 5})
    hour.add(2, {WATER: None, READERS: 3})
    hour.add(3, {WATER: 1})
    assert hour.total([WATER]) == [5, None, 1]
    assert hour.total([READERS]) == [None, 3, None]


def test_the_oldest_are_forgotten() -> None:
    hour = Hour()
    for at_ms in range(1000):
        hour.add(at_ms, {READERS: at_ms, WATER: int(at_ms == 0)})
    assert len(hour.times_ms) == 3600 // hour_module.PERIOD_S
    assert hour.times_ms[-1] == 999
    assert hour.total([READERS])[-1] == 999
    assert hour.subjects("topic") == []


def test_more_subjects_than_are_kept_are_left_out_and_that_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hour_module, "_SUBJECTS_MAX", 1)
    hour = Hour()
    hour.add(1, {READERS: 1, WATER: 5})
    assert hour.is_full
    assert hour.total([WATER]) == [None]
    assert hour.total([READERS]) == [1]


def sampler_of(counted: dict[NodeId, dict[str, int]]) -> Sampler:
    """One that has counted these bytes by broker and topic before."""
    address = ClusterAddress("local", parse_addresses("127.0.0.1:1"), None, ())
    sampler = Sampler(ShownCluster(address, local_env()))
    sampler._bytes = counted
    return sampler


def test_bytes_are_counted_by_all_brokers_also_after_a_restart() -> None:
    one, two = NodeId(1), NodeId(2)
    topics = [
        TopicInfo("water", NO_TOPIC_ID, False, (PartitionInfo(PartitionIndex(0), one),)),
        TopicInfo("fire", NO_TOPIC_ID, False, (PartitionInfo(PartitionIndex(0), two),)),
    ]
    sampler = sampler_of({one: {"water": 100}, two: {"water": 50, "fire": 10}})
    counted = {one: {"water": 300}, two: {"water": 20}}
    assert sampler._byte_rates(topics, counted, 2.0) == {
        Subject("bytes", "water"): (200 + 20) / 2,
        Subject("bytes", "fire"): 0,
    }
    assert sampler._byte_rates(topics, {one: {"water": 100}}, 2.0) == {Subject("bytes", "water"): 0}


def test_where_no_broker_counts_bytes_there_are_none(broker: BrokerProcess, topic: str) -> None:
    async def read() -> Series:
        address = ClusterAddress("local", parse_addresses(broker.address), None, ())
        own = ShownCluster(address, local_env())
        try:
            own.hour.add(1, {Subject("topic", topic): 1.0})
            return await read_series(own, Query({"topic": topic}))
        finally:
            await own.client.close()

    found = asyncio.run(read())
    assert (found.records_per_s, found.bytes_per_s) == ([1], [])


def test_rates_and_lags_are_sampled(browser: Browser, suwi: Suwi, topic: str) -> None:
    group = unique_name("group")
    suwi.produce(topic, "a\n" * 10)
    suwi.ok("consume", topic, "--group", group, "--from-beginning", "--count", 4)
    limit_s = time.monotonic() + PATIENCE_S
    while True:
        suwi.produce(topic, "a\n" * 10)
        of_topic, of_group = (
            browser.page("series", topic=topic),
            browser.page("series", group=group),
        )
        rates, sizes = of_topic["records_per_s"], of_topic["bytes_per_s"]
        lags, ages = of_group["lag"], of_group["lag_ms"]
        if any(rates) and any(sizes) and any(lags) and any(ages):
            break
        assert time.monotonic() < limit_s
        time.sleep(0.5)
    assert sum(filter(None, sizes)) > sum(filter(None, rates))
    everything = browser.page("series")
    assert any(everything["records_per_s"])
    assert any(everything["lag"])
    assert any(browser.page("series", broker=0)["records_per_s"])


def test_what_is_not_there_has_no_series(browser: Browser) -> None:
    assert browser.problem("series", topic="nothing-of-this-name") == (404, "missing")
    assert browser.problem("series", group="nothing-of-this-name") == (404, "missing")
    assert browser.problem("series", broker=77) == (404, "missing")


def test_a_user_sees_figures_of_what_its_own_connection_describes(
    broker: BrokerProcess, topic: str
) -> None:
    """The console's own identity may see more than the user."""
    seen, hidden = Subject("topic", topic), Subject("topic", "of-others")

    async def read() -> tuple[Series, Series]:
        address = ClusterAddress("local", parse_addresses(broker.address), None, ())
        own = ShownCluster(address, local_env())
        user = ShownCluster(address, local_env(), connect=connect_plain("user"), hour=own.hour)
        try:
            await Sampler(own).sample()
            everything = {seen: 1.0, hidden: 10.0, Subject("group", "of-others"): 7.0}
            totals = {Subject("all", "topic"): 11.0, Subject("all", "group"): 7.0}
            own.hour.add(1, everything | totals)
            return await read_series(own, Query({})), await read_series(user, Query({}))
        finally:
            await own.client.close()
            await user.client.close()

    of_own, of_user = asyncio.run(read())
    assert (of_own.records_per_s, of_own.lag) == ([11], [7])
    assert (of_user.records_per_s, of_user.lag) == ([1], [None])
