"""Fetch positions and limits: timestamps, log ends, offsets inside batches, limits, waiting."""

from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from suwi.records.batch import batches
from suwi.records.builder import build_batch
from suwi.records.compression import Compression
from suwi.records.record import Record
from suwi.wire.codec import encode_request
from suwi.wire.versions import ApiKey
from tests.broker_process import BrokerProcess, unique_name
from tests.clients.drivers import EARLIEST, LATEST, Driver
from tests.raw_client import RawClient, fetch_fields

START_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def timed(broker: BrokerProcess) -> str:
    """Three batches of four records, ten milliseconds apart; none is newer than the ninth."""
    topic = unique_name("timed")
    with RawClient(broker.address) as client:
        client.create_topic(topic, retention_ms="-1")
        for first, codec in ((0, Compression.NONE), (4, Compression.LZ4), (8, Compression.ZSTD)):
            records = [
                Record(timestamp=START_MS + 10 * min(n, 9), value=b"%d" % n)
                for n in range(first, first + 4)
            ]
            assert client.produce(topic, build_batch(records, codec=codec)) == (0, first)
    return topic


@pytest.mark.parametrize(
    ("after_start_ms", "offset"),
    [(-1000, 0), (0, 0), (1, 1), (10, 1), (35, 4), (55, 6), (80, 8), (81, 9), (90, 9), (91, None)],
)
def test_the_first_offset_at_or_after_a_time_is_found(
    broker: BrokerProcess, driver: Driver, timed: str, after_start_ms: int, offset: int | None
) -> None:
    assert driver.offset_at(broker.address, timed, START_MS + after_start_ms) in _no(driver, offset)


def _no(driver: Driver, offset: int | None) -> set[int | None]:
    # If no record is that new, kcat prints the offset to continue at.
    return {offset, 12} if offset is None and driver.name == "kcat" else {offset}


def test_earliest_and_latest_are_the_ends_of_the_log(
    broker: BrokerProcess, driver: Driver, timed: str
) -> None:
    assert driver.offset_at(broker.address, timed, EARLIEST) == 0
    assert driver.offset_at(broker.address, timed, LATEST) == 12


@pytest.mark.parametrize("offset", [EARLIEST, 0, 1, 3, 4, 5, 11])
def test_reading_starts_anywhere_inside_a_batch(
    broker: BrokerProcess, driver: Driver, timed: str, offset: int
) -> None:
    first = max(offset, 0)
    found = driver.consume(broker.address, {timed: 12 - first}, offset=offset)[timed]
    assert [(r.offset, r.value) for r in found] == [(n, b"%d" % n) for n in range(first, 12)]


# -- limits ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ten(broker: BrokerProcess) -> tuple[str, int]:
    """Ten batches of the same size in each of two partitions. Returns the topic and the size."""
    topic = unique_name("ten")
    batch = build_batch([Record(value=b"x" * 10_000)])
    with RawClient(broker.address) as client:
        client.create_topic(topic, partitions=2)
        for n in range(10):
            for partition in range(2):
                assert client.produce(topic, batch, partition=partition) == (0, n)
    return topic, len(batch)


@pytest.mark.parametrize("limit", ["partition_max_bytes", "max_bytes"])
@pytest.mark.parametrize(("batches_max", "whole"), [(0.1, 1), (1, 1), (2.5, 2), (9.9, 9), (20, 9)])
def test_a_fetch_returns_no_more_than_asked_but_at_least_one_batch(
    raw: RawClient, ten: tuple[str, int], limit: str, batches_max: float, whole: int
) -> None:
    topic, size = ten
    bytes_max = int(size * batches_max)
    records = raw.fetch(topic, 1, **{limit: bytes_max}).records
    assert len(records) <= max(bytes_max, size)
    assert [h.base_offset for _, h in batches(records)] == list(range(1, 1 + whole))


def test_the_limit_of_a_fetch_holds_for_all_its_partitions_together(
    raw: RawClient, ten: tuple[str, int]
) -> None:
    topic, size = ten
    fields = fetch_fields(12, topic, 0, max_bytes=size * 13)
    (asked,) = fields["topics"]
    asked["partitions"] += fetch_fields(12, topic, 0, partition=1)["topics"][0]["partitions"]
    (answered,) = raw.ask(ApiKey.FETCH, 12, fields).responses
    sizes = [len(partition.records) for partition in answered.partitions]
    assert sizes == [size * 10, size * 3]


@pytest.mark.parametrize("min_batches", [1, 2, 3])
def test_a_fetch_waits_until_there_is_enough(
    broker: BrokerProcess, raw: RawClient, min_batches: int
) -> None:
    topic = unique_name("waiting")
    raw.create_topic(topic)
    batch = build_batch([Record(value=b"v")])
    fields = fetch_fields(12, topic, 0, min_bytes=min_batches * len(batch), max_wait_ms=100_000)
    with RawClient(broker.address) as waiting:
        waiting.send_request(ApiKey.FETCH, 12, encode_request(ApiKey.FETCH, 12, fields))
        for _ in range(min_batches):
            raw.produce(topic, batch)
        (answered,) = waiting.answer(ApiKey.FETCH, 12).responses
    assert len(answered.partitions[0].records) == min_batches * len(batch)


def test_a_fetch_returns_what_it_has_when_max_wait_has_passed(raw: RawClient) -> None:
    topic = unique_name("impatient")
    raw.create_topic(topic)
    assert not raw.fetch(topic, 0, min_bytes=1, max_wait_ms=20).records
    batch = build_batch([Record(value=b"v")])
    raw.produce(topic, batch)
    fetched = raw.fetch(topic, 0, min_bytes=1_000_000, max_wait_ms=20)
    assert len(fetched.records) == len(batch)


def test_a_waiting_fetch_gets_an_error_when_its_topic_is_deleted(
    broker: BrokerProcess, raw: RawClient
) -> None:
    topic = unique_name("vanishing")
    raw.create_topic(topic)
    fields = fetch_fields(12, topic, 0, max_wait_ms=100_000)
    with RawClient(broker.address) as waiting:
        waiting.send_request(ApiKey.FETCH, 12, encode_request(ApiKey.FETCH, 12, fields))
        deleted = {"topics": [{"name": topic, "topic_id": None}], "timeout": 60_000}
        raw.ask(ApiKey.DELETE_TOPICS, 6, deleted)
        (answered,) = waiting.answer(ApiKey.FETCH, 12).responses
    assert answered.partitions[0].error_code == 3


def test_an_incremental_fetch_returns_only_changes(raw: RawClient) -> None:
    topic = unique_name("session")
    raw.create_topic(topic, partitions=3)

    def fetch(session_id: int, epoch: int, *partitions: tuple[int, int]) -> Any:
        fields = fetch_fields(12, topic, 0, session_id=session_id, session_epoch=epoch)
        fields["topics"][0]["partitions"] = [
            fetch_fields(12, topic, offset, partition=index)["topics"][0]["partitions"][0]
            for index, offset in partitions
        ]
        if not partitions:
            fields["topics"] = []
        return raw.ask(ApiKey.FETCH, 12, fields)

    opened = fetch(0, 0, (0, 0), (1, 0), (2, 0))
    assert [p.partition_index for p in opened.responses[0].partitions] == [0, 1, 2]
    assert opened.session_id > 0
    assert fetch(opened.session_id, 1).responses == ()
    raw.produce(topic, build_batch([Record(value=b"v")]), partition=1)
    (answered,) = fetch(opened.session_id, 2).responses
    assert [p.partition_index for p in answered.partitions] == [1]
    assert fetch(opened.session_id, 3, (1, 1)).responses == ()


@pytest.mark.parametrize(
    "limits",
    [
        {"max.partition.fetch.bytes": 1000},
        {"fetch.max.bytes": 1000, "message.max.bytes": 1000},
        {"fetch.min.bytes": 50_000, "fetch.wait.max.ms": 50},
        {"fetch.min.bytes": 1, "fetch.wait.max.ms": 0},
    ],
    ids=lambda limits: next(iter(limits)),
)
def test_a_reader_with_narrow_limits_still_reads_everything(
    broker: BrokerProcess, ten: tuple[str, int], limits: dict[str, int]
) -> None:
    settings = {"bootstrap.servers": broker.address, "group.id": "none"}
    consumer = Consumer({**settings, **limits, "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(ten[0], partition, 0) for partition in range(2)])
        found = sorted((m.partition(), m.offset()) for m in consumer.consume(20, timeout=120))
    finally:
        consumer.close()
    assert found == [(partition, offset) for partition in range(2) for offset in range(10)]
