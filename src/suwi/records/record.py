"""The records in a batch.

`iter_records` decodes them, `scan_keys` finds their keys and positions without decoding the rest,
`read_marker` reads the record of a transaction marker.
Invariant: malformed records raise InvalidRecord, and memory use is bounded by the available bytes,
never by a length field.
"""

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from suwi.model.errors import InvalidRecord
from suwi.model.ids import NO_OFFSET, NO_TIMESTAMP
from suwi.records.batch import HEADER_BYTES, BatchHeader
from suwi.records.compression import Buffer, decompress, decompressed_bytes_max

Headers = tuple[tuple[str, bytes | None], ...]

# Per batch. No producer comes near it, but a kilobyte of zstd could contain eight million.
_HEADERS_MAX = 1_000_000
# Per scanned batch.
_RECORDS_MAX = 1_000_000

INT64_RANGE = 1 << 64
INT64_MIN = -(1 << 63)
INT64_MAX = (1 << 63) - 1


Span = tuple[int, int, int, bytes | None, bool]
"""Start and end of a record in its section, its offset delta, its key, whether it has a value. A
plain tuple for speed: there is one for each record of a log."""


class Record(NamedTuple):
    """One record. In a batch to be built, NO_OFFSET means the offset after the previous record."""

    offset: int = NO_OFFSET
    timestamp: int = NO_TIMESTAMP
    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()


class MarkerType(IntEnum):
    """The outcome of a transaction: the type in the key of a control record."""

    ABORT = 0
    COMMIT = 1


class Marker(NamedTuple):
    """The transaction marker of one producer in one partition."""

    type: MarkerType
    coordinator_epoch: int


def records_section(
    batch: Buffer, header: BatchHeader, *, decompressed_bytes: int | None = None
) -> bytes:
    """The uncompressed records section of one batch, at most `decompressed_bytes` long."""
    section = memoryview(batch)[HEADER_BYTES : header.size_bytes]
    if len(section) != header.size_bytes - HEADER_BYTES:
        raise InvalidRecord(f"a batch of {header.size_bytes} bytes ends after {len(batch)}")
    if decompressed_bytes is None:
        decompressed_bytes = decompressed_bytes_max(len(section))
    return decompress(header.codec, section, decompressed_bytes)


def iter_records(
    batch: Buffer,
    header: BatchHeader,
    *,
    decompressed_bytes: int | None = None,
    with_headers: bool = True,
) -> Iterator[Record]:
    """Decode the batch at the start of `batch`. Raises InvalidRecord at the first error.

    A batch is valid only if the iteration completes: the count is checked last. Without
    `with_headers` the headers are checked but not returned: a header of two bytes becomes an object
    of 64, so a hostile batch of headers could exhaust the memory.
    """
    data = records_section(batch, header, decompressed_bytes=decompressed_bytes)
    yield from read_records(data, header, with_headers=with_headers)


def read_records(
    data: bytes, header: BatchHeader, *, with_headers: bool = True
) -> Iterator[Record]:
    """As `iter_records`, for an uncompressed records section."""
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    append_time = header.max_timestamp if header.uses_log_append_time else None
    last_delta = -1
    position = 0
    headers_left = _HEADERS_MAX
    for _ in range(header.record_count):
        try:
            position, timestamp_delta, offset_delta, key, value, headers, header_count = _read(
                data, position, headers_left, with_headers
            )
        except IndexError:
            raise InvalidRecord("a record ends early") from None
        headers_left -= header_count
        if not last_delta < offset_delta <= header.last_offset_delta:
            raise InvalidRecord(
                f"offset delta {offset_delta} comes after {last_delta}, "
                f"the batch ends at {header.last_offset_delta}"
            )
        last_delta = offset_delta
        timestamp = base_timestamp + timestamp_delta if append_time is None else append_time
        if not INT64_MIN <= timestamp <= INT64_MAX:
            timestamp = wrap_int64(timestamp)
        yield Record(base_offset + offset_delta, timestamp, key, value, headers)
    if header.record_count < 0 or position != len(data):
        raise InvalidRecord(
            f"{header.record_count} records take {position} bytes of a section of {len(data)}"
        )


def scan_keys(section: bytes, header: BatchHeader) -> list[Span]:
    """Every record of an uncompressed records section. Raises InvalidRecord if it is malformed.

    Values and headers are not decoded: they are copied or dropped as a whole.
    """
    if header.record_count > _RECORDS_MAX:
        raise InvalidRecord(f"{header.record_count} records in one batch, at most {_RECORDS_MAX}")
    spans: list[Span] = []
    at, size, last_delta = 0, len(section), -1
    try:
        for _ in range(header.record_count):
            start = at
            # Varints of one and two bytes are decoded inline: a call for each would cost more.
            number = section[at]
            at += 1
            if number > 0x7F:
                following = section[at]
                if following > 0x7F:
                    length, at = _read_varint(section, start)
                    number = length << 1
                else:
                    at += 1
                    number += (following << 7) - 0x80
            end = at + (number >> 1)
            if number & 1 or number < 0 or end > size:
                raise InvalidRecord(f"the record at {start} exceeds its batch")
            at += 1  # The attributes are unused.
            while section[at] > 0x7F:
                at += 1
            at += 1
            delta = section[at]
            if delta > 0x7F:
                delta, at = _read_varint(section, at)
            else:
                delta = (delta >> 1) ^ -(delta & 1)
                at += 1
            length = section[at]
            if length > 0x7F:
                length, at = _read_varint(section, at)
            else:
                length = (length >> 1) ^ -(length & 1)
                at += 1
            key = None
            if length >= 0:
                key = section[at : at + length]
                at += length
            if at >= end or not last_delta < delta <= header.last_offset_delta or length < -1:
                raise InvalidRecord(f"the record at {start} has invalid fields")
            last_delta = delta
            spans.append((start, end, delta, key, section[at] != 1))
            at = end
    except IndexError:
        raise InvalidRecord("a record ends early") from None
    if at != size:
        raise InvalidRecord(f"{header.record_count} records take {at} bytes of {size}")
    return spans


def read_timestamp_delta(section: bytes, span: Span) -> tuple[int, int]:
    """A record's timestamp delta, and the position after it."""
    _, at = _read_varint(section, span[0])
    return _read_varlong(section, at + 1)


def read_marker(batch: Buffer, header: BatchHeader) -> Marker | None:
    """The marker in a control batch; None for other control records.

    Also None if compaction emptied the batch: then nothing is left of its transaction.
    """
    if header.record_count == 0:
        return None
    record = next(iter_records(batch, header), None)
    if record is None or record.key is None or record.value is None:
        raise InvalidRecord("a control record has a key and a value")
    try:
        _version, number = struct.unpack_from(">hh", record.key)
        if number not in (MarkerType.ABORT, MarkerType.COMMIT):
            return None
        _version, coordinator_epoch = struct.unpack_from(">hi", record.value)
    except struct.error:
        raise InvalidRecord("a control record is too short") from None
    return Marker(MarkerType(number), coordinator_epoch)


def wrap_int64(number: int) -> int:
    """Wrap around like Java's arithmetic: so base plus delta is correct for extreme timestamps."""
    return (number - INT64_MIN) % INT64_RANGE + INT64_MIN


def _read(
    data: bytes, at: int, headers_max: int, with_headers: bool
) -> tuple[int, int, int, bytes | None, bytes | None, Headers, int]:
    """One record: the position after it, timestamp and offset delta, key, value, headers, header
    count.

    The headers are empty without `with_headers`.

    Raises IndexError beyond the end of the data. A field that exceeds its record needs no separate
    check: positions only grow, so the comparison at the end detects it.
    """
    length, at = _read_varint(data, at)
    end = at + length
    if length < 0 or end > len(data):
        raise InvalidRecord(f"record length {length} with {len(data) - at} bytes left")
    timestamp_delta, at = _read_varlong(data, at + 1)  # after the attributes, which are unused
    offset_delta, at = _read_varint(data, at)
    key, at = _read_nullable(data, at)
    value, at = _read_nullable(data, at)
    headers: Headers = ()
    header_count = 0
    if data[at]:
        header_count, at = _read_varint(data, at)
        if not 0 <= header_count <= headers_max:
            raise InvalidRecord(f"header count {header_count}, at most {headers_max}")
        headers, at = _read_headers(data, at, header_count, with_headers)
    else:
        at += 1
    if at != end:
        raise InvalidRecord(f"a record of {length} bytes has fields of {length + at - end}")
    return at, timestamp_delta, offset_delta, key, value, headers, header_count


def _read_headers(data: bytes, at: int, count: int, keep: bool) -> tuple[Headers, int]:
    headers = []
    for _ in range(count):
        name, at = _read_nullable(data, at)
        if name is None:
            raise InvalidRecord("a header has no key")
        value, at = _read_nullable(data, at)
        if keep:
            # Kafka accepts any bytes as a header key; surrogateescape preserves them.
            headers.append((name.decode("utf-8", "surrogateescape"), value))
    return tuple(headers), at


def _read_nullable(data: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = _read_varint(data, at)
    if length < 0:
        if length == -1:
            return None, at
        raise InvalidRecord(f"field length {length}")
    end = at + length
    return data[at:end], end


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    number, at = _read_unsigned(data, at, 32)
    return (number >> 1) ^ -(number & 1), at


def _read_varlong(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    number, at = _read_unsigned(data, at, 64)
    return (number >> 1) ^ -(number & 1), at


def _read_unsigned(data: bytes, at: int, bits: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, bits, 7):
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            if number >> bits:
                raise InvalidRecord(f"a number exceeds {bits} bits")
            return number, at
    raise InvalidRecord(f"a number has more than {bits} bits")
