"""`suwi perf`: what it writes and reads is there, and is what it reports."""

import pytest

from tests.broker_process import BrokerProcess, unique_name
from tests.cli.support import Suwi

LATENCIES = ["average", "p50", "p95", "p99", "p99.9", "maximum"]


def test_the_records_that_are_reported_are_written(suwi: Suwi) -> None:
    topic = unique_name("perf")
    suwi.ok("topics", "create", topic, "-p", 2)
    wrote = suwi.json("perf", "produce", topic, "--records", 2000, "--size", 50)
    assert (wrote["records"], wrote["failed"], wrote["bytes"]) == (2000, 0, 100_000)
    assert wrote["records_per_s"] == pytest.approx(2000 / wrote["seconds"])
    assert list(wrote["latency_ms"]) == LATENCIES
    records = suwi.json_lines("consume", topic, "--from-beginning", "--no-follow")
    assert [len(record["value"]) for record in records] == [50] * 2000


def test_percentiles_rise_up_to_the_maximum(suwi: Suwi, topic: str) -> None:
    latencies = suwi.json("perf", "produce", topic, "-n", 100)["latency_ms"]
    rising = [latencies[name] for name in LATENCIES[1:]]
    assert rising == sorted(rising)
    assert 0 < latencies["average"] <= latencies["maximum"]


def test_a_rate_is_not_exceeded(suwi: Suwi, topic: str) -> None:
    wrote = suwi.json("perf", "produce", topic, "-n", 51, "--rate", 100)
    assert wrote["seconds"] >= 0.5


def test_acks_and_compression_are_those_asked_for(
    suwi: Suwi, broker: BrokerProcess, topic: str
) -> None:
    text = suwi.ok("perf", "produce", topic, "-n", 20, "--acks", 1, "-z", "lz4", "--linger", 1000)
    assert text.startswith("wrote 20 records in ")
    (batch,) = broker.stored_batches(topic)
    assert (batch.codec.name, batch.has_producer_id) == ("LZ4", False)


def test_records_that_are_refused_are_counted_with_the_reason(suwi: Suwi) -> None:
    topic = unique_name("small")
    suwi.ok("topics", "create", topic, "--config", "max.message.bytes=200")
    reason = suwi.refusal("perf", "produce", topic, "-n", 3, "--size", 500)
    assert reason.startswith("not delivered: 3 records, the first of them: a batch of ")


def test_the_records_that_a_topic_has_are_read(suwi: Suwi, topic: str) -> None:
    suwi.produce(topic, "12\n345\n6789\n")
    everything = suwi.json("perf", "consume", topic)
    assert (everything["records"], everything["bytes"]) == (3, 9)
    assert suwi.json("perf", "consume", topic, "-n", 2)["bytes"] == 5
    assert suwi.ok("perf", "consume", topic).startswith("read 3 records in ")


def test_an_empty_topic_has_nothing_to_read(suwi: Suwi, topic: str) -> None:
    assert suwi.json("perf", "consume", topic)["records"] == 0


def test_one_record_after_the_other_is_written_and_read(suwi: Suwi, topic: str) -> None:
    suwi.produce(topic, "earlier\n")
    found = suwi.json("perf", "latency", topic, "-n", 300)
    assert list(found["latency_ms"]) == LATENCIES
    assert suwi.json("perf", "consume", topic)["records"] == 301


def test_a_topic_that_does_not_exist_is_named(suwi: Suwi) -> None:
    for command in ("produce", "consume", "latency"):
        assert "topic 'nowhere' does not exist" in suwi.refusal("perf", command, "nowhere")
