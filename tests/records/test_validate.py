"""Which batches of clients are refused, and with which error."""

from collections.abc import Callable

import pytest
from hypothesis import given

from suwi.model.errors import (
    BrokerError,
    CorruptMessage,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    RejectedRecords,
    UnsupportedCompressionType,
)
from suwi.records.batch import (
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    BatchHeader,
    read_header,
)
from suwi.records.builder import build_batch, build_marker, seal
from suwi.records.compression import Compression, compress
from suwi.records.record import MarkerType, Record
from suwi.records.validate import (
    BatchRules,
    validate_produced_batch,
    validate_produced_records,
)
from tests.records.strategies import codecs, record_lists

NOW_MS = 1_700_000_000_000
RECORDS = [Record(timestamp=NOW_MS - n, key=b"k%d" % n, value=b"v" * 50) for n in (2, 1, 0)]


def validate(
    batch: bytes | bytearray, rules: BatchRules | None = None, produce_version: int = 9
) -> None:
    validate_produced_batch(
        memoryview(batch),
        read_header(batch),
        rules=rules or BatchRules(),
        now_ms=NOW_MS,
        produce_version=produce_version,
    )


def altered(**fields: int) -> bytearray:
    """A valid batch with these header fields and a matching CRC."""
    batch = build_batch(RECORDS)
    return seal(read_header(batch)._replace(**fields), bytes(batch[HEADER_BYTES:]))


@given(record_lists(), codecs)
def test_batches_from_the_builder_are_accepted(records: list[Record], codec: Compression) -> None:
    records.sort(key=lambda record: record.timestamp)
    batch = build_batch(records, codec=codec)
    header = read_header(batch)
    rules = BatchRules()
    validate_produced_batch(batch, header, rules=rules, now_ms=2**45, produce_version=7)
    validate_produced_records(batch, header, needs_keys=False)


def test_a_wrong_crc_is_corrupt() -> None:
    batch = build_batch(RECORDS)
    batch[-1] ^= 1
    with pytest.raises(CorruptMessage):
        validate(batch)


@pytest.mark.parametrize("tail", [b"x", bytes(build_batch(RECORDS))])
def test_a_partition_accepts_exactly_one_batch(tail: bytes) -> None:
    with pytest.raises(InvalidRecord):
        validate(build_batch(RECORDS) + tail)


def test_a_batch_that_is_cut_off_is_refused() -> None:
    batch = build_batch(RECORDS)
    for size in range(HEADER_BYTES, len(batch)):
        with pytest.raises(InvalidRecord):
            validate(batch[:size])


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"base_offset": 1}, InvalidRecord),
        ({"record_count": 0, "last_offset_delta": -1}, InvalidRecord),
        ({"record_count": -1, "last_offset_delta": -2}, InvalidRecord),
        ({"record_count": 2}, InvalidRecord),
        ({"last_offset_delta": 7}, InvalidRecord),
        ({"last_offset_delta": 2**31 - 1}, InvalidRecord),
        ({"attributes": CONTROL_BIT}, InvalidRecord),
        ({"attributes": DELETE_HORIZON_BIT}, InvalidRecord),
        ({"attributes": LOG_APPEND_TIME_BIT}, InvalidTimestamp),
        ({"attributes": 5}, UnsupportedCompressionType),
        ({"attributes": 7}, UnsupportedCompressionType),
        ({"attributes": 0x10}, InvalidRecord),  # transactional without a producer id
        ({"producer_id": 7, "producer_epoch": 0, "base_sequence": -1}, InvalidRecord),
        ({"producer_id": 7, "producer_epoch": -1, "base_sequence": 0}, InvalidRecord),
        ({"base_timestamp": -2}, InvalidTimestamp),
        ({"max_timestamp": -2}, InvalidTimestamp),
        ({"max_timestamp": NOW_MS - 9, "base_timestamp": NOW_MS}, InvalidTimestamp),
        ({"max_timestamp": 2**63 - 1}, InvalidTimestamp),
    ],
)
def test_a_wrong_header_is_refused(fields: dict[str, int], error: type[BrokerError]) -> None:
    with pytest.raises(error):
        validate(altered(**fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0},
        {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "attributes": 0x10},
        {"base_sequence": 0},  # some clients leave it 0 when they are not idempotent
        {"partition_leader_epoch": 99},
        {"base_timestamp": -1, "max_timestamp": -1},
        {"attributes": 0x80},  # unused bits are allowed
    ],
)
def test_unusual_but_valid_headers_are_accepted(fields: dict[str, int]) -> None:
    validate(altered(**fields))


def test_a_transaction_marker_from_a_client_is_refused() -> None:
    marker = build_marker(
        MarkerType.COMMIT,
        producer_id=1,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp=NOW_MS,
    )
    with pytest.raises(InvalidRecord):
        validate(marker)


def test_zstd_needs_produce_version_7() -> None:
    batch = build_batch(RECORDS, codec=Compression.ZSTD)
    validate(batch, produce_version=7)
    with pytest.raises(UnsupportedCompressionType):
        validate(batch, produce_version=6)
    for codec in set(Compression) - {Compression.ZSTD}:
        validate(build_batch(RECORDS, codec=codec), produce_version=3)


def test_the_size_limit_counts_the_whole_batch() -> None:
    batch = build_batch(RECORDS)
    validate(batch, BatchRules(message_bytes_max=len(batch)))
    with pytest.raises(MessageTooLarge):
        validate(batch, BatchRules(message_bytes_max=len(batch) - 1))


@pytest.mark.parametrize(
    ("timestamps", "accepted"),
    [
        ([NOW_MS - 500], True),
        ([NOW_MS - 501], False),
        ([NOW_MS + 100], True),
        ([NOW_MS + 101], False),
        ([NOW_MS - 501, NOW_MS], False),
        ([NOW_MS, NOW_MS + 101], False),
        ([-1], True),
    ],
)
def test_timestamps_stay_within_the_topics_bounds(timestamps: list[int], accepted: bool) -> None:
    rules = BatchRules(timestamp_before_ms_max=500, timestamp_after_ms_max=100)
    batch = build_batch([Record(timestamp=timestamp) for timestamp in timestamps])
    if accepted:
        validate(batch, rules)
    else:
        with pytest.raises(InvalidTimestamp):
            validate(batch, rules)


def test_client_timestamps_are_ignored_with_log_append_time() -> None:
    batch = build_batch([Record(timestamp=2**60)])
    validate(batch, BatchRules(check_timestamps=False))
    with pytest.raises(InvalidTimestamp):
        validate(batch)


def validate_records(batch: bytearray, *, needs_keys: bool = True) -> None:
    validate_produced_records(batch, read_header(batch), needs_keys=needs_keys)


def test_a_compacted_topic_refuses_a_null_key() -> None:
    batch = build_batch([*RECORDS, Record(key=None, value=b"v")])
    validate_records(batch, needs_keys=False)
    with pytest.raises(InvalidRecord):
        validate_records(batch)


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.GZIP])
def test_records_without_a_key_are_listed_by_their_index_in_the_batch(codec: Compression) -> None:
    """KIP-467."""
    keys = [None, b"a", None, b"b"]
    batch = build_batch([Record(key=key, value=b"v") for key in keys], codec=codec)
    with pytest.raises(RejectedRecords, match="2 records of the batch") as refused:
        validate_records(batch)
    assert list(refused.value.reasons) == [0, 2]


def test_the_number_of_listed_records_is_limited() -> None:
    with pytest.raises(RejectedRecords, match="5000 records of the batch") as refused:
        validate_records(build_batch([Record(value=b"v")] * 5000))
    assert list(refused.value.reasons) == list(range(100))


def test_an_empty_key_is_a_key() -> None:
    validate_records(build_batch([Record(key=b"", value=b"v")]))


def test_offset_deltas_must_have_no_gaps() -> None:
    batch = build_batch([Record(offset=0, key=b"a"), Record(offset=2, key=b"b")])
    with pytest.raises(InvalidRecord):
        validate_records(batch)


@pytest.mark.parametrize("codec", list(Compression))
@pytest.mark.parametrize(
    "break_section",
    [
        lambda section: section[:-1],
        lambda section: section + b"\0",
        lambda section: bytes(7 * len(RECORDS)),
        lambda section: b"\xff" * len(section),
        lambda section: section[:1] + section,
    ],
)
def test_broken_records_are_found_inside_every_codec(
    codec: Compression, break_section: Callable[[bytes], bytes]
) -> None:
    good = build_batch(RECORDS)
    header: BatchHeader = read_header(good)._replace(attributes=codec)
    section = break_section(bytes(good[HEADER_BYTES:]))
    batch = seal(header, compress(codec, section))
    validate(batch)  # the header alone does not show it
    with pytest.raises(InvalidRecord):
        validate_records(batch)


@pytest.mark.parametrize("codec", [codec for codec in Compression if codec])
def test_a_decompression_bomb_is_refused(codec: Compression) -> None:
    batch = build_batch([Record(key=b"k", value=bytes(200_000))], codec=codec)
    with pytest.raises(InvalidRecord):
        validate_produced_records(
            batch, read_header(batch), needs_keys=True, decompressed_bytes=100_000
        )


def test_a_record_count_too_large_for_the_batch_is_refused() -> None:
    """Compaction allocates memory for as many keys as the headers of a log claim."""
    section_bytes = len(build_batch(RECORDS)) - HEADER_BYTES
    most = section_bytes // 7
    validate(altered(record_count=most, last_offset_delta=most - 1))
    for count in (most + 1, 2**31 - 1):
        with pytest.raises(InvalidRecord, match="cannot hold"):
            validate(altered(record_count=count, last_offset_delta=count - 1))


@pytest.mark.parametrize("codec", [c for c in Compression if c is not Compression.NONE])
def test_the_record_count_of_a_compressed_batch_is_limited_by_its_output_limit(
    codec: Compression,
) -> None:
    header = read_header(build_batch(RECORDS, codec=codec))
    section = compress(codec, b"x" * 100)
    most = 16 * 1024 * 1024 // 7
    validate(seal(header._replace(record_count=most, last_offset_delta=most - 1), section))
    with pytest.raises(InvalidRecord, match="cannot hold"):
        validate(seal(header._replace(record_count=most + 1, last_offset_delta=most), section))
