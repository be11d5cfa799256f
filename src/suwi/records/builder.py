"""Builds batches: for our own client, the coordinators, transaction markers and tests.

`build_batch` encodes records, `build_marker` builds a transaction marker, `recompress` changes the
codec of a batch, `seal` completes any batch.
Invariant: batches built here pass `iter_records`, and their CRC is valid.
"""

import struct
from collections.abc import Iterable
from typing import TypedDict, Unpack

from suwi.model.ids import (
    NO_EPOCH,
    NO_OFFSET,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
)
from suwi.records.batch import (
    CODEC_MASK,
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
from suwi.records.compression import Buffer, Compression, compress
from suwi.records.record import Headers, MarkerType, Record, records_section, wrap_int64

_CRC = struct.Struct(">I")
_MARKER_KEY = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hi")
_MARKER_VERSION = 0
_NULL = b"\1"  # a length of -1


class BatchFields(TypedDict, total=False):
    """What `RecordsSection.batch` takes."""

    last_offset: int | None
    codec: Compression
    compression_level: int | None
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    transactional: bool
    control: bool
    log_append_time_ms: int | None


def build_batch(
    records: Iterable[Record], *, base_offset: int = 0, **fields: Unpack[BatchFields]
) -> bytearray:
    """A sealed batch. Offsets increase; NO_OFFSET means the next offset; gaps are kept."""
    section = RecordsSection(base_offset)
    section.extend(records)
    return section.batch(**fields)


class RecordsSection:
    """The records of a batch that is built piece by piece: `extend`, then `batch`."""

    def __init__(self, base_offset: int = 0) -> None:
        self.encoded = bytearray()
        self.records = 0
        self._base_offset = base_offset
        self._last_delta = -1
        self._base_timestamp = self._max_timestamp = int(NO_TIMESTAMP)

    def extend(self, records: Iterable[Record]) -> None:
        section, base_offset, last_delta = self.encoded, self._base_offset, self._last_delta
        base_timestamp, max_timestamp = self._base_timestamp, self._max_timestamp
        count = self.records
        for offset, timestamp, key, value, headers in records:
            if not count:
                base_timestamp = timestamp
            count += 1
            if timestamp > max_timestamp:
                max_timestamp = timestamp
            delta = last_delta + 1 if offset == NO_OFFSET else offset - base_offset
            if delta <= last_delta:
                raise ValueError(f"offset {offset} is not increasing, base offset {base_offset}")
            last_delta = delta
            body = b"".join(
                (
                    b"\0",  # the attributes, which are unused
                    _varint(wrap_int64(timestamp - base_timestamp)),
                    _varint(delta),
                    _NULL if key is None else _varint(len(key)) + key,
                    _NULL if value is None else _varint(len(value)) + value,
                    _encode_headers(headers) if headers else b"\0",
                )
            )
            section += _varint(len(body))
            section += body
        self.records, self._last_delta = count, last_delta
        self._base_timestamp, self._max_timestamp = base_timestamp, max_timestamp

    def batch(
        self,
        *,
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
        compressed: bytes | None = None,
    ) -> bytearray:
        """A sealed batch. `last_offset` extends it beyond its last record. With
        `log_append_time_ms` every record has that timestamp. A batch without records needs
        `last_offset`. `compressed`: what the codec has made of `encoded`, if that is done."""
        last_delta, max_timestamp = self._last_delta, self._max_timestamp
        if last_offset is not None:
            if last_offset - self._base_offset < last_delta:
                raise ValueError(f"last offset {last_offset} is before the last record")
            last_delta = last_offset - self._base_offset
        if last_delta < 0:
            raise ValueError("a batch without records needs a last offset")
        attributes = (
            codec | (TRANSACTIONAL_BIT if transactional else 0) | (CONTROL_BIT if control else 0)
        )
        if log_append_time_ms is not None:
            attributes |= LOG_APPEND_TIME_BIT
            max_timestamp = log_append_time_ms
        header = BatchHeader(
            base_offset=self._base_offset,
            batch_length=0,
            partition_leader_epoch=leader_epoch,
            magic=MAGIC,
            crc=0,
            attributes=attributes,
            last_offset_delta=last_delta,
            base_timestamp=self._base_timestamp,
            max_timestamp=max_timestamp,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            record_count=self.records,
        )
        if compressed is None:
            compressed = compress(codec, self.encoded, compression_level)
        return seal(header, compressed)


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
    base_offset, _, *rest = header
    HEADER.pack_into(batch, 0, base_offset, len(batch) - LOG_OVERHEAD_BYTES, *rest)
    _CRC.pack_into(batch, CRC_AT, compute_crc(batch, 0, len(batch)))
    return batch


def recompress(
    batch: Buffer,
    header: BatchHeader,
    codec: Compression,
    *,
    decompressed_bytes: int | None = None,
) -> bytearray:
    """The same batch with its records compressed by `codec`; offsets, times, producer are kept.

    For a `compression.type` other than `producer`. Records are not decoded: a client's batch must
    have passed `validate_produced_records`. One that already has this codec is copied unchanged.
    """
    if header.codec is codec:
        return bytearray(memoryview(batch)[: header.size_bytes])
    section = records_section(batch, header, decompressed_bytes=decompressed_bytes)
    attributes = header.attributes & ~CODEC_MASK | codec
    return seal(header._replace(attributes=attributes), compress(codec, section))


def _encode_headers(headers: Headers) -> bytearray:
    out = bytearray(_varint(len(headers)))
    for name, value in headers:
        key = name.encode("utf-8", "surrogateescape")
        out += _varint(len(key)) + key
        out += _NULL if value is None else _varint(len(value)) + value
    return out


def _varint(number: int) -> bytes:
    return _SHORT[number] if 0 <= number < _SHORT_VARINTS else _any_varint(number)


def _any_varint(number: int) -> bytes:
    out = bytearray()
    append_varint(out, number)
    return bytes(out)


def append_varint(out: bytearray, number: int) -> None:
    """Zigzag: 0, -1, 1, -2 become 0, 1, 2, 3."""
    number = number << 1 if number >= 0 else (~number << 1) | 1
    while number > 0x7F:
        out.append((number & 0x7F) | 0x80)
        number >>= 7
    out.append(number)


_SHORT_VARINTS = 256
_SHORT = [_any_varint(number) for number in range(_SHORT_VARINTS)]
