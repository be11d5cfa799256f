"""Rewrites a batch with only some of its records, for compaction.

`stored_section` decompresses the records, `scan_keys` (`record.py`) finds their keys and positions;
`keep_records` builds the batch with the kept records, `empty_batch` one without records.
Invariant: offsets, sequences, producer and leader epoch of a batch do not change.
"""

from collections.abc import Sequence

from suwi.model.ids import NO_TIMESTAMP
from suwi.records.batch import (
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    LOG_APPEND_TIME_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
)
from suwi.records.builder import append_varint, seal
from suwi.records.compression import Buffer, compress
from suwi.records.record import Span, read_timestamp_delta, records_section, wrap_int64

# The limits for a client's batch do not apply here: a log may come from Apache Kafka, and what is
# left of a batch may compress better than the whole did. Still the log needs bytes to fill memory,
# and each scanned record takes about two hundred.
_SECTION_BYTES_ALWAYS_ALLOWED = 64 * 1024 * 1024
_SECTION_RATIO_MAX = 16
_SECTION_BYTES_MAX = 256 * 1024 * 1024

_KEPT_BITS = LOG_APPEND_TIME_BIT | TRANSACTIONAL_BIT | CONTROL_BIT


def stored_section(batch: Buffer, header: BatchHeader) -> bytes:
    """The uncompressed records section of a stored batch. Raises InvalidRecord."""
    by_ratio = max(_SECTION_BYTES_ALWAYS_ALLOWED, header.size_bytes * _SECTION_RATIO_MAX)
    return records_section(batch, header, decompressed_bytes=min(by_ratio, _SECTION_BYTES_MAX))


def keep_records(
    header: BatchHeader,
    section: bytes,
    kept: Sequence[Span],
    *,
    delete_horizon_ms: int | None = None,
) -> bytearray:
    """The batch with only the records `kept`, at least one.

    `delete_horizon_ms` sets when its tombstones or its marker may be removed (KIP-534). It replaces
    the base timestamp, so every record is rewritten.
    """
    changed = header._replace(record_count=len(kept), max_timestamp=_newest(header, section, kept))
    if delete_horizon_ms is None:
        records = b"".join([section[span[0] : span[1]] for span in kept])
    else:
        changed = changed._replace(
            attributes=header.attributes | DELETE_HORIZON_BIT, base_timestamp=delete_horizon_ms
        )
        shift = header.base_timestamp - delete_horizon_ms
        records = b"".join([_rebased(section, span, shift) for span in kept])
    return seal(changed, compress(header.codec, records))


def empty_batch(header: BatchHeader) -> bytearray:
    """The batch without records: it keeps its offsets and the producer's last sequence."""
    return seal(
        header._replace(
            attributes=header.attributes & _KEPT_BITS,
            base_timestamp=NO_TIMESTAMP,
            record_count=0,
        ),
        b"",
    )


def _newest(header: BatchHeader, section: bytes, kept: Sequence[Span]) -> int:
    """The newest timestamp of the kept records. Usually the last record has it, so it is first."""
    if header.uses_log_append_time:
        return header.max_timestamp
    newest: int | None = None
    for span in reversed(kept):
        stamp = wrap_int64(header.base_timestamp + read_timestamp_delta(section, span)[0])
        if stamp == header.max_timestamp:
            return stamp
        newest = stamp if newest is None else max(newest, stamp)
    assert newest is not None
    return newest


def _rebased(section: bytes, span: Span, shift: int) -> bytearray:
    """The record with its timestamp delta relative to another base timestamp."""
    delta, after = read_timestamp_delta(section, span)
    body = bytearray(1)  # the attributes, which are unused
    append_varint(body, wrap_int64(delta + shift))
    body += section[after : span[1]]
    record = bytearray()
    append_varint(record, len(body))
    record += body
    return record
