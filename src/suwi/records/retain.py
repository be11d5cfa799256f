"""A batch of which only some records stay: what compaction writes.

`stored_section` unpacks the records, `scan_keys` (`record.py`) finds their keys and places;
`keep_records` makes the batch of those that stay, `empty_batch` one of none.
Invariant: offsets, sequences, producer and leader epoch of a batch stay as they were, whatever
becomes of its records.
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

# What a broker grants a client's batch is no measure here: a log may come from Apache Kafka, and
# what is left of a batch may shrink better than the whole did. Still it takes bytes in the log to
# make many in memory, and a record that is looked at takes some two hundred.
_SECTION_BYTES_ALWAYS_ALLOWED = 64 * 1024 * 1024
_SECTION_RATIO_MAX = 16
_SECTION_BYTES_MAX = 256 * 1024 * 1024

_LASTING_BITS = LOG_APPEND_TIME_BIT | TRANSACTIONAL_BIT | CONTROL_BIT


def stored_section(batch: Buffer, header: BatchHeader) -> bytes:
    """The plain records section of a batch that is in a log. Raises InvalidRecord."""
    by_ratio = max(_SECTION_BYTES_ALWAYS_ALLOWED, header.size_bytes * _SECTION_RATIO_MAX)
    return records_section(batch, header, decompressed_bytes=min(by_ratio, _SECTION_BYTES_MAX))


def keep_records(
    header: BatchHeader,
    section: bytes,
    kept: Sequence[Span],
    *,
    delete_horizon_ms: int | None = None,
) -> bytearray:
    """The batch with only the records `kept`, of which there is one at least.

    `delete_horizon_ms` stamps when its tombstones or its marker may go (KIP-534): it takes the
    place of the base timestamp, so that every record is written anew.
    """
    changed = header._replace(record_count=len(kept), max_timestamp=_newest(header, section, kept))
    if delete_horizon_ms is None:
        records = b"".join([section[span[0] : span[1]] for span in kept])
    else:
        changed = changed._replace(
            attributes=header.attributes | DELETE_HORIZON_BIT, base_timestamp=delete_horizon_ms
        )
        shift = header.base_timestamp - delete_horizon_ms
        records = b"".join([_restamped(section, span, shift) for span in kept])
    return seal(changed, compress(header.codec, records))


def empty_batch(header: BatchHeader) -> bytearray:
    """The batch without records: it keeps offsets and a producer's last sequence."""
    return seal(
        header._replace(
            attributes=header.attributes & _LASTING_BITS,
            base_timestamp=NO_TIMESTAMP,
            record_count=0,
        ),
        b"",
    )


def _newest(header: BatchHeader, section: bytes, kept: Sequence[Span]) -> int:
    """The newest timestamp of those kept. Mostly the last one has it, so that comes first."""
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


def _restamped(section: bytes, span: Span, shift: int) -> bytearray:
    """The record with its timestamp counted from another base."""
    delta, after = read_timestamp_delta(section, span)
    body = bytearray(1)  # the attributes, which are unused
    append_varint(body, wrap_int64(delta + shift))
    body += section[after : span[1]]
    record = bytearray()
    append_varint(record, len(body))
    record += body
    return record
