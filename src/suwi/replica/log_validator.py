"""Validates a client's batch and converts it to the form that the topic stores.

Most batches need `validate` only. Batches whose records must be read (`needs_records`) also need
`convert`, which runs in a thread where it may take long (`takes_long`).
"""

from typing import NamedTuple

from suwi.model.errors import CorruptMessage, InvalidRecord, MessageTooLarge
from suwi.model.topic_config import TopicConfig
from suwi.records.batch import LOG_OVERHEAD_BYTES, MAGIC, MAGIC_AT, BatchHeader, read_header, stamp
from suwi.records.builder import recompress
from suwi.records.compression import Compression
from suwi.records.validate import BatchRules, validate_produced_batch, validate_produced_records

_QUICK_BYTES_MAX = 16 * 1024
_OLD_MESSAGE_BYTES_MIN = 14
_CODECS = {
    "uncompressed": Compression.NONE,
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}


class ValidationRules(NamedTuple):
    """A topic's rules for new batches, computed once from its configuration."""

    rules: BatchRules
    stamps: bool
    """message.timestamp.type=LogAppendTime: every record gets the time of the append."""
    codec: Compression | None
    """The codec to store batches in; None keeps the producer's."""
    needs_keys: bool
    reads_records: bool
    """Whether some batches need their records read."""
    keeps_as_is: bool
    """Whether every batch is stored unchanged."""


def validation_rules_of(config: TopicConfig) -> ValidationRules:
    stamps = config.message_timestamp_type == "LogAppendTime"
    codec = _CODECS.get(config.compression_type)
    reads_records = codec is not None or config.is_compacted
    return ValidationRules(
        BatchRules(
            message_bytes_max=config.max_message_bytes,
            timestamp_before_ms_max=config.message_timestamp_before_max_ms,
            timestamp_after_ms_max=config.message_timestamp_after_max_ms,
            check_timestamps=not stamps,
        ),
        stamps,
        codec,
        config.is_compacted,
        reads_records,
        not (reads_records or stamps),
    )


def validate(
    validation_rules: ValidationRules, records: memoryview, *, now_ms: int, produce_version: int
) -> BatchHeader:
    """Check one partition's part of a produce request. Raises a `BrokerError`."""
    try:
        header = read_header(records)
    except CorruptMessage:
        _refuse_old_format(records)
        raise
    validate_produced_batch(
        records,
        header,
        rules=validation_rules.rules,
        now_ms=now_ms,
        produce_version=produce_version,
    )
    return header


def _refuse_old_format(records: memoryview) -> None:
    """Batches with magic 0 or 1 are not corrupt: their format is no longer supported."""
    if len(records) <= MAGIC_AT or records[MAGIC_AT] >= MAGIC:
        return
    size_bytes = int.from_bytes(records[8:12], "big")
    if _OLD_MESSAGE_BYTES_MIN <= size_bytes <= len(records) - LOG_OVERHEAD_BYTES:
        raise InvalidRecord(f"record format {records[MAGIC_AT]} is no longer supported")


def needs_records(validation_rules: ValidationRules, header: BatchHeader) -> bool:
    """Whether the records inside must be read: their keys checked or their codec changed."""
    return validation_rules.needs_keys or (
        validation_rules.codec is not None and validation_rules.codec != header.codec
    )


def takes_long(size_bytes: int, header: BatchHeader) -> bool:
    """Whether reading the records may block the event loop; a compressed size says nothing."""
    return size_bytes > _QUICK_BYTES_MAX or header.codec is not Compression.NONE


def convert(
    validation_rules: ValidationRules, records: memoryview, header: BatchHeader
) -> memoryview:
    """Check the records inside and put them into the topic's codec. Raises a `BrokerError`."""
    validate_produced_records(records, header, needs_keys=validation_rules.needs_keys)
    if validation_rules.codec is None or validation_rules.codec is header.codec:
        return records
    converted = recompress(records, header, validation_rules.codec)
    bytes_max = validation_rules.rules.message_bytes_max
    if len(converted) > bytes_max:
        raise MessageTooLarge(
            f"as {validation_rules.codec.name} the batch has {len(converted)} bytes, "
            f"more than max.message.bytes {bytes_max}"
        )
    return memoryview(converted)


def stamped(records: memoryview, now_ms: int) -> BatchHeader:
    """Set the batch's timestamp to the append time. Returns its new header."""
    stamp(records, now_ms)
    return read_header(records)
