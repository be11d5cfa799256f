"""Builds batches: for our own client, the coordinators, transaction markers and tests.

`build_batch` encodes records, `build_marker` builds a transaction marker, `seal` completes any
batch.
Invariant: batches built here pass `iter_records`, and their CRC is valid.
"""

import struct
from collections.abc import Iterable

from suwi.model.ids import (
    NO_EPOCH,
    NO_OFFSET,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
)
from suwi.records.batch import (
    CONTROL_BIT,
    CRC_AT,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    TRANSACTIONAL_BIT,
    BatchHeader,
    compute_crc,
)
from suwi.records.compression import Compression, compress
from suwi.records.record import MarkerType, Record, wrap_int64

_CRC = struct.Struct(">I")
_MARKER_KEY = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hi")
_MARKER_VERSION = 0


def build_batch(
    records: Iterable[Record],
    *,
    base_offset: int = 0,
    last_offset: int | None = None,
    codec: Compression = Compression.NONE,
    compression_level: int | None = None,
    leader_epoch: int = NO_EPOCH,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
    log_append_time_ms: int | None = None,
) -> bytearray:
    """A sealed batch. Offsets increase; NO_OFFSET means the next offset; gaps are kept.

    `last_offset` extends the batch beyond its last record. With `log_append_time_ms` every record
    has that timestamp. A batch without records needs `last_offset`.
    """
    section, deltas, base_timestamp, max_timestamp = _encode(records, base_offset)
    last_delta = deltas[-1] if deltas else -1
    if last_offset is not None:
        if last_offset - base_offset < last_delta:
            raise ValueError(f"last offset {last_offset} is before the last record")
        last_delta = last_offset - base_offset
    if last_delta < 0:
        raise ValueError("a batch without records needs a last offset")
    attributes = (
        codec | (TRANSACTIONAL_BIT if transactional else 0) | (CONTROL_BIT if control else 0)
    )
    if log_append_time_ms is not None:
        attributes |= LOG_APPEND_TIME_BIT
        max_timestamp = log_append_time_ms
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=0,
        partition_leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=attributes,
        last_offset_delta=last_delta,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=len(deltas),
    )
    return seal(header, compress(codec, section, compression_level))


def build_marker(
    marker: MarkerType,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = NO_EPOCH,
) -> bytearray:
    """The control batch that ends a producer's transaction in one partition."""
    record = Record(
        timestamp=timestamp,
        key=_MARKER_KEY.pack(_MARKER_VERSION, marker),
        value=_MARKER_VALUE.pack(_MARKER_VERSION, coordinator_epoch),
    )
    return build_batch(
        [record],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def seal(header: BatchHeader, section: bytes) -> bytearray:
    """A batch of header and records section; sets length and CRC."""
    batch = bytearray(HEADER_BYTES)
    batch += section
    header = header._replace(batch_length=len(batch) - LOG_OVERHEAD_BYTES)
    HEADER.pack_into(batch, 0, *header)
    _CRC.pack_into(batch, CRC_AT, compute_crc(batch, 0, len(batch)))
    return batch


def _encode(records: Iterable[Record], base_offset: int) -> tuple[bytearray, list[int], int, int]:
    """The section, the offset deltas, the first and the largest timestamp."""
    section = bytearray()
    deltas: list[int] = []
    base_timestamp = max_timestamp = int(NO_TIMESTAMP)
    next_delta = 0
    for record in records:
        if not deltas:
            base_timestamp = record.timestamp
        max_timestamp = max(max_timestamp, record.timestamp)
        delta = next_delta if record.offset == NO_OFFSET else record.offset - base_offset
        if delta < next_delta:
            raise ValueError(f"offset {record.offset} is not increasing, base offset {base_offset}")
        deltas.append(delta)
        next_delta = delta + 1
        body = _encode_body(record, wrap_int64(record.timestamp - base_timestamp), delta)
        append_varint(section, len(body))
        section += body
    return section, deltas, base_timestamp, max_timestamp


def _encode_body(record: Record, timestamp_delta: int, offset_delta: int) -> bytearray:
    body = bytearray(1)  # the attributes, which are unused
    append_varint(body, timestamp_delta)
    append_varint(body, offset_delta)
    _append_nullable(body, record.key)
    _append_nullable(body, record.value)
    append_varint(body, len(record.headers))
    for name, value in record.headers:
        _append_nullable(body, name.encode("utf-8", "surrogateescape"))
        _append_nullable(body, value)
    return body


def _append_nullable(out: bytearray, field: bytes | None) -> None:
    if field is None:
        out.append(1)  # -1
    else:
        append_varint(out, len(field))
        out += field


def append_varint(out: bytearray, number: int) -> None:
    """Zigzag: 0, -1, 1, -2 become 0, 1, 2, 3."""
    number = number << 1 if number >= 0 else (~number << 1) | 1
    while number > 0x7F:
        out.append((number & 0x7F) | 0x80)
        number >>= 7
    out.append(number)
