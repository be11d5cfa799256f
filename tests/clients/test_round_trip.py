"""Every client reads what any client has sent: all codecs, acks, headers, nulls, sizes, times."""

import time
from functools import cache
from random import Random

import pytest
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Producer

from suwi.records.compression import Compression
from suwi.records.record import Record
from tests.broker_process import BrokerProcess, unique_name
from tests.clients.drivers import CODECS, DRIVERS, PATIENCE_S, Driver
from tests.raw_client import RawClient

WORTH_COMPRESSING = b"water " * 2000
TOPIC_CODECS = ("uncompressed", *CODECS[1:])


def records_to_send() -> list[Record]:
    start_ms = time.time_ns() // 1_000_000 - 60_000
    contents = [
        Record(key=b"key", value=b"value"),
        Record(key=None, value=b"no key"),
        Record(key=b"tombstone", value=None),
        Record(key=None, value=None),
        Record(key=b"", value=b""),
        Record(key=b"\0\xff\n", value=bytes(range(256))),
        Record(key=b"text", value=WORTH_COMPRESSING),
        Record(value=b"headers", headers=(("a", b"1"), ("b", b"two"), ("a", b"again"))),
        Record(value=b"null header", headers=(("null", None),)),
        Record(value=b"odd headers", headers=(("", b""), ("수위", b"\xff\xfe"))),
    ]
    return [record._replace(timestamp=start_ms + n) for n, record in enumerate(contents)]


def content(records: list[Record], *, with_times: bool = True) -> list[Record]:
    return [r if with_times else r._replace(timestamp=-1) for r in records]


class Sent:
    """Records of every client in every codec, with a topic for each combination."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self.topic = cache(self._send)

    def _send(self, producer: str, codec: str) -> tuple[str, list[Record]]:
        """The topic and the records it must have."""
        driver = DRIVERS[producer]()
        topic = unique_name(f"{producer}-{codec}")
        sent = [record for record in records_to_send() if driver.can_send(record)]
        driver.produce(self._broker.address, topic, sent, codec=codec)
        return topic, [record._replace(offset=offset) for offset, record in enumerate(sent)]


@pytest.fixture(scope="session")
def sent(broker: BrokerProcess) -> Sent:
    return Sent(broker)


@pytest.mark.parametrize("producer", DRIVERS)
@pytest.mark.parametrize("codec", CODECS)
def test_records_are_stored_as_they_were_sent(
    broker: BrokerProcess, sent: Sent, producer: str, codec: str
) -> None:
    topic, expected = sent.topic(producer, codec)
    has_times = DRIVERS[producer]().sets_timestamps
    assert content(broker.stored_records(topic), with_times=has_times) == content(
        expected, with_times=has_times
    )
    for header, records in broker.stored(topic):
        # librdkafka does not compress a batch that would become larger.
        if any(record.value == WORTH_COMPRESSING for record in records):
            assert header.codec is Compression[codec.upper()]


@pytest.mark.parametrize("producer", DRIVERS)
@pytest.mark.parametrize("consumer", DRIVERS)
def test_every_client_reads_what_every_client_wrote(
    broker: BrokerProcess, sent: Sent, producer: str, consumer: str
) -> None:
    has_times = DRIVERS[producer]().sets_timestamps
    expected = dict(sent.topic(producer, codec) for codec in CODECS)
    counts = {topic: len(records) for topic, records in expected.items()}
    found = DRIVERS[consumer]().consume(broker.address, counts)
    for topic, records in expected.items():
        assert content(found[topic], with_times=has_times) == content(records, with_times=has_times)


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_records_arrive_with_every_acks_setting(
    broker: BrokerProcess, driver: Driver, acks: str
) -> None:
    topic = unique_name("acks")
    sent = [Record(value=b"%d" % n) for n in range(100)]
    driver.produce(broker.address, topic, sent, acks=acks)
    found = driver.consume(broker.address, {topic: 100})[topic]
    assert [(r.offset, r.value) for r in found] == [(n, r.value) for n, r in enumerate(sent)]


def test_idempotent_producers_number_their_batches(broker: BrokerProcess, driver: Driver) -> None:
    topic = unique_name("idempotent")
    for _ in range(2):
        driver.produce(
            broker.address, topic, [Record(value=b"v") for _ in range(20)], idempotent=True
        )
    sequences: dict[int, int] = {}
    for header in broker.stored_batches(topic):
        assert header.producer_epoch == 0
        assert header.base_sequence == sequences.get(header.producer_id, 0)
        sequences[header.producer_id] = header.last_sequence + 1
    assert list(sequences.values()) == [20, 20]  # two producers, two ids
    assert min(sequences) >= 0


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_record_of_a_megabyte_survives(
    broker: BrokerProcess, raw: RawClient, driver: Driver, codec: str
) -> None:
    topic = unique_name("large")
    raw.create_topic(topic, max_message_bytes="4000000")
    letters = Random(7).randbytes(1 << 20).translate(bytes(97 + n % 26 for n in range(256)))
    sent = [Record(key=b"%d" % n, value=letters[n:] + letters[:n]) for n in range(3)]
    driver.produce(broker.address, topic, sent, codec=codec)
    found = driver.consume(broker.address, {topic: 3})[topic]
    assert [(r.offset, r.key, r.value) for r in found] == [
        (n, r.key, r.value) for n, r in enumerate(sent)
    ]


def test_a_record_beyond_max_message_bytes_is_refused(
    broker: BrokerProcess, raw: RawClient, driver: Driver
) -> None:
    topic = unique_name("too-large")
    raw.create_topic(topic, max_message_bytes="100000")
    with pytest.raises(Exception, match=r"(?i)too.?large|MSG_SIZE_TOO_LARGE|larger"):
        driver.produce(broker.address, topic, [Record(value=b"x" * 200_000)])
    assert broker.stored_records(topic) == []
    driver.produce(broker.address, topic, [Record(value=b"small")])
    assert [r.value for r in broker.stored_records(topic)] == [b"small"]


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_log_append_time_replaces_the_producers_time(
    broker: BrokerProcess, raw: RawClient, driver: Driver, codec: str
) -> None:
    topic = unique_name("append-time")
    raw.create_topic(topic, message_timestamp_type="LogAppendTime")
    before_ms = time.time_ns() // 1_000_000
    sent = [Record(timestamp=1000 + n, value=b"v" * 100) for n in range(10)]
    driver.produce(broker.address, topic, sent, codec=codec)
    after_ms = time.time_ns() // 1_000_000
    found = driver.consume(broker.address, {topic: 10})[topic]
    assert all(before_ms <= record.timestamp <= after_ms for record in found)
    assert found == broker.stored_records(topic)
    assert all(header.uses_log_append_time for header in broker.stored_batches(topic))


def test_a_producer_gets_the_log_append_time(broker: BrokerProcess, raw: RawClient) -> None:
    topic = unique_name("told-time")
    raw.create_topic(topic, message_timestamp_type="LogAppendTime")
    messages = []
    producer = Producer({"bootstrap.servers": broker.address})
    for _ in range(20):
        producer.produce(topic, b"v", on_delivery=lambda _, message: messages.append(message))
        assert producer.flush(PATIENCE_S) == 0
    kinds, times = zip(*(message.timestamp() for message in messages), strict=True)
    assert set(kinds) == {TIMESTAMP_LOG_APPEND_TIME}
    assert list(times) == [record.timestamp for record in broker.stored_records(topic)]


@pytest.mark.parametrize("stored_as", TOPIC_CODECS)
@pytest.mark.parametrize("sent_as", CODECS)
def test_compression_type_of_the_topic_decides_how_batches_are_stored(
    broker: BrokerProcess, raw: RawClient, stored_as: str, sent_as: str
) -> None:
    topic = unique_name("recompressed")
    raw.create_topic(topic, compression_type=stored_as)
    driver = DRIVERS["confluent-kafka"]()
    sent = records_to_send()
    driver.produce(broker.address, topic, sent, codec=sent_as)
    name = "NONE" if stored_as == "uncompressed" else stored_as.upper()
    assert {header.codec for header in broker.stored_batches(topic)} == {Compression[name]}
    expected = [record._replace(offset=n) for n, record in enumerate(sent)]
    assert broker.stored_records(topic) == expected
    reader = DRIVERS["aiokafka" if sent_as == "none" else "confluent-kafka"]()
    assert reader.consume(broker.address, {topic: len(sent)})[topic] == expected


def test_large_batches_are_recompressed_too(broker: BrokerProcess, raw: RawClient) -> None:
    topic = unique_name("recompressed-large")
    raw.create_topic(topic, compression_type="zstd", message_timestamp_type="LogAppendTime")
    sent = [Record(key=b"%d" % n, value=b"x" * 1000) for n in range(900)]
    DRIVERS["confluent-kafka"]().produce(broker.address, topic, sent, codec="gzip")
    found = DRIVERS["kafka-python"]().consume(broker.address, {topic: 900})[topic]
    assert [(r.offset, r.key) for r in found] == [(n, r.key) for n, r in enumerate(sent)]
    assert {header.codec for header in broker.stored_batches(topic)} == {Compression.ZSTD}
