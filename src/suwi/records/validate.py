"""Validates a batch that a client produces.

`validate_produced_batch` checks the header and the CRC only. `validate_produced_records` parses
every record: for compacted topics and before recompression. Both return nothing and raise the error
for the partition's response.
"""

from typing import Final, NamedTuple

from suwi.model.errors import (
    CorruptMessage,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    RejectedRecords,
    UnsupportedCompressionType,
)
from suwi.model.ids import NO_TIMESTAMP
from suwi.records.batch import (
    CODEC_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    LOG_OVERHEAD_BYTES,
    TRANSACTIONAL_BIT,
    BatchHeader,
    compute_crc,
)
from suwi.records.compression import Buffer, Compression, decompressed_bytes_max
from suwi.records.record import iter_records

_BROKER_ONLY_BITS: Final = CONTROL_BIT | LOG_APPEND_TIME_BIT | DELETE_HORIZON_BIT
_CODEC_MAX: Final = max(Compression)
_PRODUCE_VERSION_OF_ZSTD: Final = 7
# Length, attributes, two deltas, lengths of key and value, header count: one byte each.
_RECORD_BYTES_MIN: Final = 7
# A batch may have far more, but the response should stay in proportion to the request.
_RECORDS_NAMED_MAX: Final = 100
_FOREVER_MS: Final = 2**63 - 1
_HOUR_MS: Final = 3_600_000


class BatchRules(NamedTuple):
    """What a topic's configuration allows; defaults are Apache Kafka's.

    `check_timestamps` is false if `message.timestamp.type` is LogAppendTime.
    """

    message_bytes_max: int = 1_048_588
    timestamp_before_ms_max: int = _FOREVER_MS
    timestamp_after_ms_max: int = _HOUR_MS
    check_timestamps: bool = True


def validate_produced_batch(
    batch: Buffer, header: BatchHeader, *, rules: BatchRules, now_ms: int, produce_version: int
) -> None:
    """Check the records of one partition in a produce request, whose batch header is `header`.

    One pass over the header fields and one CRC; the order of checks is Apache Kafka's, so that a
    batch with several errors gets the same error code.
    """
    # Unpacking the tuple once costs less than an attribute lookup per check.
    (
        base_offset,
        batch_length,
        _leader_epoch,
        _magic,
        crc,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    ) = header
    size_bytes = batch_length + LOG_OVERHEAD_BYTES
    if size_bytes != len(batch):
        raise InvalidRecord(
            f"exactly one batch is allowed: it has {size_bytes} bytes, received {len(batch)}"
        )
    codec = attributes & CODEC_MASK
    if codec >= Compression.ZSTD:
        _check_codec(codec, produce_version)
    if base_offset != 0:
        raise InvalidRecord(f"the base offset of a new batch must be 0, not {base_offset}")
    if size_bytes > rules.message_bytes_max:
        raise MessageTooLarge(
            f"a batch of {size_bytes} bytes exceeds max.message.bytes {rules.message_bytes_max}"
        )
    if compute_crc(batch, 0, size_bytes) != crc:
        raise CorruptMessage("the CRC does not match the batch")
    if record_count < 1 or record_count != last_offset_delta + 1:
        raise InvalidRecord(
            f"record count {record_count} does not match last offset delta {last_offset_delta}"
        )
    if record_count * _RECORD_BYTES_MIN > size_bytes - HEADER_BYTES:
        _check_count(record_count, codec, size_bytes - HEADER_BYTES)
    if attributes & _BROKER_ONLY_BITS:
        _refuse_broker_only_bits(attributes)
    if producer_id >= 0:
        if base_sequence < 0 or producer_epoch < 0:
            raise InvalidRecord(
                f"producer id {producer_id} comes with epoch {producer_epoch} "
                f"and base sequence {base_sequence}"
            )
    elif attributes & TRANSACTIONAL_BIT:
        raise InvalidRecord("a transactional batch needs a producer id")
    if rules.check_timestamps:
        _check_timestamps(base_timestamp, max_timestamp, rules, now_ms)


def validate_produced_records(
    batch: Buffer,
    header: BatchHeader,
    *,
    needs_keys: bool,
    decompressed_bytes: int | None = None,
) -> None:
    """Parse every record of a batch that passed `validate_produced_batch`.

    A compacted topic needs keys; the error lists records without one. The time is proportional to
    the number of records: large batches belong in a thread.
    """
    keyless = 0
    reasons: dict[int, str] = {}
    records = iter_records(batch, header, decompressed_bytes=decompressed_bytes, with_headers=False)
    for expected, record in enumerate(records, header.base_offset):
        if record.offset != expected:
            raise InvalidRecord(f"record {expected} of the batch says it is {record.offset}")
        if needs_keys and record.key is None:
            keyless += 1
            if keyless <= _RECORDS_NAMED_MAX:
                reasons[expected - header.base_offset] = "a compacted topic needs a key"
    if keyless:
        raise RejectedRecords(
            f"a compacted topic needs keys: {keyless} records of the batch have none",
            reasons,
        )


def _check_codec(codec: int, produce_version: int) -> None:
    if codec > _CODEC_MAX:
        raise UnsupportedCompressionType(f"unknown compression type {codec}")
    if produce_version < _PRODUCE_VERSION_OF_ZSTD:
        raise UnsupportedCompressionType(
            f"zstd needs Produce v{_PRODUCE_VERSION_OF_ZSTD}, this is v{produce_version}"
        )


def _check_count(record_count: int, codec: int, section_bytes: int) -> None:
    """Reject more records than can be in the batch: the count is used later."""
    plain_bytes = section_bytes if not codec else decompressed_bytes_max(section_bytes)
    if record_count * _RECORD_BYTES_MIN > plain_bytes:
        raise InvalidRecord(f"{section_bytes} bytes cannot hold {record_count} records")


def _refuse_broker_only_bits(attributes: int) -> None:
    if attributes & CONTROL_BIT:
        raise InvalidRecord("clients must not write control batches")
    if attributes & LOG_APPEND_TIME_BIT:
        raise InvalidTimestamp("clients must not set the timestamp type to LogAppendTime")
    raise InvalidRecord("clients must not set a delete horizon")


def _check_timestamps(
    base_timestamp: int, max_timestamp: int, rules: BatchRules, now_ms: int
) -> None:
    """Check both ends of the batch; NO_TIMESTAMP means that the client set none."""
    if not NO_TIMESTAMP <= base_timestamp <= max_timestamp:
        raise InvalidTimestamp(
            f"base timestamp {base_timestamp} and max timestamp {max_timestamp} are not a range"
        )
    if max_timestamp - now_ms > rules.timestamp_after_ms_max:
        raise InvalidTimestamp(
            f"timestamp {max_timestamp} is more than message.timestamp.after.max.ms "
            f"{rules.timestamp_after_ms_max} after {now_ms}"
        )
    if now_ms - base_timestamp > rules.timestamp_before_ms_max and base_timestamp != NO_TIMESTAMP:
        raise InvalidTimestamp(
            f"timestamp {base_timestamp} is more than message.timestamp.before.max.ms "
            f"{rules.timestamp_before_ms_max} before {now_ms}"
        )
