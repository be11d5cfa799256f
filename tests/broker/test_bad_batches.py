"""Batches that must not be stored: the exact error for each, and other clients are served."""

import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from kio.schema.errors import ErrorCode

from suwi.records.batch import (
    CONTROL_BIT,
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    batches,
    read_header,
)
from suwi.records.builder import build_batch, seal
from suwi.records.compression import Compression, compress
from suwi.records.record import Record
from suwi.wire.codec import encode_request
from suwi.wire.versions import ApiKey
from tests.broker_process import BrokerProcess, unique_name
from tests.raw_client import RawClient, produce_fields, produced

pytestmark = pytest.mark.usefixtures("still_serves")

HOUR_MS = 3_600_000
COMPRESSED = [codec for codec in Compression if codec is not Compression.NONE]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def batch_of(*values: bytes, **how: Any) -> bytearray:
    time_ms = how.pop("timestamp", now_ms())
    key = how.pop("key", b"k")
    return build_batch([Record(timestamp=time_ms, key=key, value=v) for v in values], **how)


def changed(batch: bytes | bytearray, **fields: int) -> bytes:
    """The batch with other header fields and a valid CRC."""
    header = read_header(batch)
    return bytes(seal(header._replace(**fields), bytes(batch[HEADER_BYTES:])))


def with_attributes(bits: int) -> bytes:
    return changed(batch_of(b"v"), attributes=bits)


def with_section(section: bytes, count: int = 1, codec: Compression = Compression.NONE) -> bytes:
    """A batch with a valid header around arbitrary bytes."""
    header = read_header(batch_of(*[b"v"] * count, codec=codec))
    return bytes(seal(header, section))


def with_bad_crc() -> bytes:
    batch = batch_of(b"v")
    batch[-1] ^= 1
    return bytes(batch)


def with_magic(magic: int) -> bytes:
    batch = batch_of(b"v")
    batch[16] = magic & 0xFF
    return bytes(batch)


# -- one batch at a time ---------------------------------------------------------------------------

INVALID: dict[str, Callable[[], bytes | None]] = {
    "no batch": lambda: b"",
    "null": lambda: None,
    "two batches": lambda: bytes(batch_of(b"a") + batch_of(b"b")),
    "bytes after the batch": lambda: bytes(batch_of(b"v") + b"\0"),
    "a batch cut short": lambda: bytes(batch_of(b"v")[:-1]),
    "base offset not 0": lambda: changed(batch_of(b"v"), base_offset=5),
    "more records announced": lambda: changed(batch_of(b"v"), record_count=2),
    "fewer records announced": lambda: changed(batch_of(b"a", b"b"), record_count=1),
    "no records": lambda: changed(batch_of(b"v"), record_count=0, last_offset_delta=-1),
    "negative count": lambda: changed(batch_of(b"v"), record_count=-1, last_offset_delta=-2),
    "huge offset range": lambda: changed(batch_of(b"v"), last_offset_delta=2**31 - 1),
    "count near overflow": lambda: changed(
        batch_of(b"v"), record_count=-(2**31), last_offset_delta=2**31 - 1
    ),
    "message format 0": lambda: with_magic(0),
    "message format 1": lambda: with_magic(1),
    "control batch": lambda: with_attributes(CONTROL_BIT),
    "transactional control batch": lambda: with_attributes(CONTROL_BIT | TRANSACTIONAL_BIT),
    "transactional without a producer": lambda: with_attributes(TRANSACTIONAL_BIT),
    "producer without a sequence": lambda: changed(
        batch_of(b"v"), producer_id=7, producer_epoch=0, base_sequence=-1
    ),
}


@pytest.mark.parametrize("name", INVALID)
def test_a_batch_that_contradicts_itself_is_an_invalid_record(
    client: RawClient, topic: str, name: str
) -> None:
    batch = INVALID[name]()
    for version in (3, 8, 12):
        assert client.produce(topic, batch, version=version) == (ErrorCode.invalid_record, -1)
    assert client.produce(topic, batch_of(b"good")) == (ErrorCode.none, 0)


CORRUPT: dict[str, Callable[[], bytes]] = {
    "bad CRC": with_bad_crc,
    "unknown format": lambda: with_magic(3),
    "negative format": lambda: with_magic(-1),
    "length less than a header": lambda: bytes(batch_of(b"v")[:8]) + b"\0\0\0\1" + b"\0" * 60,
    "negative length": lambda: bytes(batch_of(b"v")[:8]) + b"\xff" * 4 + b"\0" * 60,
}


@pytest.mark.parametrize("name", CORRUPT)
def test_a_damaged_batch_is_a_corrupt_message(client: RawClient, topic: str, name: str) -> None:
    assert client.produce(topic, CORRUPT[name]()) == (ErrorCode.corrupt_message, -1)
    assert client.produce(topic, batch_of(b"good")) == (ErrorCode.none, 0)


@pytest.mark.parametrize("compression_type", ["producer", "zstd"])
@pytest.mark.parametrize("bits", [5, 6, 7])
def test_an_unknown_codec_is_an_unsupported_compression_type(
    client: RawClient, bits: int, compression_type: str
) -> None:
    topic = unique_name("codec")
    client.create_topic(topic, compression_type=compression_type)
    answer = client.produce(topic, with_attributes(bits))
    assert answer == (ErrorCode.unsupported_compression_type, -1)


@pytest.mark.parametrize("version", [3, 6, 7, 12])
def test_zstd_needs_produce_v7(client: RawClient, topic: str, version: int) -> None:
    answer = client.produce(topic, batch_of(b"v", codec=Compression.ZSTD), version=version)
    refused = version < 7
    assert answer == ((ErrorCode.unsupported_compression_type, -1) if refused else (0, 0))


@pytest.mark.parametrize(("version", "refused"), [(4, True), (9, True), (10, False), (12, False)])
def test_zstd_needs_fetch_v10(client: RawClient, topic: str, version: int, refused: bool) -> None:
    client.produce(topic, batch_of(b"plain"))
    client.produce(topic, batch_of(b"packed", codec=Compression.ZSTD))
    fetched = client.fetch(topic, 1, version=version)
    if refused:
        assert fetched.error_code == ErrorCode.unsupported_compression_type
        assert not fetched.records
    else:
        assert fetched.error_code == ErrorCode.none
        assert fetched.records


@pytest.mark.parametrize(
    ("configs", "offset_ms", "error"),
    [
        ({}, 2 * HOUR_MS, ErrorCode.invalid_timestamp),
        ({}, -10_000 * HOUR_MS, ErrorCode.none),
        ({"message_timestamp_after_max_ms": "1000"}, HOUR_MS, ErrorCode.invalid_timestamp),
        ({"message_timestamp_before_max_ms": "1000"}, -HOUR_MS, ErrorCode.invalid_timestamp),
        ({"message_timestamp_before_max_ms": "1000"}, 0, ErrorCode.none),
        ({"message_timestamp_type": "LogAppendTime"}, 100 * HOUR_MS, ErrorCode.none),
    ],
)
def test_a_timestamp_out_of_bounds_is_invalid(
    client: RawClient, configs: dict[str, str], offset_ms: int, error: ErrorCode
) -> None:
    name = unique_name("times")
    client.create_topic(name, **configs)
    batch = batch_of(b"v", timestamp=now_ms() + offset_ms)
    assert client.produce(name, batch).error == error


def test_a_client_cannot_claim_log_append_time(client: RawClient, topic: str) -> None:
    answer = client.produce(topic, with_attributes(LOG_APPEND_TIME_BIT))
    assert answer == (ErrorCode.invalid_timestamp, -1)


def test_a_batch_may_have_exactly_max_message_bytes(client: RawClient) -> None:
    name = unique_name("small")
    client.create_topic(name, max_message_bytes="1000")
    largest = batch_of(b"x" * (1000 - len(batch_of(b"")) - 2))
    assert len(largest) == 1000
    assert client.produce(name, largest) == (ErrorCode.none, 0)
    larger = batch_of(b"x" * (1001 - len(batch_of(b"")) - 2))
    assert client.produce(name, larger) == (ErrorCode.message_too_large, -1)


# -- whole requests --------------------------------------------------------------------------------


@pytest.mark.parametrize("acks", [2, -2, 2**15 - 1, -(2**15)])
def test_acks_that_do_not_exist_are_refused(client: RawClient, topic: str, acks: int) -> None:
    answer = client.produce(topic, batch_of(b"v"), acks=acks)
    assert answer == (ErrorCode.invalid_required_acks, -1)


@pytest.mark.parametrize("partition", [1, -1, 2**31 - 1, -(2**31)])
def test_an_unknown_partition_is_refused(client: RawClient, topic: str, partition: int) -> None:
    answer = client.produce(topic, batch_of(b"v"), partition=partition)
    assert answer == (ErrorCode.unknown_topic_or_partition, -1)


@pytest.mark.parametrize("name", ["missing", "", ".", "..", "../x", "x" * 300])
def test_an_unknown_topic_is_not_created_by_producing(client: RawClient, name: str) -> None:
    answer = client.produce(name, batch_of(b"v"))
    assert answer == (ErrorCode.unknown_topic_or_partition, -1)


def test_an_unknown_topic_id_is_refused(client: RawClient) -> None:
    assert client.produce(uuid4(), batch_of(b"v")) == (ErrorCode.unknown_topic_id, -1)


def test_the_id_of_a_deleted_topic_is_unknown(client: RawClient) -> None:
    name = unique_name("deleted")
    old = client.create_topic(name)
    deleted = {"topics": [{"name": name, "topic_id": None}], "timeout": 10_000}
    client.ask(ApiKey.DELETE_TOPICS, 6, deleted)
    new = client.create_topic(name)
    assert client.produce(old, batch_of(b"v")) == (ErrorCode.unknown_topic_id, -1)
    assert client.fetch(old, 0).error_code == ErrorCode.unknown_topic_id
    assert client.produce(new, batch_of(b"v")) == (ErrorCode.none, 0)


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
def test_clients_cannot_write_to_internal_topics(client: RawClient, name: str) -> None:
    assert client.produce(name, batch_of(b"v")) == (ErrorCode.invalid_topic_exception, -1)


def test_an_error_in_one_partition_does_not_affect_the_others(client: RawClient) -> None:
    name = unique_name("three")
    client.create_topic(name, partitions=3)
    parts: dict[int, bytes | None] = {
        0: bytes(batch_of(b"a")),
        1: with_bad_crc(),
        2: bytes(batch_of(b"b")),
        3: bytes(batch_of(b"c")),
    }
    answer = client.ask(ApiKey.PRODUCE, 12, produce_fields(12, name, parts))
    assert produced(answer) == {
        0: (ErrorCode.none, 0),
        1: (ErrorCode.corrupt_message, -1),
        2: (ErrorCode.none, 0),
        3: (ErrorCode.unknown_topic_or_partition, -1),
    }


@pytest.mark.parametrize(
    "batch", [with_bad_crc(), b"", INVALID["control batch"]()], ids=["CRC", "none", "control"]
)
def test_an_error_with_acks_0_closes_the_connection(
    broker: BrokerProcess, client: RawClient, topic: str, batch: bytes
) -> None:
    with RawClient(broker.address) as silent:
        fields = produce_fields(9, topic, {0: batch}, acks=0)
        silent.send_request(ApiKey.PRODUCE, 9, encode_request(ApiKey.PRODUCE, 9, fields))
        assert silent.is_closed_by_broker
    assert client.fetch(topic, 0).high_watermark == 0


def test_an_error_with_acks_0_does_not_affect_other_partitions(
    broker: BrokerProcess, client: RawClient
) -> None:
    name = unique_name("two")
    client.create_topic(name, partitions=2)
    with RawClient(broker.address) as silent:
        parts: dict[int, bytes | None] = {0: with_bad_crc(), 1: bytes(batch_of(b"v"))}
        fields = produce_fields(9, name, parts, acks=0)
        silent.send_request(ApiKey.PRODUCE, 9, encode_request(ApiKey.PRODUCE, 9, fields))
        assert silent.is_closed_by_broker
    assert client.fetch(name, 0, partition=0).high_watermark == 0
    assert client.fetch(name, 0, partition=1).high_watermark == 1


# -- producers -------------------------------------------------------------------------------------


@pytest.fixture
def producer_id(client: RawClient) -> Iterator[int]:
    fields = {"transactional_id": None, "transaction_timeout": 60_000}
    answer = client.ask(ApiKey.INIT_PRODUCER_ID, 2, fields)
    assert (answer.error_code, answer.producer_epoch) == (ErrorCode.none, 0)
    return answer.producer_id


def numbered(producer_id: int, sequence: int, *, epoch: int = 0, count: int = 1) -> bytes:
    values = [b"%d" % (sequence + n) for n in range(count)]
    return bytes(
        batch_of(*values, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    )


def test_a_retry_among_the_last_five_is_stored_once(
    client: RawClient, topic: str, producer_id: int
) -> None:
    sent = [numbered(producer_id, 2 * n, count=2) for n in range(6)]
    for n, batch in enumerate(sent):
        assert client.produce(topic, batch) == (ErrorCode.none, 2 * n)
    for n in (1, 3, 5):
        assert client.produce(topic, sent[n]) == (ErrorCode.none, 2 * n)
    assert client.fetch(topic, 0).high_watermark == 12
    # Only the last five batches are remembered: whether the sixth is a retry is unknown.
    answer = client.produce(topic, sent[0])
    assert answer == (ErrorCode.out_of_order_sequence_number, -1)


@pytest.mark.parametrize("sequence", [0, 1, 3, 2**31 - 1])
def test_a_sequence_out_of_turn_is_refused(
    client: RawClient, topic: str, producer_id: int, sequence: int
) -> None:
    client.produce(topic, numbered(producer_id, 0, count=2))
    answer = client.produce(topic, numbered(producer_id, sequence))
    assert answer == (ErrorCode.out_of_order_sequence_number, -1)
    assert client.produce(topic, numbered(producer_id, 2)) == (ErrorCode.none, 2)


def test_an_old_producer_epoch_is_refused(client: RawClient, topic: str, producer_id: int) -> None:
    assert client.produce(topic, numbered(producer_id, 0, epoch=1)) == (ErrorCode.none, 0)
    answer = client.produce(topic, numbered(producer_id, 1, epoch=0))
    assert answer == (ErrorCode.invalid_producer_epoch, -1)
    assert client.produce(topic, numbered(producer_id, 1, epoch=1)) == (ErrorCode.none, 1)


def test_a_new_producer_epoch_starts_at_sequence_0(
    client: RawClient, topic: str, producer_id: int
) -> None:
    client.produce(topic, numbered(producer_id, 0))
    answer = client.produce(topic, numbered(producer_id, 1, epoch=1))
    assert answer == (ErrorCode.out_of_order_sequence_number, -1)
    assert client.produce(topic, numbered(producer_id, 0, epoch=1)) == (ErrorCode.none, 1)


@pytest.mark.parametrize("version", [3, 10, 11, 12])
def test_a_transactional_record_without_a_coordinator_that_knows_of_it_is_refused(
    client: RawClient, topic: str, producer_id: int, version: int
) -> None:
    """The client tries again: there may be a coordinator by then."""
    batch = changed(numbered(producer_id, 0), attributes=TRANSACTIONAL_BIT)
    answer = client.produce(topic, batch, version=version, transactional_id="t")
    assert answer == (ErrorCode.not_enough_replicas, -1)


# -- batches whose records the broker validates ----------------------------------------------------


@pytest.fixture
def compacted(client: RawClient) -> str:
    name = unique_name("compacted")
    client.create_topic(name, cleanup_policy="compact")
    return name


BROKEN = {
    "rubbish": b"\xff" * 20,
    "zeros": b"\0" * 20,
    "endless varint": b"\x80" * 20,
    "negative length": b"\x01" + b"\0" * 6,
    "length beyond the end": b"\x7f" + b"\0" * 10,
}


@pytest.mark.parametrize("version", [7, 8, 9, 12])
@pytest.mark.parametrize("codec", [Compression.NONE, Compression.GZIP])
def test_a_compacted_topic_names_the_records_that_have_no_key(
    client: RawClient, compacted: str, version: int, codec: Compression
) -> None:
    """KIP-467."""
    keys = [b"k", None, b"k", None]
    records = [Record(timestamp=now_ms(), key=key, value=b"v") for key in keys]
    fields = produce_fields(version, compacted, {0: bytes(build_batch(records, codec=codec))})
    (topic,) = client.ask(ApiKey.PRODUCE, version, fields).responses
    (partition,) = topic.partition_responses
    assert partition.error_code == ErrorCode.invalid_record
    if version >= 8:
        assert [error.batch_index for error in partition.record_errors] == [1, 3]
        assert {error.batch_index_error_message for error in partition.record_errors} == {
            "a compacted topic needs a key"
        }
        assert "2 records of the batch" in partition.error_message


@pytest.mark.parametrize("name", BROKEN)
def test_a_compacted_topic_refuses_broken_records(
    client: RawClient, topic: str, compacted: str, name: str
) -> None:
    batch = with_section(BROKEN[name])
    assert client.produce(compacted, batch) == (ErrorCode.invalid_record, -1)
    # Topics that are not compacted do not validate the content of records.
    assert client.produce(topic, batch) == (ErrorCode.none, 0)


def test_a_batch_too_short_for_its_records_is_refused_everywhere(
    client: RawClient, topic: str, compacted: str
) -> None:
    for section in (b"", b"\0" * 6):
        assert client.produce(compacted, with_section(section)) == (ErrorCode.invalid_record, -1)
        assert client.produce(topic, with_section(section)) == (ErrorCode.invalid_record, -1)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_compacted_topic_refuses_what_does_not_decompress(
    client: RawClient, compacted: str, codec: Compression
) -> None:
    for section in (b"", b"rubbish", compress(codec, BROKEN["rubbish"])):
        batch = with_section(section, codec=codec)
        assert client.produce(compacted, batch) == (ErrorCode.invalid_record, -1)


def test_a_compacted_topic_refuses_records_out_of_order(client: RawClient, compacted: str) -> None:
    body = b"\0\0" + b"\x02" + b"\x02k" + b"\x02v" + b"\0"  # offset delta 1, as both records have
    section = (bytes([2 * len(body)]) + body) * 2
    assert client.produce(compacted, with_section(section, 2)) == (ErrorCode.invalid_record, -1)


@pytest.mark.parametrize("codec", list(Compression))
def test_a_compacted_topic_refuses_records_without_a_key(
    client: RawClient, compacted: str, codec: Compression
) -> None:
    answer = client.produce(compacted, batch_of(b"v", key=None, codec=codec))
    assert answer == (ErrorCode.invalid_record, -1)
    assert client.produce(compacted, batch_of(b"v", codec=codec)) == (ErrorCode.none, 0)


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4, Compression.ZSTD])
def test_a_decompression_bomb_is_an_invalid_record(
    broker: BrokerProcess, client: RawClient, compacted: str, codec: Compression
) -> None:
    """32 MiB of zeros, above the broker's limit for so few compressed bytes."""
    bomb = with_section(compress(codec, bytes(1 << 25)), codec=codec)
    assert client.produce(compacted, bomb) == (ErrorCode.invalid_record, -1)


def test_a_batch_must_not_grow_beyond_the_limit_when_it_is_stored_uncompressed(
    client: RawClient,
) -> None:
    name = unique_name("plain")
    client.create_topic(name, compression_type="uncompressed", max_message_bytes="10000")
    large = batch_of(bytes(20_000), codec=Compression.ZSTD)
    assert client.produce(name, large) == (ErrorCode.message_too_large, -1)
    assert client.produce(name, batch_of(bytes(5_000), codec=Compression.ZSTD)) == (0, 0)


def test_a_rejected_batch_leaves_nothing_in_the_log(
    broker: BrokerProcess, client: RawClient, compacted: str
) -> None:
    client.produce(compacted, batch_of(b"first"))
    for make in (*INVALID.values(), *CORRUPT.values()):
        assert client.produce(compacted, make()).error != ErrorCode.none
    client.produce(compacted, batch_of(b"second"))
    assert [record.value for record in broker.stored_records(compacted)] == [b"first", b"second"]
    headers: list[BatchHeader] = [h for _, h in batches(client.fetch(compacted, 0).records)]
    assert [header.base_offset for header in headers] == [0, 1]
